//! The agent's one event loop: it reads the clock and the kernel's notifications, feeds the pure parts, and executes
//! what they say.
//!
//! Tasks and threads beside it, each bounded and joined by a watched value, so that a slow reader sees the newest state
//! and never a backlog: the source's follower, the stages up to the plan (`settle`), the [`Monitor`] of interfaces and
//! neighbours, those that keep the NAT chain and the groups, the health probes, and what is served by HTTP (`observing`).
//! Questions come by a bounded channel ([`control`](crate::control)).

mod asked;
mod check;
mod conflicts;
mod desired;
mod elector;
mod error;
mod following;
mod health;
mod interfaces;
mod kernel;
mod leaving;
mod observing;
mod origin;
pub(crate) mod privileges;
mod quota;
mod settle;
mod showing;
mod starting;
mod vitals;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::OrdSet;
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep_until},
};
use vipmux_common::abi::Mac;

use self::{
    check::Checks,
    elector::Elector,
    health::Hearsay,
    interfaces::Interfaces,
    kernel::{Kernel, boottime},
    leaving::Leaving,
    quota::Quota,
    settle::{Question, Settled},
    showing::Shown,
    vitals::Vitals,
};
pub use self::{
    error::AgentError,
    kernel::KernelError,
    origin::Origin,
    privileges::{CAPABILITIES, PrivilegeError},
    starting::{Options, run},
};
use crate::{
    announce::{Announcer, Frame, Sender, groups, probe::Prober, watch::Watch},
    control::Query,
    datapath::pins::LinkKind,
    election::{Command, HEARTBEAT},
    keeper::Keeper,
    link::Monitor,
    metrics::Meters,
    model::{NodeName, Vip},
    snat,
    source::Follower,
    stop::Stop,
    store::Report,
};

/// How often is looked for answers while the LAN is asked for an address.
const LISTEN: Duration = Duration::from_millis(10);

struct Agent {
    options: Options,
    kernel: Kernel,
    elector: Elector,
    /// At least one announcing interface has a carrier.
    carrier: bool,
    /// What peers say are their MACs: 0 is that on the segment of their InternalIP.
    macs: BTreeMap<NodeName, BTreeMap<u8, Mac>>,
    /// This node is to lead nothing.
    leaving: Option<Leaving>,
    /// What `vipmux inspect` sees of leaders and peers.
    shown: Shown,
    /// What health probes found, here and elsewhere.
    health: Hearsay,
    /// Who asks the LAN for addresses.
    prober: Prober,
    /// Frames that had come in when it was asked whether anybody is there.
    received: BTreeMap<Vip, u64>,
    source: Follower,
    /// To whom questions about what was decided are passed on.
    questions: mpsc::Sender<Question>,
    /// The look at the manifests that the next choice must rest on.
    awaited: u64,
    announcer: Announcer,
    sender: Sender,
    snat: Keeper<OrdSet<snat::Element>>,
    groups: Keeper<BTreeSet<groups::Group>>,
    wanted: snat::Wanted,
    interfaces: Interfaces,
    /// Where the programs were attached when the links were last taken note of.
    linked: BTreeSet<(LinkKind, u32)>,
    ready: bool,
    /// An interface or its MAC is new, so what is led must be announced there.
    changed: bool,
    /// VIPs and the like that were refused, as last told.
    refused: BTreeSet<String>,
    watch: Watch,
    /// Strangers that have addresses which are led here, as last told.
    conflicts: BTreeSet<String>,
    /// Who tells the owners of Services of them.
    owners: mpsc::Sender<(Vip, String)>,
    /// What is counted, and how the agent fares: both are read beside the loop.
    meters: Meters,
    vitals: Arc<Vitals>,
    /// Of what was settled, that which was counted last.
    course: settle::Course,
    /// Of the fence's lapses, those that were counted.
    lapses: u64,
    /// Lines of log about VIPs that come and go, about addresses that strangers have, and about frames that were not sent.
    leaderships: Quota,
    strangers: Quota,
    failures: Quota,
    /// When to try again what found no room.
    retry: Option<Instant>,
}

