//! Failovers of keepalived, in the same topology. The servers are on the node that answers, so
//! connections end with it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::{AFTER, ASLEEP, Case, Contender, Sample};
use crate::{
    cluster::PATIENCE,
    failover,
    keepalived::{Advertisements, Keepalived, Whom, version},
    lan::Lan,
};

/// A backup that starts waits a little longer than three advertisements.
const REST: Duration = Duration::from_secs(5);

pub(super) struct Others {
    contender: Keepalived,
    system: String,
    rested: Instant,
}

impl Others {
    pub(super) fn new(advertisements: Advertisements) -> Result<Self> {
        let often = match advertisements {
            Advertisements::Default => "each second",
            Advertisements::Fast => "each 0.1 s",
        };
        let system = format!("{}, {often}", version()?);
        let contender = Keepalived::new(Lan::new(failover::LAN)?, advertisements)?;
        Ok(Self { contender, system, rested: Instant::now() + REST })
    }

    fn happen(&self, case: Case, node: &str) -> Result<()> {
        match case {
            Case::KillMain => self.contender.signal(node, Whom::Main, Signal::SIGKILL),
            Case::Pause => self.contender.signal(node, Whom::All, Signal::SIGSTOP),
            Case::Unplug => self.contender.lan.unplug(node),
            Case::CutOff => self.contender.lan.cut_off(node),
            Case::Terminate => self.contender.signal(node, Whom::Main, Signal::SIGTERM),
            _ => self.contender.signal(node, Whom::All, Signal::SIGKILL),
        }
    }

    fn repair(&mut self, case: Case, node: &str) -> Result<()> {
        match case {
            Case::Pause => Ok(()),
            Case::Unplug => self.contender.lan.plug(node),
            Case::CutOff => self.contender.lan.join(node),
            _ => self.contender.start(node),
        }
    }
}

impl Contender for Others {
    fn system(&self) -> String {
        self.system.clone()
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::Kill, Case::KillMain, Case::Pause, Case::Unplug, Case::CutOff, Case::Terminate]
    }

    fn measure(&mut self, case: Case) -> Result<Sample> {
        thread::sleep(self.rested.saturating_duration_since(Instant::now()));
        let leader = self.contender.leader()?;
        let (node, mac) = (leader.name.clone(), leader.mac);
        let mut watch = self.contender.watch()?;
        let happened = self.happen(case, &node).and_then(|()| {
            watch.wait_for_another(mac, PATIENCE)?;
            if case == Case::Pause {
                thread::sleep(ASLEEP);
                self.contender.signal(&node, Whom::All, Signal::SIGCONT)?;
            }
            thread::sleep(AFTER);
            Ok(())
        });
        let view = watch.stop();
        let repaired = self.repair(case, &node);
        self.rested = Instant::now() + REST;
        happened.and(repaired)?;
        Ok(Sample::of(&view?, (0, 0)))
    }
}
