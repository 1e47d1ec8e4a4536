//! Runs the agent: one event loop that reads the clock and the kernel's notifications, feeds the
//! pure crates and executes their commands.
//!
//! ```text
//! Inputs::next -> Event -> Agent::handle
//!                          ├─ Serving         kernel and interfaces: desired state, NAT, groups
//!                          ├─ ElectionDriver  election, drain, published leaders
//!                          ├─ Announcements   announcements, address probes, foreign speakers
//!                          ├─ PeerHealth      results of health probes, here and elsewhere
//!                          ├─ SelfCheck       compares the kernel with the desired state
//!                          └─ Telemetry       metrics, liveness, log limits
//! ```
//!
//! A component owns its state and knows no other's, except where it is an argument. `Agent`
//! passes the election's commands from one to the others.
//!
//! Tasks and threads run beside the loop. Each is bounded, and most are joined by a watched value,
//! so that a slow reader sees the newest state and never a backlog:
//!
//! - the source of objects, and the `pipeline` up to the serving state
//! - the [`Monitor`] of interfaces and neighbors
//! - the tasks that keep the NAT chain and the multicast groups
//! - the task that attaches programs to interfaces
//! - the gossip, the health probes, and the metrics server
//!
//! If one of them ends, the supervisor ends the agent.
//!
//! Queries come by a bounded channel ([`control`](crate::control)).

mod queries;
mod reconcile;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    AgentError, KernelError,
    election::{
        ElectionDriver,
        announcements::{Announcements, ProbeAnswers},
        peer_health::PeerHealth,
    },
    events::{Event, Inputs, Sources, Timers},
    problems::{
        bypass::Bypasses,
        cut_segments::{CutSegments, SegmentView},
        hashing_agreement::HashingAgreement,
        liveness::StartupProgress,
    },
    serving::{
        Serving, attach_task::Extent, interfaces::SegmentChanges, kernel::boottime, pipeline::ExplainRequest,
        self_check::SelfCheck,
    },
    telemetry::Telemetry,
};
use vipmux_cluster::store::{LeaseSnapshot, StoreReport};
use vipmux_datapath::link::{Links, Monitor, PeersBySegment, SegmentPeers, interface_name};
use vipmux_election::{Command, Input, membership::Item};
use vipmux_gossip::Addresses;
use vipmux_model::NodeName;

/// The agent's components.
pub(crate) struct Agent {
    pub(crate) node: NodeName,
    pub(crate) serving: Serving,
    pub(crate) election: ElectionDriver,
    pub(crate) announcements: Announcements,
    pub(crate) health: PeerHealth,
    pub(crate) self_check: SelfCheck,
    pub(crate) cut_segments: CutSegments,
    pub(crate) bypasses: Bypasses,
    pub(crate) hashing: HashingAgreement,
    pub(crate) telemetry: Telemetry,
    /// To the pipeline, which answers them.
    pub(crate) explain_requests: mpsc::Sender<ExplainRequest>,
    /// Somebody removed the pins, so the agent stops.
    pub(crate) unloaded: bool,
    /// The last look at the pins, `CLOCK_BOOTTIME`.
    pub(crate) pins_checked: Duration,
}

/// The interval of looks at the pins. Each takes twenty system calls.
const PIN_CHECK: Duration = Duration::from_millis(500);

/// The event loop's next action after an event.
enum Next {
    /// It waits for the next one.
    Wait,
    /// It reconciles with the newest serving state and network. `attach`: the interfaces, too.
    Reconcile { attach: bool },
    /// It ends: the drain before a stop is over.
    Stop,
}

impl Agent {
    /// Runs the event loop until the agent was asked to stop, and the drain is over.
    pub(crate) async fn run(mut self, mut inputs: Inputs, monitor: &Monitor) -> Result<(), AgentError> {
        loop {
            let now = boottime()?;
            self.report_progress(now, inputs.has_begun());
            let timers = self.timers(now);
            let sources = Sources {
                elector: &mut self.election.elector,
                health: &mut self.health,
                self_check: &mut self.self_check,
                attach: &mut self.serving.attach,
            };
            let event = inputs.next(sources, &timers).await;
            match self.handle(event, &mut inputs, monitor)? {
                Next::Wait => {}
                Next::Reconcile { attach } => {
                    let (state, network) = inputs.take();
                    // What an agent without pins attaches would be gone when it ends.
                    if !self.unloaded {
                        self.reconcile(monitor, &state, &network, attach)?;
                    }
                }
                Next::Stop => {
                    self.election.elector.leave_membership().await;
                    let path = self.serving.kernel.pins().root().to_owned();
                    return if self.unloaded { Err(AgentError::Unloaded { path }) } else { Ok(()) };
                }
            }
        }
    }

