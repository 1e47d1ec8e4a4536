//! All times of the election. The longest outage of an unplanned change is their sum:
//!
//! ```text
//!       last evidence            the leader's kernel         another node claims the VIP,
//!       that it leads            stops answering             answers and announces it
//!  ──────────┬────────────────────────┬──────────────────────────┬─────────►
//!            │         LEASE          │ LEASE / 50, LEASE_MARGIN │
//!            │         300 ms         │    6 ms        15 ms     │  = 321 ms
//! ```
//!
//! Peers are asked each `HEARTBEAT`, so the last evidence is 50 ms older than the failure on average: a VIP is
//! dark for 271 ms. Clocks of two nodes differ by 2 % at most, which is `LEASE / 50`.

use std::time::Duration;

// The fence deadline

/// The time from one round of heartbeats to the next.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// The time that the kernel answers after the last evidence, unless the settings differ.
pub const LEASE: Duration = Duration::from_millis(300);
/// The longest time between two answered questions that is no gap. Peers are asked each [`HEARTBEAT`].
pub(super) const EVIDENCE_GAP: Duration = Duration::from_millis(120);
/// The time within which lapses of the fence deadline count together.
pub(super) const LAPSE_WINDOW: Duration = Duration::from_mins(1);
/// The time without a lapse after which an unstable node is stable again. Even if it never gets better, the lapses
/// that make it unstable keep a VIP dark for less than 0.2 % of this time.
pub(super) const STABILITY_TIME: Duration = Duration::from_mins(5);

// Takeovers

/// A margin that is added to the time after which a silent peer's kernel no longer answers.
pub(super) const LEASE_MARGIN: Duration = Duration::from_millis(15);
/// The time until all nodes know that one is down. Where members ask samples of each other, nothing
/// else tells.
pub(super) const DOWN_PROPAGATION: Duration = Duration::from_millis(100);
/// The time for which a living leader may not know of its leadership yet.
pub(super) const CLAIM_GRACE: Duration = Duration::from_secs(1);
/// The time in which nodes hear each other's claims. Where their stores differ, nothing else tells that two take a
/// VIP at once.
pub(super) const CLAIM_PROPAGATION: Duration = Duration::from_millis(30);
/// The time that a node has to act on its turn.
pub(super) const TAKEOVER_TURN: Duration = Duration::from_millis(400);
/// The pause after a peer announced a VIP, if this node has led it for less than that. A read of the Lease
/// follows. Both take less than a second.
pub(super) const RETAKE_PAUSE: Duration = Duration::from_millis(900);

/// Returns when the deadline of a node with this lease has passed that rests on a question of that
/// time. Clocks differ by up to 2 %.
pub(super) fn past(lease: Duration, asked: Duration) -> Duration {
    asked + lease + lease / 50 + LEASE_MARGIN
}

// The start of an agent

/// The time after the start in which a node waits for the claims of others before it takes its own
/// VIPs again.
pub(super) const RESTART_WAIT: Duration = Duration::from_millis(500);
/// The time after the start in which a leader that is not heard of is left alone. In this time
/// nothing begins that depends on who else is there.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(3);
/// The time after the start in which a node hears others, if there are any. It takes the VIPs of
/// leaders that are gone within that time.
pub(super) const DISCOVERY_TIME: Duration = Duration::from_secs(10);

// Records and fencing

/// The promise of a node that need not fear a majority elsewhere. A store that answers within half of it
/// suspends nothing.
pub(super) const LONG_PROMISE: Duration = Duration::from_secs(2);
/// The time after which a minority no longer expects a majority elsewhere: it would have fenced this
/// node.
pub(super) const MINORITY_WAIT: Duration = Duration::from_secs(5);
/// The longest time from a failure of the store to the next question for evidence.
pub(super) const MAX_RECORD_BACKOFF: Duration = Duration::from_secs(1);
/// The time for which a node counts as fenced after its record said so.
pub(super) const FENCING_LIFETIME: Duration = Duration::from_secs(5);
/// The time after which a leader has read that it is fenced, and has stopped. Less than two questions to the LAN
/// are apart, with the jitter of a pause.
pub(super) const FENCED_LEADER_STOP: Duration = Duration::from_secs(8);
/// The time for which a node that answered a challenge is left alone.
pub(super) const CHALLENGE_PAUSE: Duration = Duration::from_secs(10);
/// The time for which a node whose record could not be read or written is left alone.
pub(super) const RECORD_RETRY: Duration = Duration::from_millis(200);

