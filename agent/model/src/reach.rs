//! How a node reaches the others on a segment.

use serde::{Deserialize, Serialize};

/// How a node reaches the others on a segment; a greater one is better. A node whose path is cut has
/// a lower one than others on the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SegmentReach {
    /// No other node answers, and no frame comes in.
    Deaf,
    /// No other node answers, but frames come in.
    Heard,
    /// Another node answers.
    Answered,
}