    /// Passes an event to its component.
    fn handle(&mut self, event: Event, inputs: &mut Inputs, monitor: &Monitor) -> Result<Next, AgentError> {
        let (mut reconcile, mut attach) = (false, true);
        match event {
            Event::Heartbeat => {
                let start = Instant::now();
                self.check_pins()?;
                reconcile = self.heartbeat(&inputs.links())?
                    | self.check_segments(&inputs.links(), monitor)?
                    | self.check_bypasses(monitor)?
                    | self.serving.interfaces.check_attach(start);
                inputs.end_heartbeat(start.elapsed());
                if self.election.may_stop() {
                    return Ok(Next::Stop);
                }
            }
            Event::ProbeResults => self.health.update(&self.election.elector)?,
            Event::PeersChanged => reconcile = self.peers_changed(inputs.has_begun(), monitor)?,
            Event::StoreReport(report) => self.store_report(report)?,
            Event::LeasesChanged => reconcile = self.leases_changed(inputs.leases())?,
            Event::AddressProbeDue => self.poll_address_probes()?,
            Event::ElectionDue => self.elect()?,
            Event::AnnouncementDue => self.announcements.send_due(),
            Event::Stop => self.stop()?,
            Event::Changed => reconcile = true,
            Event::Attached(attached) => {
                let detached;
                (reconcile, detached) = self.serving.finish_attach(attached)?;
                (0..detached).for_each(|_| self.telemetry.meters.repaired("link"));
                self.self_check.resume(&self.serving);
                attach = false;
            }
            Event::KernelRead(reading) => reconcile = self.self_check.finish(reading, &mut self.serving)?,
            Event::Query(query) => self.answer(query)?,
            Event::SelfCheckDue => self.self_check.begin(&self.serving),
        }
        Ok(if reconcile { Next::Reconcile { attach } } else { Next::Wait })
    }

    /// Returns when the components want an event. `now`: `CLOCK_BOOTTIME`.
    fn timers(&self, now: Duration) -> Timers {
        let is_idle = self.serving.is_ready() && !self.unloaded && self.serving.attach.kernel().is_some();
        let self_check = self.self_check.next().filter(|_| is_idle);
        Timers {
            announcement: self.announcements.next().map(Into::into),
            retry: self.serving.retry_at().map(Into::into),
            self_check: self_check.map(Into::into),
            ..Timers::new(now, self.announcements.next_probe(), self.election.elector.next())
        }
    }

    /// Reports to the metrics server that the event loop runs, and how far the agent is.
    fn report_progress(&mut self, now: Duration, source_read: bool) {
        let kernel = &self.serving.kernel;
        self.telemetry.alive(now, kernel.deadline());
        let attached = !self.serving.interfaces.attached.is_empty();
        let progress = StartupProgress { source_read, attached, synced: self.serving.is_ready() };
        self.telemetry.progress(progress, self.election.is_stopping());
        self.telemetry.fence(kernel.lapses(), kernel.deadline() > now, now);
        self.telemetry.silence(self.election.elector.keys().silence());
    }

    /// Returns whether to reconcile, since the hashing changed.
    fn heartbeat(&mut self, links: &Links) -> Result<bool, AgentError> {
        let mut reconcile = false;
        self.extend_fence()?;
        self.announcements.check_foreign_speakers(&mut self.serving, links)?;
        let now = boottime()?;
        if self.election.publish(&mut self.serving.kernel, now)? {
            let elector = &self.election.elector;
            self.telemetry.solitude(elector.solitude(now));
            self.telemetry.leadership(&elector.missing_members(), elector.uses_store_evidence(now), now);
            self.telemetry.unstable(elector.is_unstable(), now);
            self.telemetry.versions(&self.election.elector.versions());
            self.telemetry.meters.map_usage(self.serving.kernel.observed().fill());
            reconcile = self.check_hashing(now)?;
        }
        let now = Instant::now();
        self.telemetry.log_omitted(now);
        self.announcements.log_omitted(now);
        Ok(reconcile)
    }

    /// Follows the hashing that the nodes agree on. Returns whether to reconcile, since it changed.
    fn check_hashing(&mut self, now: Duration) -> Result<bool, AgentError> {
        let elector = &self.election.elector;
        let changed = self.serving.is_ready() && elector.peers(|peers| self.hashing.look(&peers.members, now));
        if changed {
            elector.publish(Item::Hashing(self.hashing.info()))?;
            let number = self.hashing.used().number();
            tracing::info!(hashing = number, "nodes agree on another hashing, replacing all tables");
        }
        Ok(changed)
    }

