//! Decodes who leads a VIP and why, as this node's agent last wrote it.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use serde::{Serialize, Serializer};
use vipmux_common::abi::{Leader, NodeLabel, Role, Why};

use super::clock::Clock;

/// A code of the maps; `Err`: an unknown number, from a newer agent. In JSON it is the name or the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<T>(pub Result<T, u32>);

impl<T: Display> Serialize for Code<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(known) => serializer.collect_str(known),
            Err(code) => serializer.serialize_u32(*code),
        }
    }
}

impl<T: Display> Display for Code<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(known) => known.fmt(f),
            Err(code) => code.fmt(f),
        }
    }
}

/// The leadership of a VIP. All fields are `None` if the agent wrote nothing about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VipLeadership {
    /// The leader's name; `?`: the node is gone; `None`: no known leader.
    pub leader: Option<String>,
    /// This node's role.
    pub role: Option<Code<Role>>,
    /// Seconds since the leader changed; for another node, since this node learned of it.
    pub since_s: Option<u64>,
    /// The reason of the last change.
    pub why: Option<Code<Why>>,
    /// The other node that the reason names; `?`: it is gone.
    pub other: Option<String>,
}

impl VipLeadership {
    /// Decodes an entry of `LEADERS`. `nodes`: the names by index in `NODES`.
    pub fn new(leader: &Leader, nodes: &BTreeMap<u32, NodeLabel>, clock: &Clock) -> Self {
        let name = |reference: u32| {
            let index = reference.checked_sub(1)?;
            Some(nodes.get(&index).map_or_else(|| "?".to_owned(), ToString::to_string))
        };
        Self {
            leader: name(leader.node),
            role: Some(Code(Role::of(leader.role))),
            since_s: Some(clock.passed(leader.since).as_secs()),
            why: (leader.why != 0).then(|| Code(Why::of(leader.why))),
            other: name(leader.other),
        }
    }

    /// Returns whether this node holds the VIP, whether it answers or not.
    pub fn is_own(&self) -> bool {
        self.role.is_some_and(|Code(role)| role.is_ok_and(|role| role != Role::Following))
    }

    /// Returns whether the agent wrote that nobody leads it.
    pub fn is_vacant(&self) -> bool {
        self.role.is_some() && self.leader.is_none()
    }

    /// Returns the reason for people.
    pub fn reason(&self) -> Option<String> {
        let other = self.other.as_deref().unwrap_or("another node");
        Some(match self.why?.0 {
            Ok(Why::First) => "nobody led it before".to_owned(),
            Ok(Why::Resumed) => "it led it before".to_owned(),
            Ok(Why::Down) => format!("{other} was down"),
            Ok(Why::Handed) => format!("{other} handed it over"),
            Ok(Why::Silent) => format!("{other} was not heard of"),
            Ok(Why::Answered) => format!("{other} is not heard, and something on the LAN answers for the address"),
            Ok(Why::Lapsed) => format!("{other} was alive and stopped answering"),
            Ok(Why::Unwritten) => "no Lease could be read".to_owned(),
            Err(code) => format!("reason {code}"),
        })
    }

    /// Returns the time since the last change, for people.
    pub fn since(&self) -> Option<String> {
        self.since_s.map(span)
    }
}

/// Formats seconds with at most two units: `12s`, `3m12s`, `5h3m`, `2d7h`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