// The store

/// The time in which peers answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_millis(5);
/// The greatest age of questions whose answers count.
pub(super) const MAX_ANSWER_AGE: Duration = Duration::from_millis(50);
/// The time after which a node waits for the store no longer, if the peers suffice to decide. A
/// store that swallows requests would hold it up for seconds.
pub(super) const HEDGE_DELAY: Duration = Duration::from_millis(100);
/// The pause after another node was quicker, and between looks at what the peers answered.
pub(super) const SHORT_RETRY: Duration = Duration::from_millis(20);
/// The pause after which a node that waits for the answer of an unavailable store tries it again.
pub(super) const STORE_RETRY: Duration = Duration::from_millis(200);
/// The pause after which a node that only has to record its leadership tries an unavailable store again.
pub(super) const LEASE_WRITE_RETRY: Duration = Duration::from_secs(1);
/// The time for which the Lease of a VIP that is no longer wanted is kept.
pub(super) const LEASE_RETENTION: Duration = Duration::from_hours(1);

// Planned changes of leader

/// The time between two messages to a successor that does not answer.
pub(super) const TRANSFER_RESEND: Duration = Duration::from_millis(25);
/// The time for which messages to a successor are sent. After that, this node waits as long as the successor's
/// kernel may answer: the successor may have died before it could say that it leads. The messages are too old by
/// then ([`MembershipSettings::fresh`](crate::membership::MembershipSettings::fresh)).
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_millis(60);
/// The time for which a VIP is not transferred after a successor did not answer. It doubles each time. Mostly the
/// successor has just started, and is busy.
pub(super) const TRANSFER_BACKOFF: Duration = Duration::from_secs(1);
/// The time for which a VIP is not transferred after a successor declined it, and the longest [`TRANSFER_BACKOFF`].
pub(super) const MAX_TRANSFER_BACKOFF: Duration = Duration::from_secs(10);
/// The time from one batch of transfers for the sake of balance to the next.
pub(super) const BALANCE_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a VIP that no other node can take stays for good.
pub(super) const DRAIN_STALL: Duration = Duration::from_secs(1);
/// The longest time that an agent that was asked to stop waits for others to take its VIPs.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

// Questions to the LAN and to peers

/// The pause after which the LAN is asked once more whether a leader without a Node object answers.
pub(super) const DELETED_NODE_PROBE_PAUSE: Duration = Duration::from_millis(500);
/// The pause after which the LAN is asked again for an address that has another owner.
pub(super) const ADDRESS_PROBE_PAUSE: Duration = Duration::from_secs(10);
/// The time after the last forged announcement for which announcements do not silence the VIP.
pub(super) const FORGERY_WINDOW: Duration = Duration::from_mins(1);
/// The time after which a peer that has not answered is asked again.
pub(super) const PEER_QUESTION_RETRY: Duration = Duration::from_millis(30);
/// The time from one look at the Leases to the next while a VIP is assured.
pub(super) const LEASE_READ_INTERVAL: Duration = Duration::from_secs(10);

// Work

/// The shortest time from one evaluation to the next.
pub(super) const EVALUATION_SPACING: Duration = Duration::from_millis(5);
/// The part of that time for each VIP without a leader: about five times as long as its evaluation takes.
pub(super) const EVALUATION_SPACING_PER_VIP: Duration = Duration::from_micros(2);
