//! What other hosts can make a node do, and how often: the elements of `BUDGETS`.
//!
//! All CPUs share a budget. Each kind has one for all senders, and one for each of [`GROUPS`] groups
//! of senders. A sender has the share of its group first, and then draws on the budget for all. So
//! a few senders cannot take what others need.

use crate::{
    abi::{Address, Config, FlowSecret},
    flow_table::Place,
};

/// Groups of senders: a power of two.
pub const GROUPS: u32 = 256;
/// Elements of `BUDGETS`.
pub const ELEMENTS: u32 = KINDS * (GROUPS + 1);
/// Kinds of limits.
const KINDS: u32 = 6;

/// First fragments a second that a node records. Of [`capacity::FRAGMENTS`](crate::abi::capacity)
/// records, each stays for 60 ms or longer, whoever sends how many.
const FRAGMENTS_PER_SECOND: u32 = 32_768;
/// Foreign speakers a second that a node records.
const SPEAKERS_PER_SECOND: u32 = 256;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// TCP RSTs in a VIP's name, by client.
    Reset,
    /// ICMP errors in a VIP's name, by client.
    Unreachable,
    /// Echo replies in a VIP's name, by client.
    Echo,
    /// Records of datagrams whose first fragment came from a client, by client.
    Fragment,
    /// The same from a backend, by client.
    ReplyFragment,
    /// Records of foreign speakers that were not known, by VIP.
    Speaker,
}

impl Kind {
    /// All kinds, in the order of their elements.
    pub const ALL: [Self; KINDS as usize] =
        [Self::Reset, Self::Unreachable, Self::Echo, Self::Fragment, Self::ReplyFragment, Self::Speaker];

    /// Returns the index of the budget for all.
    #[inline(always)]
    pub const fn of_all(self) -> u32 {
        self as u32 * (GROUPS + 1)
    }

    /// Returns the index of the budget of an address's group. Nobody else knows which addresses
    /// share one.
    #[inline(always)]
    pub const fn of_group(self, secret: &FlowSecret, address: &Address) -> u32 {
        self.of_all() + 1 + Place::new(secret, address, 0, 0).set(GROUPS - 1)
    }

    /// Returns how many the budget for all has per second. Those of the groups have together as
    /// many.
    #[inline(always)]
    pub const fn per_second(self, config: &Config) -> u32 {
        match self {
            Self::Reset | Self::Unreachable | Self::Echo => config.answers_per_second,
            Self::Fragment | Self::ReplyFragment => FRAGMENTS_PER_SECOND,
            Self::Speaker => SPEAKERS_PER_SECOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_and_group_has_an_element_of_its_own() {
        let secret = FlowSecret { sum: 1, client: [3, 5, 7, 0x9e37_79b9_7f4a_7c15], port: 11 };
        let mut seen = [false; ELEMENTS as usize];
        for kind in Kind::ALL {
            assert!(!core::mem::replace(&mut seen[kind.of_all() as usize], true), "{kind:?}");
            for last in 0..100_000_u32 {
                seen[kind.of_group(&secret, &Address::v4(last.to_be())) as usize] = true;
            }
        }
        assert!(seen.iter().all(|seen| *seen), "each group has addresses");
    }
}
