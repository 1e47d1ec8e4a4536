//! The locks of the flow table's sets.

use core::ptr;

use vipmux_common::abi::{FlowSet, WAYS};

use crate::{maps::FLOWS, position::Position, wire::add_atomically};

/// The lock of a set: a number of holders below, and a version above. It needs no more than an
/// atomic addition without a result, which every kernel has: a program that finds exactly its own
/// addition is the only holder.
pub(crate) struct Lock(*mut FlowSet);

impl Lock {
    const HOLDERS: u32 = 0xfff;
    const VERSION: u32 = 0x1000;
    /// A program holds a lock for some 100 ns, and an attempt takes a few. A function call has 20 attempts.
    const CALLS: u32 = 10;
    const ATTEMPTS: u32 = 20;

    #[inline(always)]
    pub(crate) fn take(set: Position) -> Option<Self> {
        let lock = Self(FLOWS.get_ptr_mut(set / WAYS)?);
        (lock.attempt() || take(set)).then_some(lock)
    }

    /// Returns whether it has taken the lock.
    #[inline(always)]
    fn attempt(&self) -> bool {
        let before = self.read();
        if before & Self::HOLDERS != 0 {
            return false;
        }
        self.add(1);
        if self.read() == before.wrapping_add(1) {
            return true;
        }
        self.add(u32::MAX);
        false
    }

    #[inline(always)]
    pub(crate) fn release(self) {
        self.add(Self::VERSION - 1);
    }

    /// Releases the lock of a set without [`Self`], for which the stack may have no room.
    #[inline(always)]
    pub(crate) fn release_set(set: Position) {
        if let Some(set) = FLOWS.get_ptr_mut(set / WAYS) {
            Self(set).release();
        }
    }

    /// All that this CPU has read and written comes before all that it reads and writes from now on. (What
    /// arm64 makes of an addition orders all, too.)
    #[inline(always)]
    pub(crate) fn order(set: Position) {
        if let Some(set) = FLOWS.get_ptr_mut(set / WAYS) {
            Self(set).add(0);
        }
    }

    #[inline(always)]
    fn read(&self) -> u32 {
        // SAFETY: a map value, and the first field of its first record.
        unsafe { ptr::read_volatile(self.0.cast::<u32>()) }
    }

    #[inline(always)]
    fn add(&self, number: u32) {
        // SAFETY: as above.
        unsafe { add_atomically(self.0.cast(), number) };
    }
}

/// Takes the lock of a set without [`Lock`].
#[inline(always)]
pub(crate) fn take(set: Position) -> bool {
    (0..Lock::CALLS).any(|_| flow_lock(set) != 0)
}

/// Returns 1 if it has taken the lock. The verifier checks this function on its own, since it would walk through
/// all attempts for each set.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_lock(set: Position) -> u32 {
    let Some(set) = FLOWS.get_ptr_mut(set / WAYS) else { return 0 };
    let lock = Lock(set);
    u32::from((0..Lock::ATTEMPTS).any(|_| lock.attempt()))
}

/// Takes the locks of both sets, in one order for all programs. Returns false if it has neither.
#[inline(always)]
pub(crate) fn take_both(sets: u64) -> bool {
    let (first, second) = (sets as u32, (sets >> 32) as u32);
    let (lower, upper) = (first.min(second), first.max(second));
    if !take(lower) {
        return false;
    }
    if !take(upper) {
        Lock::release_set(lower);
        return false;
    }
    true
}

/// Releases the locks of both sets.
#[inline(always)]
pub(crate) fn release_both(sets: u64) {
    Lock::release_set((sets >> 32) as u32);
    Lock::release_set(sets as u32);
}
