//! The faults, and their effects on the world.

use std::{collections::BTreeSet, time::Duration};

use super::{
    AgentEvent, Build, StoreAccess, World, WorldEvent,
    cluster::{Interruption, NodeObject},
    network::Network,
    vip,
};
use vipmux_model::Vip;

/// A fault, or its end. Nodes and VIPs are given by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The agent begins.
    Start(usize),
    /// The agent dies. The kernel goes on.
    Crash(usize),
    /// The agent dies or is stopped between two commands, and starts again or goes on.
    Interrupt(usize, Interruption),
    /// The whole node dies.
    PowerOff(usize),
    /// SIGSTOP, and SIGCONT.
    Pause(usize),
    Resume(usize),
    /// The event loop stands still, as in a system call, and goes on with [`Fault::Resume`].
    Hang(usize),
    /// The node's source takes that long to read the objects again, until the networks are whole.
    SlowSource(usize, Duration),
    /// The hypervisor stops the whole machine with its clocks, and lets it go on. The agent goes on
    /// with [`Fault::Resume`].
    Freeze(usize),
    Thaw(usize),
    /// The node's next agent is this build.
    Install(usize, Build),
    /// The carrier goes, and comes.
    Unplug(usize),
    Plug(usize),
    /// The node is cut off behind the switch, and is not any more.
    Cut(usize),
    Mend(usize),
    /// The gossip that is lost, of a thousand.
    Loss(u64),
    /// The announcements that are lost, of a thousand, for each node and for the clients.
    LanLoss(u64),
    /// The longest delay of gossip, microseconds.
    Delay(u64),
    /// Gossip does not get through from the first to the second.
    Deaf(usize, usize),
    /// The LAN does not get through from the first to the second.
    LanDeaf(usize, usize),
    /// The node is on the other side of a LAN in two parts.
    Aside(usize),
    /// The access of a node to the store.
    Access(usize, StoreAccess),
    /// The networks and the store are whole, and all nodes are on them.
    Heal,
    /// The same, and every agent runs.
    Recover,
    /// The agent is asked to drain, or its drain ends.
    Drain(usize, bool),
    /// SIGTERM.
    Stop(usize),
    /// The Node is cordoned, or is not any more.
    Cordon(usize, bool),
    /// The Node object is deleted, or made again.
    Delete(usize, bool),
    /// A VIP comes, or goes.
    Want(usize, bool),
    /// Somebody announces a VIP with a peer's MAC. As this goes on for long, it is no time from which
    /// an answer may take longer.
    Spoof {
        vip: usize,
        by: usize,
    },
    /// A foreign speaker has the address, or no longer.
    ForeignSpeaker(usize, bool),
    /// Switches begin to answer in the names of nodes that are gone, or end it.
    Proxy(bool),
    /// Somebody deletes the Lease of a VIP.
    Erase(usize),
    /// Everything has settled: moves and writes count from now on.
    Mark,
}

/// Adds the VIP to the set, or removes it.
fn set_present(vips: &mut BTreeSet<Vip>, vip: Vip, present: bool) {
    if present {
        vips.insert(vip)
    } else {
        vips.remove(&vip)
    };
}

