//! Defines how long a freed place in a map rests before reuse.

use std::time::Duration;

/// The time that a freed place in a map stays unused. It is far longer than a program runs, so no
/// packet in flight finds another owner's entry there.
///
/// It applies within one agent's life. A restart takes longer than a packet.
pub const REST: Duration = Duration::from_secs(1);
