//! Who answers for a VIP.

pub mod rendezvous;
