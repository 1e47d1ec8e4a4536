//! One node's state machine at the bench: fed by hand, and what it says put into words.

mod answering;
mod handing_over;
mod properties;
mod taking_over;
mod transitions;

use std::{net::Ipv4Addr, sync::Arc};

use imbl::OrdMap;
use vipmux_common::abi::Mac;

use super::{lease::Version, *};
use crate::membership::{self, Claimed, Message, Peer, State, Why};

const T: Duration = Duration::from_secs(100);
const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn vip(last: u8) -> Vip {
    Vip(Ipv4Addr::new(192, 0, 2, last).into())
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn version(text: &str) -> Version {
    Version(text.to_owned())
}

fn lease(holder: &str, epoch: u64, text: &str) -> Lease {
    Lease { holder: node(holder), epoch, version: version(text) }
}

fn peer(standing: Standing, now: Duration) -> Peer {
    let state = State { ready: true, ..State::default() };
    Peer {
        standing,
        since: now,
        generation: 1,
        heard: Some(now),
        silent: None,
        answered: Some(now),
        current: Some(now),
        state,
    }
}

fn claimed(epoch: u64) -> Claimed {
    Claimed { epoch, why: Why::First, since: T }
}

/// The node `a` of three, with the state of its peers and a clock.
struct Bench {
    election: Election,
    peers: Peers,
    now: Duration,
    commands: Vec<Command>,
}

impl Bench {
    /// It contends for `.1`; `b` and `c` are alive and there is evidence.
    fn new(settings: Settings) -> Self {
        let mut members = BTreeMap::new();
        for name in ["b", "c"] {
            members.insert(node(name), peer(Standing::Alive, T));
        }
        let peers = Peers { members, evidence: Some(T), majority: true };
        let mut bench = Self { election: Election::new(node("a"), settings, T), peers, now: T, commands: Vec::new() };
        bench.want(&["a"]);
        bench
    }

    fn ready() -> Self {
        let mut bench = Self::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
        bench.tick().later(ms(20)).give(Input::Peers);
        bench
    }

    /// As [`Self::ready`], and it leads `.1` in epoch 1.
    fn leading() -> Self {
        let mut bench = Self::ready();
        bench.give(Input::Stored { vip: vip(1), outcome: Outcome::Read(None) });
        bench.give(Input::Stored { vip: vip(1), outcome: Outcome::Swapped(version("v1")) });
        assert_eq!(bench.role(), Role::Leading);
        bench.commands.clear();
        bench
    }

    /// As [`Self::ready`], and `b` leads `.1` in epoch 4.
    fn following() -> Self {
        let mut bench = Self::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.claim("b", 4);
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip(1), lease("b", 4, "v4"))])) });
        bench.tick();
        assert_eq!(bench.leader(), Some("b"));
        bench.commands.clear();
        bench
    }

    fn want(&mut self, contenders: &[&str]) {
        let contender = |name: &&str| Contender { node: node(name), weight: 1, excluded: false, cordoned: false };
        let contenders: Contenders = contenders.iter().map(contender).collect();
        self.give(Input::Wanted(Arc::new([(vip(1), contenders)].into())));
    }

    fn claim(&mut self, name: &str, epoch: u64) {
        self.peer(name).state.claims.insert(vip(1), claimed(epoch));
    }

    fn peer(&mut self, name: &str) -> &mut Peer {
        self.peers.members.get_mut(&node(name)).unwrap()
    }

    fn falls(&mut self, name: &str, standing: Standing) {
        let now = self.now;
        let peer = self.peer(name);
        (peer.standing, peer.since) = (standing, now);
        peer.silent = peer.heard.filter(|_| standing == Standing::Down);
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.commands.extend(self.election.handle(input, &self.peers, self.now));
        self
    }

    /// A heartbeat with fresh evidence.
    fn tick(&mut self) -> &mut Self {
        self.peers.evidence = Some(self.now);
        self.give(Input::Tick { carrier: true })
    }

    /// So many heartbeats.
    fn ticks(&mut self, count: u32) -> &mut Self {
        for _ in 0..count {
            self.now += HEARTBEAT;
            self.tick();
        }
        self
    }

    fn later(&mut self, by: Duration) -> &mut Self {
        self.now += by;
        self
    }

    fn role(&self) -> Role {
        self.election.leadership(vip(1)).unwrap().role
    }

    fn leader(&self) -> Option<&str> {
        let place = &self.election.places[&vip(1)];
        if place.tenure.is_some() { Some("a") } else { place.hold.as_ref().map(|hold| hold.node.0.as_str()) }
    }

    /// What was said about leading and to the store, the LAN and the peers since the last call.
    fn said(&mut self) -> Vec<String> {
        let said = std::mem::take(&mut self.commands);
        let line = |command: &Command| {
            Some(match command {
                Command::Ask | Command::Extend(_) | Command::Publish(Item::Ready(_)) => return None,
                Command::Follow { why, .. } => format!("follow: {why}"),
                Command::Lead { epoch, why, .. } => format!("lead {epoch}: {why}"),
                Command::Gather => "gather".into(),
                Command::Renounce => "renounce".into(),
                Command::Read(_) => "read".into(),
                Command::Swap { expected, epoch, .. } => match expected {
                    Some(version) => format!("swap {version} for {epoch}"),
                    None => format!("create {epoch}"),
                },
                Command::Survey => "survey".into(),
                Command::Delete { version, .. } => format!("delete {version}"),
                Command::Tell { to, message } => match message {
                    Message::Take { epoch, .. } => format!("{to}: take {epoch}"),
                    Message::Taken { epoch, .. } => format!("{to}: taken {epoch}"),
                    Message::Declined { epoch, .. } => format!("{to}: declined {epoch}"),
                },
                Command::Publish(Item::Claim { epoch, .. }) => format!("claim {epoch}"),
                Command::Publish(item) => format!("publish {item:?}"),
                Command::Withdraw(Key::Claim(_)) => "withdraw".into(),
                Command::Withdraw(key) => format!("withdraw {key:?}"),
                Command::Probe { detect, .. } => if *detect { "detect" } else { "ask the LAN" }.into(),
                Command::Conflict { .. } => "conflict".into(),
            })
        };
        said.iter().filter_map(line).collect()
    }
}

fn read(lease: Option<Lease>) -> Input {
    Input::Stored { vip: vip(1), outcome: Outcome::Read(lease) }
}

fn swapped(text: &str) -> Input {
    Input::Stored { vip: vip(1), outcome: Outcome::Swapped(version(text)) }
}

fn stored(outcome: Outcome) -> Input {
    Input::Stored { vip: vip(1), outcome }
}

fn told(from: &str, message: Message) -> Input {
    Input::Told { from: node(from), message }
}

fn probed(found: Found) -> Input {
    Input::Probed { vip: vip(1), found }
}