    /// Stops the agent, with a drain, if somebody removed the pins: nothing answers for its VIPs any
    /// more. Has programs attached again that another program detached.
    fn check_pins(&mut self) -> Result<(), AgentError> {
        let Some(kernel) = self.serving.attach.kernel() else { return Ok(()) };
        if self.unloaded || !self.serving.is_ready() {
            return Ok(());
        }
        let now = boottime()?;
        if now.saturating_sub(self.pins_checked) < PIN_CHECK {
            return Ok(());
        }
        self.pins_checked = now;
        if !kernel.has_pins() {
            let path = self.serving.kernel.pins().root().display();
            tracing::error!(%path, "somebody removed vipmux from the kernel, giving up all VIPs and stopping");
            self.unloaded = true;
            self.telemetry.unloaded();
            return self.stop();
        }
        self.serving.begin_attach(Extent::Detached);
        Ok(())
    }

    /// Has other nodes on each segment asked, and finds out where this node has no path to them.
    /// Returns whether to reconcile, since that changed.
    fn check_segments(&mut self, links: &Links, monitor: &Monitor) -> Result<bool, AgentError> {
        let now = boottime()?;
        if !self.cut_segments.take_due(now) {
            return Ok(false);
        }
        let usable = self.serving.interfaces.numbered().filter(|(_, segment)| segment.carrier);
        let segments: BTreeSet<u32> = usable.map(|(_, segment)| segment.ifindex).collect();
        let reaches = monitor.reaches();
        self.election.publish_reaches(links, &reaches)?;
        let (mut views, mut peers) = (BTreeMap::new(), PeersBySegment::new());
        for (ifindex, (addresses, best)) in self.election.on_segments(links, &segments) {
            views.insert(ifindex, SegmentView { own: reaches.get(&ifindex).copied(), best });
            let own = links.get(ifindex).and_then(|interface| interface.subnet_addresses().next());
            peers.extend(own.map(|own| (ifindex, SegmentPeers { own, peers: addresses })));
        }
        monitor.probe(peers);
        self.cut_segments.update(&views, now);
        let (cut, before) = (self.cut_segments.cut(), self.serving.interfaces.cut().clone());
        self.telemetry.meters.segments(&reaches, cut.len());
        for ifindex in cut.difference(&before) {
            let interface = interface_name(*ifindex);
            tracing::warn!(interface, "no other node answers here, and another one has a better path: giving up VIPs");
        }
        for ifindex in before.difference(&cut) {
            tracing::info!(interface = interface_name(*ifindex), "this node may lead VIPs here again");
        }
        let returned = before.difference(&cut).copied().collect();
        self.announcements.update_segments(&SegmentChanges { removed: Vec::new(), returned });
        let changed = cut != before;
        self.serving.interfaces.set_cut(cut);
        Ok(changed && self.serving.is_ready())
    }

    /// Finds the ports whose frames bypass the XDP program, and attaches it anew. Returns whether to
    /// reconcile.
    fn check_bypasses(&mut self, monitor: &Monitor) -> Result<bool, AgentError> {
        if self.unloaded || !self.serving.is_ready() || self.serving.attach.kernel().is_none() {
            return Ok(false);
        }
        if !self.bypasses.take_due(boottime()?) {
            return Ok(false);
        }
        monitor.count_frames(self.serving.interfaces.entrances());
        // The frames were counted before, so the program has met them.
        let frames = monitor.frames();
        let active = self.serving.kernel.take_activity().map_err(KernelError::from)?;
        let interfaces = &self.serving.interfaces;
        let remedies = self.bypasses.look(&frames, |port| interfaces.has(port, active));
        let Serving { attach, interfaces, .. } = &mut self.serving;
        let Some(kernel) = attach.kernel_mut() else { return Ok(false) };
        let changed = interfaces.set_bypassed(kernel, self.bypasses.ports())?;
        for (port, remedy) in &remedies {
            if self.serving.remedy_bypass(*port, *remedy) {
                self.telemetry.meters.repaired("link");
            }
        }
        Ok(changed || !remedies.is_empty())
    }

    /// Lets the election extend the fence deadline, and passes on the VIPs that the programs gave
    /// up.
    fn extend_fence(&mut self) -> Result<(), AgentError> {
        let carrier = self.serving.interfaces.has_carrier();
        let commands = self.election.elector.heartbeat(&mut self.serving.kernel, carrier)?;
        self.execute(&commands)
    }

