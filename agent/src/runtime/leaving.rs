//! Handing over what this node leads: since it was told to drain, or to stop.

use std::{collections::BTreeSet, time::Instant};

use super::{Agent, AgentError};
use crate::{
    control::Progress,
    election::{Input, LEAVING},
    model::Vip,
};

/// It was told to hand over.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    /// What this node led then.
    led: BTreeSet<Vip>,
    /// Since when the agent is to stop, once that is done.
    stopping: Option<Instant>,
}

impl Agent {
    /// It was told to stop; told twice, it stops at once.
    pub(super) fn leave(&mut self) -> Result<(), AgentError> {
        self.drain(true)?;
        let vips = self.elector.held().count();
        if let Some(leaving) = &mut self.leaving {
            if let Some(since) = &mut leaving.stopping {
                *since -= LEAVING;
            } else {
                leaving.stopping = Some(Instant::now());
                tracing::info!(vips, "told to stop: handing over what this node leads");
            }
        }
        Ok(())
    }

    /// Leads nothing from now on, as long as there is another node; or does again. An agent that was told to stop goes on with
    /// that.
    pub(super) fn drain(&mut self, drains: bool) -> Result<(), AgentError> {
        if drains == self.leaving.is_some() || self.stops() {
            return Ok(());
        }
        let led = self.elector.held().map(|(vip, _)| vip).collect();
        self.leaving = drains.then_some(Leaving { led, stopping: None });
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

    /// Whether it was told to stop.
    pub(super) fn stops(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.stopping.is_some())
    }

    /// Whether it was told to stop, and has handed over what others can take.
    pub(super) fn has_left(&self) -> bool {
        let stopping = self.leaving.as_ref().and_then(|leaving| leaving.stopping);
        stopping.is_some_and(|since| self.elector.has_left(since.elapsed()))
    }
}