impl World {
    pub(super) fn fault(&mut self, fault: &Fault) {
        self.log(None, || format!("** {fault:?}"));
        if !matches!(fault, Fault::Mark | Fault::Spoof { .. }) {
            self.checker.disturbed = self.schedule.now;
        }
        match *fault {
            Fault::Start(node) => self.at(node).start(),
            Fault::Crash(node) => self.at(node).kill(),
            Fault::Interrupt(node, interruption) => self.cluster.nodes[node].interruption = Some(interruption),
            Fault::PowerOff(node) => self.power_off(node),
            Fault::Pause(node) => self.at(node).pause(),
            Fault::Hang(node) => self.at(node).hang(),
            Fault::SlowSource(node, takes) => self.cluster.nodes[node].reload = Some(takes),
            Fault::Resume(node) => self.at(node).resume(),
            Fault::Freeze(node) => self.freeze(node),
            Fault::Thaw(node) => self.thaw(node),
            Fault::Install(node, build) => self.cluster.nodes[node].build = build,
            Fault::Unplug(node) => {
                self.cluster.network.unplugged.insert(node);
                self.notice_link(node);
            }
            Fault::Plug(node) => self.plug(node),
            Fault::Cut(node) => {
                self.cluster.network.cut.insert(node);
            }
            Fault::Mend(node) => {
                self.cluster.network.cut.remove(&node);
                self.cluster.nodes[node].since = self.schedule.now;
            }
            Fault::Loss(loss) => self.cluster.network.loss = loss,
            Fault::LanLoss(loss) => self.cluster.network.lan_loss = loss,
            Fault::Delay(delay) => self.cluster.network.delay = delay,
            Fault::Deaf(from, to) => {
                self.cluster.network.deaf.insert((from, to));
            }
            Fault::LanDeaf(from, to) => {
                self.cluster.network.lan_deaf.insert((from, to));
            }
            Fault::Aside(node) => {
                self.cluster.network.aside.insert(node);
            }
            // A disk answers in time, or not at all.
            Fault::Access(_, StoreAccess::Slow(_)) if self.servers.len() > 1 => {}
            Fault::Access(node, access) => self.cluster.nodes[node].access = access,
            Fault::Heal => self.heal(),
            Fault::Recover => self.recover(),
            Fault::Drain(node, drains) => self.at(node).drain(drains, false),
            Fault::Stop(node) => self.at(node).drain(true, true),
            Fault::Cordon(node, cordoned) => {
                self.cluster.nodes[node].object = if cordoned { NodeObject::Cordoned } else { NodeObject::Schedulable };
                self.update_wanted();
            }
            Fault::Delete(node, deleted) => {
                self.cluster.nodes[node].object = if deleted { NodeObject::Deleted } else { NodeObject::Schedulable };
                self.update_wanted();
            }
            Fault::Want(number, wanted) => self.want(vip(number), wanted),
            Fault::Spoof { vip: number, by } => {
                // A node takes its own MAC for a reflection.
                for node in (0..self.cluster.nodes.len()).filter(|node| *node != by) {
                    self.at(node).hear(by, vip(number), true);
                }
            }
            Fault::ForeignSpeaker(number, there) => {
                set_present(&mut self.cluster.foreign_speakers, vip(number), there);
            }
            Fault::Proxy(proxies) => self.cluster.proxies = proxies,
            Fault::Erase(number) => {
                let vip = vip(number);
                self.servers.iter_mut().for_each(|server| drop(server.leases.remove(&vip)));
                self.checker.erased(vip);
                self.notify_watches(vip, 0);
            }
            Fault::Mark => self.checker.mark(&self.servers),
        }
        self.checker.touch_all();
    }

    fn freeze(&mut self, node: usize) {
        if self.cluster.nodes[node].frozen.is_none() {
            self.at(node).pause();
            self.cluster.nodes[node].frozen = Some(self.schedule.now);
            self.cluster.network.cut.insert(node);
        }
    }

    fn thaw(&mut self, node: usize) {
        let now = self.schedule.now;
        let at = &mut self.cluster.nodes[node];
        if let Some(since) = at.frozen.take() {
            at.clock.go_on(since, now);
            at.since = now;
            self.cluster.network.cut.remove(&node);
        }
    }

    fn plug(&mut self, node: usize) {
        self.cluster.network.unplugged.remove(&node);
        self.cluster.nodes[node].since = self.schedule.now;
        self.notice_link(node);
    }

    fn power_off(&mut self, node: usize) {
        self.at(node).kill();
        self.cluster.nodes[node].off = true;
        let led: Vec<_> = self.cluster.nodes[node].kernel.flags.iter().copied().collect();
        for vip in led {
            self.at(node).set_flag(vip, false);
        }
    }

    fn want(&mut self, vip: Vip, wanted: bool) {
        set_present(&mut self.cluster.vips, vip, wanted);
        self.checker.forget(vip);
        self.update_wanted();
    }

    fn recover(&mut self) {
        self.heal();
        for node in 0..self.cluster.nodes.len() {
            self.thaw(node);
            self.at(node).resume();
            self.at(node).drain(false, false);
            self.cluster.nodes[node].object = NodeObject::Schedulable;
            let after = self.dice.millis(0, 20);
            self.schedule.after(after, WorldEvent::Fault(Fault::Start(node)));
        }
        self.cluster.foreign_speakers.clear();
        self.cluster.proxies = false;
        self.update_wanted();
    }

    fn heal(&mut self) {
        let plugged: Vec<_> = std::mem::take(&mut self.cluster.network.unplugged).into_iter().collect();
        plugged
            .iter()
            .chain(&self.cluster.network.cut)
            .for_each(|node| self.cluster.nodes[*node].since = self.schedule.now);
        self.cluster.network = Network::new();
        for node in plugged {
            self.notice_link(node);
        }
        for node in &mut self.cluster.nodes {
            (node.access, node.reload, node.interruption) = (StoreAccess::Open, None, None);
        }
    }

    fn notice_link(&mut self, node: usize) {
        let after = self.dice.millis(1, 20);
        self.schedule_agent(node, after, AgentEvent::Sync { looked: false });
    }
}
