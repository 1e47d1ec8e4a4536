//! SWIM (Das, Gupta and Motivala, 2002), as the crate foca has it: who is alive, and how all learn of it. Here: what is ours
//! of it, which is identities, settings, and whom it may hear of.

use std::{collections::BTreeMap, num::NonZero};

use foca::{AccumulatingRuntime, Config, Error, Foca, Member, NoCustomBroadcast, PeriodicParams, PostcardCodec, State};
use rand_core::SeedableRng;
use rand_xorshift::XorShiftRng;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use crate::{
    membership::{
        Settings,
        wire::{MOST_PAYLOAD, Malformed, SWIM_OVERHEAD},
    },
    model::NodeName,
};

/// Members that are asked to probe another, and that gossip goes to.
const FEW: NonZero<usize> = NonZero::new(3).unwrap();
/// Longest packet, bytes.
const MOST_PACKET: NonZero<usize> = NonZero::new(MOST_PAYLOAD - SWIM_OVERHEAD).unwrap();

/// A member: two integers, which make for small packets and quick comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Identity {
    /// [`Identity::key`] of the node's name.
    pub(super) node: u64,
    /// Of a node's identities the one with the highest generation is alive. Once it was held for down, it takes the next.
    pub(super) generation: u64,
}

impl Identity {
    /// XxHash64, seed 0. Of two Nodes with the same, which none may live to see, only one would be a member.
    pub(super) fn key(name: &NodeName) -> u64 {
        XxHash64::oneshot(0, name.0.as_bytes())
    }
}

impl foca::Identity for Identity {
    type Addr = u64;

    fn renew(&self) -> Option<Self> {
        self.generation.checked_add(1).map(|generation| Self { generation, ..*self })
    }

    fn addr(&self) -> u64 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.generation > adversary.generation
    }
}

/// What foca says after each call.
pub(super) type Outputs = AccumulatingRuntime<Identity>;

/// The failure detector.
pub(super) struct Swim {
    foca: Foca<Identity, PostcardCodec, XorShiftRng, NoCustomBroadcast>,
    config: Config,
    pub(super) outputs: Outputs,
}

impl Swim {
    pub(super) fn new(identity: Identity, seed: u64, settings: &Settings) -> Self {
        let config = Config {
            probe_period: settings.probe_period,
            probe_rtt: settings.probe_rtt,
            num_indirect_probes: FEW,
            max_transmissions: transmissions(1),
            suspect_to_down_after: settings.suspicion,
            // Only nodes of the manifests are ever heard of, so it is no matter of memory.
            remove_down_after: None,
            max_packet_size: MOST_PACKET,
            notify_down_members: true,
            // `Membership::join` does both: it also knows the nodes that were never heard of.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams { frequency: settings.gossip, num_members: FEW }),
        };
        let foca = Foca::new(identity, config.clone(), XorShiftRng::seed_from_u64(seed), PostcardCodec);
        Self { foca, config, outputs: Outputs::new() }
    }

    pub(super) fn identity(&self) -> Identity {
        *self.foca.identity()
    }

    /// Fits itself to a cluster of so many nodes.
    pub(super) fn expect(&mut self, nodes: usize) {
        self.config.max_transmissions = transmissions(nodes);
        self.configure();
    }

    /// Whether it tells those who are down that they are.
    pub(super) fn notify(&mut self, notify: bool) {
        if self.config.notify_down_members != notify {
            self.config.notify_down_members = notify;
            self.configure();
        }
    }

    fn configure(&mut self) {
        // Refused where other settings change.
        let _ = self.foca.set_config(self.config.clone());
    }

    pub(super) fn announce(&mut self, to: Identity) -> Result<(), Error> {
        self.foca.announce(to, &mut self.outputs)
    }

    pub(super) fn gossip(&mut self) -> Result<(), Error> {
        self.foca.gossip(&mut self.outputs)
    }

    pub(super) fn timer(&mut self, timer: foca::Timer<Identity>) -> Result<(), Error> {
        self.foca.handle_timer(timer, &mut self.outputs)
    }

    pub(super) fn receive(&mut self, packet: &[u8]) -> Result<(), Error> {
        self.foca.handle_data(packet, &mut self.outputs)
    }

    /// Learns of one member, and tells others if `spread`.
    pub(super) fn learn(&mut self, identity: Identity, state: State, spread: bool) -> Result<(), Error> {
        self.foca.apply_many([Member::new(identity, 0, state)].into_iter(), spread, &mut self.outputs)
    }

    /// Takes a generation that is newer than `known` of ourselves.
    pub(super) fn outdo(&mut self, known: u64) -> Result<(), Error> {
        let generation = known.saturating_add(1);
        self.foca.change_identity(Identity { generation, ..self.identity() }, &mut self.outputs)
    }

    pub(super) fn leave(&mut self) -> Result<(), Error> {
        self.foca.leave_cluster(&mut self.outputs)
    }

    /// Forgets a member, without a word to others.
    pub(super) fn forget(&mut self, identity: Identity) -> Result<(), Error> {
        self.learn(identity, State::Down, false)?;
        self.timer(foca::Timer::RemoveDown(identity))
    }

    /// Forgets who is down, and that others should hear of it. Timers from before must not come any more.
    pub(super) fn forgive(&mut self, seed: u64) -> Result<(), Error> {
        let alive: Vec<_> = self.foca.iter_members().cloned().collect();
        let rng = XorShiftRng::seed_from_u64(seed);
        self.foca = Foca::new(self.identity(), self.config.clone(), rng, PostcardCodec);
        self.foca.apply_many(alive.into_iter(), false, &mut self.outputs)
    }
}

/// How often an update is passed on: enough for the last node to hear of it in spite of losses, and it grows as slowly as
/// rumours spread.
fn transmissions(nodes: usize) -> NonZero<u8> {
    let digits = u8::try_from(nodes.max(1).ilog10()).unwrap_or(u8::MAX);
    NonZero::new(digits.saturating_mul(3).saturating_add(8)).unwrap_or(NonZero::<u8>::MIN)
}

/// The packet with those updates only that are about `nodes`, and, unless `downs`, none that holds somebody for down. An
/// error where it is not one of SWIM's, or not from `from`.
pub(super) fn admitted(
    packet: &[u8],
    from: u64,
    nodes: &BTreeMap<u64, NodeName>,
    downs: bool,
) -> Result<Vec<u8>, Malformed> {
    let (header, rest) = postcard::take_from_bytes::<foca::Header<Identity>>(packet).map_err(Malformed::Undecodable)?;
    if header.src.node != from {
        return Err(Malformed::Misnamed);
    }
    let mut admitted = packet[..packet.len() - rest.len()].to_vec();
    // As `foca::Header` says: a count of two bytes, big-endian, and as many members.
    let Some((count, mut members)) = rest.split_first_chunk::<2>() else {
        admitted.extend_from_slice(rest);
        return Ok(admitted);
    };
    let at = admitted.len();
    admitted.extend_from_slice(count);
    let mut kept: u16 = 0;
    for _ in 0..u16::from_be_bytes(*count) {
        let (member, rest) = postcard::take_from_bytes::<Member<Identity>>(members).map_err(Malformed::Undecodable)?;
        if nodes.contains_key(&member.id().node) && (downs || member.state() != State::Down) {
            admitted.extend_from_slice(&members[..members.len() - rest.len()]);
            kept += 1;
        }
        members = rest;
    }
    admitted[at..at + 2].copy_from_slice(&kept.to_be_bytes());
    admitted.extend_from_slice(members);
    Ok(admitted)
}
