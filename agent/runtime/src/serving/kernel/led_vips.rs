//! Keeps the VIPs that this node leads, and the fence deadline, until which it may answer for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{Address, VIP_ASSURED, VIP_LEADING, VIP_YIELDED, VipValue};
use vipmux_model::Vip;

/// The election's decisions that the kernel acts on.
#[derive(Default)]
pub(super) struct LedVips {
    /// The VIPs that this node leads, with their epochs.
    led: BTreeMap<Vip, u64>,
    /// The VIPs that the programs do not yield to announcements.
    assured: BTreeSet<Vip>,
    /// The fence deadline, as it was extended last; zero: never.
    deadline: Duration,
    /// It passed, and was not extended since.
    lapsed: bool,
    /// The number of times that it passed.
    lapses: u64,
}

impl LedVips {
    /// Returns the VIPs that this node leads, with their epochs.
    pub(super) fn led(&self) -> &BTreeMap<Vip, u64> {
        &self.led
    }

    /// Notes that this node leads a VIP.
    pub(super) fn lead(&mut self, vip: Vip, epoch: u64) {
        self.led.insert(vip, epoch);
    }

    /// Notes that this node does not lead a VIP.
    pub(super) fn follow(&mut self, vip: Vip) {
        self.led.remove(&vip);
        self.assured.remove(&vip);
    }

    /// Notes whether the programs yield a VIP to announcements: while `assured`, they do not.
    pub(super) fn assure(&mut self, vip: Vip, assured: bool) {
        if assured {
            self.assured.insert(vip)
        } else {
            self.assured.remove(&vip)
        };
    }

    /// Returns the epoch in which this node leads a VIP; `None`: it does not.
    pub(super) fn epoch(&self, address: Address) -> Option<u64> {
        self.led.get(&Vip::new(address.into())).copied()
    }

    /// Returns the value of a VIP with the flags of leadership and the epoch as they are now.
    pub(super) fn with_leading_flag(&self, address: Address, value: VipValue) -> VipValue {
        let (epoch, others) = (self.epoch(address), value.flags & !(VIP_LEADING | VIP_ASSURED));
        let assured = if self.assured.contains(&Vip::new(address.into())) { VIP_ASSURED } else { 0 };
        let flags = if epoch.is_some() { others & !VIP_YIELDED | VIP_LEADING | assured } else { others };
        VipValue { flags, epoch: epoch.unwrap_or(value.epoch), ..value }
    }

    /// Returns the fence deadline, `CLOCK_BOOTTIME`; zero: it was never extended.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns how often the deadline passed.
    pub(super) fn lapses(&self) -> u64 {
        self.lapses
    }

    /// Sets the fence deadline.
    pub(super) fn extend(&mut self, deadline: Duration) {
        (self.deadline, self.lapsed) = (deadline, false);
    }

    /// Counts a lapse if the deadline passed since it was extended last.
    pub(super) fn check_deadline(&mut self, now: Duration) {
        if !self.lapsed && !self.deadline.is_zero() && now >= self.deadline {
            self.lapsed = true;
            self.lapses += 1;
        }
    }
}
