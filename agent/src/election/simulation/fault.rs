//! What is done to a cluster.

use super::{Access, Happening, Turn, World, vip};

/// One thing that goes wrong, or right again. Nodes and VIPs by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The agent begins.
    Start(usize),
    /// It dies; the kernel goes on.
    Crash(usize),
    /// The whole node does.
    PowerOff(usize),
    /// SIGSTOP, and SIGCONT.
    Pause(usize),
    Resume(usize),
    /// The carrier goes, and comes.
    Unplug(usize),
    Plug(usize),
    /// The node is cut off behind the switch, and is not any more.
    Cut(usize),
    Mend(usize),
    /// So much gossip is lost, of a thousand.
    Loss(u64),
    /// So many announcements.
    LanLoss(u64),
    /// Gossip takes so long at most, microseconds.
    Delay(u64),
    /// Gossip does not get through from the first to the second.
    Deaf(usize, usize),
    /// Nor does the LAN.
    LanDeaf(usize, usize),
    /// The node is on the other side of a LAN in two parts.
    Aside(usize),
    /// How the store is for a node.
    Access(usize, Access),
    /// The networks and the store are whole, and everybody is on them.
    Heal,
    /// As that, and every agent runs.
    Recover,
    /// The agent is told to lead nothing, or that it may again.
    Drain(usize, bool),
    /// SIGTERM.
    Stop(usize),
    /// The Node is cordoned, or is not any more.
    Cordon(usize, bool),
    /// A VIP comes, or goes.
    Want(usize, bool),
    /// Somebody announces a VIP with a peer's MAC.
    Spoof {
        vip: usize,
        by: usize,
    },
    /// Somebody else has the address, or no longer.
    Stranger(usize, bool),
    /// Everything has settled: moves and writes count from now on.
    Mark,
}

impl World {
    pub(super) fn fault(&mut self, fault: &Fault) {
        self.tell(None, || format!("** {fault:?}"));
        if *fault != Fault::Mark {
            self.checker.disturbed = self.now;
        }
        match *fault {
            Fault::Start(node) => self.start(node),
            Fault::Crash(node) => self.kill(node),
            Fault::PowerOff(node) => {
                self.kill(node);
                let led: Vec<_> = self.nodes[node].kernel.flags.iter().copied().collect();
                for vip in led {
                    self.set_flag(node, vip, false);
                }
            }
            Fault::Pause(node) => self.pause(node),
            Fault::Resume(node) => self.resume(node),
            Fault::Unplug(node) => {
                self.network.unplugged.insert(node);
                self.notice_link(node);
            }
            Fault::Plug(node) => {
                self.network.unplugged.remove(&node);
                self.nodes[node].since = self.now;
                self.notice_link(node);
            }
            Fault::Cut(node) => {
                self.network.cut.insert(node);
            }
            Fault::Mend(node) => {
                self.network.cut.remove(&node);
                self.nodes[node].since = self.now;
            }
            Fault::Loss(loss) => self.network.loss = loss,
            Fault::LanLoss(loss) => self.network.lan_loss = loss,
            Fault::Delay(delay) => self.network.delay = delay,
            Fault::Deaf(from, to) => {
                self.network.deaf.insert((from, to));
            }
            Fault::LanDeaf(from, to) => {
                self.network.lan_deaf.insert((from, to));
            }
            Fault::Aside(node) => {
                self.network.aside.insert(node);
            }
            Fault::Access(node, access) => self.nodes[node].access = access,
            Fault::Heal => self.heal(),
            Fault::Recover => {
                self.heal();
                for node in 0..self.nodes.len() {
                    self.resume(node);
                    self.drain(node, false, false);
                    self.nodes[node].cordoned = false;
                    let after = self.dice.millis(0, 20);
                    self.after(after, Happening::Fault(Fault::Start(node)));
                }
                self.strangers.clear();
                self.contend();
            }
            Fault::Drain(node, drains) => self.drain(node, drains, false),
            Fault::Stop(node) => self.drain(node, true, true),
            Fault::Cordon(node, cordoned) => {
                self.nodes[node].cordoned = cordoned;
                self.contend();
            }
            Fault::Want(number, wanted) => {
                let vip = vip(number);
                if wanted {
                    self.vips.insert(vip);
                } else {
                    self.vips.remove(&vip);
                }
                self.checker.forget(vip);
                self.contend();
            }
            Fault::Spoof { vip: number, by } => {
                for node in 0..self.nodes.len() {
                    self.hear(node, by, vip(number));
                }
            }
            Fault::Stranger(number, there) => {
                if there {
                    self.strangers.insert(vip(number))
                } else {
                    self.strangers.remove(&vip(number))
                };
            }
            Fault::Mark => self.checker.mark(&self.server),
        }
        self.checker.touch_all();
    }

    fn heal(&mut self) {
        let plugged: Vec<_> = std::mem::take(&mut self.network.unplugged).into_iter().collect();
        plugged.iter().chain(&self.network.cut).for_each(|node| self.nodes[*node].since = self.now);
        self.network = super::Network::new();
        for node in plugged {
            self.notice_link(node);
        }
        self.nodes.iter_mut().for_each(|node| node.access = Access::Open);
    }

    fn notice_link(&mut self, node: usize) {
        let after = self.dice.millis(1, 20);
        self.turn_after(node, after, Turn::Sync { looked: false });
    }

    /// Whether an agent runs there that can lead.
    pub(super) fn is_there(&self, node: usize) -> bool {
        let at = &self.nodes[node];
        at.agent.is_some() && at.paused.is_none() && self.network.is_on(node)
    }
}