impl Agent {
    async fn turn(
        mut self,
        mut stop: Stop,
        monitor: &Monitor,
        mut settled: watch::Receiver<Arc<Settled>>,
        mut queries: mpsc::Receiver<Query>,
        mut reports: mpsc::Receiver<Report>,
    ) -> Result<(), AgentError> {
        let (mut links, mut neighbors) = (monitor.links(), monitor.neighbors());
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Nothing was read yet: that is not the same as nothing is wanted, and the maps may be full of what is in use.
        let mut begun = false;
        let mut checks = Checks::new(self.options.self_check);
        loop {
            let check = checks.next().filter(|_| self.ready).map(Into::into);
            let announce = self.announcer.next().map(Into::into);
            let retry = self.retry.map(Into::into);
            let since_boot = boottime()?;
            self.show_vitals(since_boot, begun);
            let turn = self.elector.next().map(|next| next.saturating_sub(since_boot));
            let probe = self.prober.next().map(|next| next.saturating_sub(since_boot).min(LISTEN));
            let now = tokio::time::Instant::now();
            tokio::select! {
                biased;
                _ = heartbeat.tick() => {
                    let begun = Instant::now();
                    self.beat()?;
                    self.heed_strangers(&links.borrow())?;
                    self.show()?;
                    self.tell_untold();
                    // However long that took, others have their turn before the next.
                    if begun.elapsed() >= HEARTBEAT {
                        heartbeat.reset_after(LISTEN);
                    }
                    if self.has_left() {
                        self.elector.leave().await;
                        return Ok(());
                    }
                    continue;
                }
                found = self.health.found() => {
                    found?;
                    self.hear_health()?;
                    continue;
                }
                happened = self.elector.happened() => {
                    happened?;
                    self.elect()?;
                    self.hear_health()?;
                    if !begun || !self.follow_macs() { continue }
                }
                Some(report) = reports.recv() => {
                    self.meters.stored(&report.operation, &report.result);
                    let commands = self.elector.report(&mut self.kernel, report)?;
                    self.react(&commands)?;
                    continue;
                }
                () = sleep_until(now + probe.unwrap_or_default()), if probe.is_some() => {
                    self.hear_answers()?;
                    continue;
                }
                () = sleep_until(now + turn.unwrap_or_default()), if turn.is_some() => {
                    self.elect()?;
                    continue;
                }
                () = sleep_until(announce.unwrap_or(now)), if announce.is_some() => {
                    self.announce();
                    continue;
                }
                () = stop.told() => {
                    self.leave()?;
                    continue;
                }
                changed = settled.changed() => {
                    changed?;
                    begun = true;
                }
                changed = links.changed(), if begun => changed?,
                changed = neighbors.changed(), if begun => changed?,
                () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
                reading = checks.read() => if !self.checked(&mut checks, reading)? { continue },
                Some(query) = queries.recv() => {
                    self.answer(query, &mut checks)?;
                    continue;
                }
                () = sleep_until(check.unwrap_or(now)), if check.is_some() => {
                    checks.begin(&self.kernel);
                    continue;
                }
            }
            let settled = Arc::clone(&settled.borrow_and_update());
            let links = Arc::clone(&links.borrow_and_update());
            let neighbors = Arc::clone(&neighbors.borrow_and_update());
            self.follow(monitor, &settled, &links, &neighbors)?;
        }
    }

    /// One turn of the heart.
    fn beat(&mut self) -> Result<(), AgentError> {
        let commands = self.elector.beat(&mut self.kernel, self.carrier)?;
        self.react(&commands)
    }

    /// Time has passed, or peers have spoken.
    fn elect(&mut self) -> Result<(), AgentError> {
        let commands = self.elector.turn(&mut self.kernel)?;
        self.react(&commands)
    }

    /// Announces what was gained, forgets what was lost, asks the LAN, and tells it all.
    fn react(&mut self, commands: &[Command]) -> Result<(), AgentError> {
        let mut asked = Vec::new();
        for command in commands {
            match command {
                Command::Lead { vip, epoch, why } => {
                    self.lead(*vip);
                    self.show_leader(*vip)?;
                    self.meters.gained(why);
                    if self.leaderships.take(Instant::now()) {
                        tracing::info!(%vip, epoch, why = %why, "leading");
                    }
                }
                Command::Follow { vip, why } => {
                    self.announcer.lost(*vip);
                    self.show_leader(*vip)?;
                    self.meters.lost(why);
                    if self.leaderships.take(Instant::now()) {
                        tracing::info!(%vip, why = %why, "no longer leading");
                    }
                }
                Command::Gather => self.awaited = self.source.look(),
                Command::Probe { vip, detect } => asked.push((*vip, *detect)),
                Command::Conflict { vip, mac } => self.heed_owner(*vip, *mac),
                _ => {}
            }
        }
        self.probe(&asked)
    }

    fn lead(&mut self, vip: Vip) {
        let Some(value) = self.kernel.observed().vips().get(&vip.0.into()) else { return };
        for (ifindex, mac) in self.interfaces.announced_on(value.interfaces, value.vlan) {
            self.announcer.gained(vip, ifindex, mac, Instant::now());
        }
    }

    /// Sends what is due. A frame that cannot be sent now is one of a burst.
    fn announce(&mut self) {
        let frames = self.announcer.due(Instant::now());
        self.send(&frames);
    }

    fn send(&mut self, frames: &[Frame]) {
        let sent = frames.iter().map(|frame| self.sender.send(frame)).inspect(|sent| self.meters.announced(sent));
        let errors: Vec<_> = sent.filter_map(Result::err).collect();
        if let Some(error) = errors.first()
            && self.failures.take(Instant::now())
        {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                failed = errors.len(),
                "announcements were not sent"
            );
        }
    }
}
