//! Handing over what this node leads: since it was told to drain, or to stop.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{Agent, AgentError};
use crate::{
    control::Progress,
    election::{Input, Role},
    membership::Standing,
    model::Vip,
};

/// How long an agent that was told to stop waits for others to take what it leads.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a VIP stays that nobody can take, until that is taken for settled.
const UNMOVED: Duration = Duration::from_secs(1);

/// Why, and since when.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    since: Instant,
    /// What this node led then.
    led: BTreeSet<Vip>,
    /// The agent stops then.
    stops: bool,
}

impl Agent {
    /// It was told to stop; told twice, it stops at once.
    pub(super) fn leave(&mut self) -> Result<(), AgentError> {
        self.drain(true)?;
        let vips = self.elector.held().count();
        if let Some(leaving) = &mut self.leaving {
            if std::mem::replace(&mut leaving.stops, true) {
                leaving.since -= PATIENCE;
            } else {
                leaving.since = Instant::now();
                tracing::info!(vips, "told to stop: handing over what this node leads");
            }
        }
        Ok(())
    }

    /// Leads nothing from now on, as long as there is another node; or does again. An agent that was told to stop goes on with
    /// that.
    pub(super) fn drain(&mut self, drains: bool) -> Result<(), AgentError> {
        if drains == self.leaving.is_some() || self.leaving.as_ref().is_some_and(|leaving| leaving.stops) {
            return Ok(());
        }
        let led = self.elector.held().map(|(vip, _)| vip).collect();
        self.leaving = drains.then(|| Leaving { since: Instant::now(), led, stops: false });
        let commands = self.elector.give(&mut self.kernel, Input::Drain(drains))?;
        self.react(&commands)
    }

    /// How far that is.
    pub(super) fn progress(&self) -> Progress {
        let Some(leaving) = &self.leaving else { return Progress::default() };
        let mut progress = Progress { draining: true, ..Progress::default() };
        let held: BTreeSet<_> = self.elector.held().map(|(vip, _)| vip).collect();
        for vip in held.iter().copied() {
            if self.elector.has_other(vip) {
                progress.held.push(vip);
            } else {
                progress.kept.push((vip, "no other node can lead it now".to_owned()));
            }
        }
        let gone = leaving.led.difference(&held);
        let to = |vip: &Vip| Some((*vip, self.elector.leadership(*vip)?.leader?));
        progress.handed = gone.filter_map(to).collect();
        progress
    }

    /// Whether it was told to stop, and has handed over what others can take.
    pub(super) fn has_left(&self) -> bool {
        let Some(Leaving { since, stops: true, .. }) = &self.leaving else { return false };
        let waited = since.elapsed();
        let mut held = self.elector.held();
        if waited >= PATIENCE || held.next().is_none() {
            return true;
        }
        let alone = self
            .elector
            .peers(|peers| peers.members.values().all(|peer| matches!(peer.standing, Standing::Down | Standing::Left)));
        let moves = |(vip, role)| role == Role::Handing || self.elector.has_other(vip);
        alone || waited >= UNMOVED && !self.elector.held().any(moves)
    }
}
