//! The failure detector: SWIM (Das, Gupta and Motivala, 2002), by the crate foca.
//!
//! This module adds identities and settings, and limits the nodes that SWIM may hear of.

use std::{collections::BTreeMap, num::NonZero};

use foca::{AccumulatingRuntime, Config, Error, Foca, Member, NoCustomBroadcast, PeriodicParams, PostcardCodec, State};
use rand_core::SeedableRng;
use rand_xorshift::XorShiftRng;

use crate::membership::{
    MembershipSettings,
    member_id::MemberId,
    payload::MOST_PAYLOAD,
    wire::{Malformed, SWIM_OVERHEAD},
};
use vipmux_model::NodeName;

/// The number of members that are asked to probe another one, and that gossip goes to.
const FEW: NonZero<usize> = NonZero::new(3).unwrap();
/// The longest packet, bytes.
const MOST_PACKET: NonZero<usize> = NonZero::new(MOST_PAYLOAD - SWIM_OVERHEAD).unwrap();

/// The outputs of foca after each call.
pub(super) type Outputs = AccumulatingRuntime<MemberId>;

/// The failure detector.
pub(super) struct Swim {
    foca: Foca<MemberId, PostcardCodec, XorShiftRng, NoCustomBroadcast>,
    config: Config,
    pub(super) outputs: Outputs,
    /// The timer of the next probe, while heartbeats suffice.
    pub(super) probe: Option<foca::Timer<MemberId>>,
    /// The timer of the next gossip, which goes out with heartbeats.
    pub(super) gossip: Option<foca::Timer<MemberId>>,
}

impl Swim {
    pub(super) fn new(identity: MemberId, seed: u64, settings: &MembershipSettings) -> Self {
        let config = Config {
            probe_period: settings.probe_period,
            probe_rtt: settings.probe_rtt,
            num_indirect_probes: FEW,
            max_transmissions: transmissions(1),
            suspect_to_down_after: settings.suspicion,
            // Only Nodes of the cluster are ever heard of, so memory is bounded.
            remove_down_after: None,
            max_packet_size: MOST_PACKET,
            notify_down_members: true,
            // `Membership::join` does both: it also knows the nodes that were never heard of.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams { frequency: settings.gossip, num_members: FEW }),
        };
        let foca = Foca::new(identity, config.clone(), XorShiftRng::seed_from_u64(seed), PostcardCodec);
        Self { foca, config, outputs: Outputs::new(), probe: None, gossip: None }
    }

    pub(super) fn identity(&self) -> MemberId {
        *self.foca.identity()
    }

    /// Adapts to a cluster of this many nodes.
    pub(super) fn expect(&mut self, nodes: usize) {
        self.config.max_transmissions = transmissions(nodes);
        self.configure();
    }

    /// Sets whether nodes that are down get notified.
    pub(super) fn notify(&mut self, notify: bool) {
        if self.config.notify_down_members != notify {
            self.config.notify_down_members = notify;
            self.configure();
        }
    }

    fn configure(&mut self) {
        // It is refused if other settings change.
        let _ = self.foca.set_config(self.config.clone());
    }

    pub(super) fn announce(&mut self, to: MemberId) -> Result<(), Error> {
        self.foca.announce(to, &mut self.outputs)
    }

    pub(super) fn gossip(&mut self) -> Result<(), Error> {
        self.foca.gossip(&mut self.outputs)
    }

    pub(super) fn timer(&mut self, timer: foca::Timer<MemberId>) -> Result<(), Error> {
        self.foca.handle_timer(timer, &mut self.outputs)
    }

    pub(super) fn receive(&mut self, packet: &[u8]) -> Result<(), Error> {
        self.foca.handle_data(packet, &mut self.outputs)
    }

    /// Takes in the state of a member. Gossips it if `spread`.
    pub(super) fn learn(&mut self, identity: MemberId, state: State, spread: bool) -> Result<(), Error> {
        self.foca.apply_many([Member::new(identity, 0, state)].into_iter(), spread, &mut self.outputs)
    }

    /// Takes a generation that is newer than `known`.
    pub(super) fn outdo(&mut self, known: u64) -> Result<(), Error> {
        let generation = known.saturating_add(1);
        self.foca.change_identity(MemberId { generation, ..self.identity() }, &mut self.outputs)
    }

    pub(super) fn leave(&mut self) -> Result<(), Error> {
        self.foca.leave_cluster(&mut self.outputs)
    }

    /// Forgets a member without gossip.
    pub(super) fn forget(&mut self, identity: MemberId) -> Result<(), Error> {
        self.learn(identity, State::Down, false)?;
        self.timer(foca::Timer::RemoveDown(identity))
    }

    /// Forgets which nodes are down, and the gossip about it. Timers from before must not be
    /// handled any more.
    pub(super) fn forget_downs(&mut self, seed: u64) -> Result<(), Error> {
        let alive: Vec<_> = self.foca.iter_members().cloned().collect();
        let rng = XorShiftRng::seed_from_u64(seed);
        (self.probe, self.gossip) = (None, None);
        self.foca = Foca::new(self.identity(), self.config.clone(), rng, PostcardCodec);
        self.foca.apply_many(alive.into_iter(), false, &mut self.outputs)
    }
}

/// Returns how often an update is passed on: enough for the last node to hear of it in spite of
/// losses. It grows with the logarithm of the number of nodes.
fn transmissions(nodes: usize) -> NonZero<u8> {
    let digits = u8::try_from(nodes.max(1).ilog10()).unwrap_or(u8::MAX);
    NonZero::new(digits.saturating_mul(3).saturating_add(8)).unwrap_or(NonZero::<u8>::MIN)
}

/// Returns the packet with only the updates about `nodes`. Unless `downs`, it also drops updates
/// that consider a node down. Fails if the packet is not one of SWIM's, or not from `from`.
pub(super) fn admitted(
    packet: &[u8],
    from: u64,
    nodes: &BTreeMap<u64, NodeName>,
    downs: bool,
) -> Result<Vec<u8>, Malformed> {
    let (header, rest) = postcard::take_from_bytes::<foca::Header<MemberId>>(packet).map_err(Malformed::Undecodable)?;
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
        let (member, rest) = postcard::take_from_bytes::<Member<MemberId>>(members).map_err(Malformed::Undecodable)?;
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