    /// Passes the time and the membership's events to the election.
    fn elect(&mut self) -> Result<(), AgentError> {
        let commands = self.election.elector.advance(&mut self.serving.kernel)?;
        self.execute(&commands)
    }

    /// Passes an input to the election.
    fn give(&mut self, input: Input) -> Result<(), AgentError> {
        let commands = self.election.elector.handle(&mut self.serving.kernel, input)?;
        self.execute(&commands)
    }

    /// Handles the membership's events. Returns whether to reconcile, since a peer's MACs or addresses changed.
    fn peers_changed(&mut self, begun: bool, monitor: &Monitor) -> Result<bool, AgentError> {
        self.elect()?;
        self.health.update(&self.election.elector)?;
        self.doubt_nodes(&self.election.elector.nodes(), monitor);
        Ok(begun && self.election.update_peers())
    }

    /// Lets the monitor find out which of the nodes died whose agents do not answer.
    fn doubt_nodes(&self, nodes: &Addresses, monitor: &Monitor) {
        let ports = self.serving.interfaces.attached.keys().copied().collect();
        monitor.doubt(self.election.doubts(nodes, self.serving.kernel.observed()), ports);
    }

    fn store_report(&mut self, report: StoreReport) -> Result<(), AgentError> {
        self.telemetry.lease_operation(&report.operation, &report.result, boottime()?);
        let commands = self.election.elector.store_report(&mut self.serving.kernel, report)?;
        self.execute(&commands)
    }

    /// Passes the changes of the Leases to the election. Returns whether MACs of peers changed.
    fn leases_changed(&mut self, watched: LeaseSnapshot) -> Result<bool, AgentError> {
        let (commands, macs_changed) = self.election.elector.leases_changed(&mut self.serving.kernel, watched)?;
        self.execute(&commands)?;
        Ok(macs_changed && self.election.update_peers())
    }

    /// Sends address probes, and passes the answers to the election.
    fn poll_address_probes(&mut self) -> Result<(), AgentError> {
        let Some(answers) = self.announcements.poll_probes(&self.serving)? else { return Ok(()) };
        let ProbeAnswers { outcomes, received } = answers;
        for (vip, outcome) in outcomes {
            let owner = self.announcements.owner(vip, &outcome, received, &self.serving);
            self.give(Input::Probed { vip, owner })?;
        }
        Ok(())
    }

    /// Handles a signal to stop: drains this node first. After a second signal it stops at once.
    fn stop(&mut self) -> Result<(), AgentError> {
        self.set_drain(true)?;
        self.election.stop_after_drain();
        Ok(())
    }

    /// Begins or cancels a drain.
    fn set_drain(&mut self, drain: bool) -> Result<(), AgentError> {
        let commands = self.election.set_drain(&mut self.serving.kernel, drain)?;
        self.execute(&commands)
    }

    /// Executes the election's commands that are not for the kernel, the Leases or the gossip.
    fn execute(&mut self, commands: &[Command]) -> Result<(), AgentError> {
        let mut probes = Vec::new();
        for command in commands {
            match command {
                Command::Lead { vip, epoch, why } => {
                    self.announcements.begin(*vip, &self.serving);
                    self.election.publish_leader(&mut self.serving.kernel, *vip)?;
                    self.telemetry.leading(*vip, *epoch, why);
                }
                Command::Follow { vip, why } => {
                    self.announcements.end(*vip);
                    self.election.publish_leader(&mut self.serving.kernel, *vip)?;
                    self.telemetry.no_longer_leading(*vip, why);
                }
                Command::Reload => self.election.request_refresh(),
                Command::Probe { vip, detect } => probes.push((*vip, *detect)),
                Command::Forged { vip, by } => {
                    let macs = self.election.elector.macs_of(by);
                    self.announcements.conflicts.note_forged(*vip, by, &macs);
                }
                Command::Conflict { vip, mac } => self.announcements.conflicts.report_taken(*vip, *mac),
                // The executor has done these.
                Command::Assure { .. }
                | Command::Ask(_)
                | Command::AskPeers
                | Command::DiscardEvidence
                | Command::Extend(_)
                | Command::Heartbeat
                | Command::Publish(_)
                | Command::Send { .. }
                | Command::Store(_)
                | Command::Withdraw(_) => {}
            }
        }
        Ok(self.announcements.begin_probes(&probes, &self.serving)?)
    }
}
