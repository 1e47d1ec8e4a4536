//! Memory: loads, stores, pointers and atomic additions in the form that the verifier accepts.

use core::{arch::asm, hint::assert_unchecked};

/// A number that is loaded from a packet and stored to it, in wire order.
pub(crate) trait Wire: Copy {
    /// Loads it from `address + OFFSET`, which need not be aligned.
    ///
    /// # Safety
    /// The place was compared with the packet's end, by this very `address`.
    unsafe fn load<const OFFSET: usize>(address: usize) -> Self;

    /// Stores it at `address + OFFSET`, which need not be aligned.
    ///
    /// # Safety
    /// As [`Self::load`].
    unsafe fn store<const OFFSET: usize>(address: usize, value: Self);

    /// Stores the low bytes of `value`.
    ///
    /// # Safety
    /// As [`Self::load`].
    unsafe fn store_low<const OFFSET: usize>(address: usize, value: u64);
}

// One instruction each. The compiler would copy single bytes, since it may not assume that a
// misaligned access works. In a packet it works on every architecture with
// `CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`. (Allowing it everywhere, by
// `allows-misaligned-mem-access`, makes stack accesses that the verifier refuses.)
macro_rules! wire {
    ($($type:ty: $name:literal,)*) => {
        $(impl Wire for $type {
            #[inline(always)]
            unsafe fn load<const OFFSET: usize>(address: usize) -> Self {
                let value: u64;
                // SAFETY: the caller's bounds check.
                unsafe {
                    asm!(
                        concat!("{} = *(", $name, " *)({} + {})"),
                        out(reg) value, in(reg) address, const OFFSET,
                        options(pure, readonly, nostack, preserves_flags),
                    );
                    // The instruction sets the upper bits to zero.
                    assert_unchecked(value <= Self::MAX as u64);
                }
                value as Self
            }

            #[inline(always)]
            unsafe fn store<const OFFSET: usize>(address: usize, value: Self) {
                // SAFETY: the caller's bounds check.
                unsafe { Self::store_low::<OFFSET>(address, u64::from(value)) }
            }

            #[inline(always)]
            unsafe fn store_low<const OFFSET: usize>(address: usize, value: u64) {
                // SAFETY: the caller's bounds check.
                unsafe {
                    asm!(
                        concat!("*(", $name, " *)({} + {}) = {}"),
                        in(reg) address, const OFFSET, in(reg) value,
                        options(nostack, preserves_flags),
                    );
                }
            }
        })*
    };
}
wire!(u8: "u8", u16: "u16", u32: "u32", u64: "u64",);

/// Loads what lies `OFFSET` bytes after `address`; see [`Wire::load`].
///
/// # Safety
/// As [`Wire::load`].
#[inline(always)]
pub(crate) unsafe fn read<const OFFSET: usize, T: Wire>(address: usize) -> T {
    // SAFETY: the caller's bounds check.
    unsafe { T::load::<OFFSET>(address) }
}

/// Stores `OFFSET` bytes after `address`; see [`Wire::store`].
///
/// # Safety
/// As [`Wire::load`].
#[inline(always)]
pub(crate) unsafe fn write<const OFFSET: usize, T: Wire>(address: usize, value: T) {
    // SAFETY: the caller's bounds check.
    unsafe { T::store::<OFFSET>(address, value) }
}

/// Stores the low bytes of a number, as many as `T` has, `OFFSET` bytes after `address`. The compiler
/// would clear the others first.
///
/// # Safety
/// As [`Wire::load`].
#[inline(always)]
pub(crate) unsafe fn write_low<const OFFSET: usize, T: Wire>(address: usize, value: u64) {
    // SAFETY: the caller's bounds check.
    unsafe { T::store_low::<OFFSET>(address, value) }
}

/// Keeps a packet pointer in one register, so that the verifier's bounds check holds for each use.
/// The compiler would otherwise compute it again from its parts, and the verifier would not
/// recognize it. The same holds for the two pointers of the context, which loads them as 32 bits:
/// the compiler would spill only those, and the verifier would refuse that.
#[inline(always)]
pub(crate) fn pin(mut address: usize) -> usize {
    // SAFETY: a register moved onto itself. (Without any instruction, its line information would
    // collide with the next one's, which the kernel refuses.)
    unsafe { asm!("{0} = {0}", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    address
}

/// Returns a number that the compiler knows nothing about, so that it makes no branch of what is
/// computed from it.
#[inline(always)]
pub(crate) fn opaque(mut number: u64) -> u64 {
    // SAFETY: a register moved onto itself, as in `pin`.
    unsafe { asm!("{0} = {0}", inout(reg) number, options(pure, nomem, nostack, preserves_flags)) };
    number
}

/// Returns zero, which neither the compiler nor the verifier knows. `number`: one that the verifier does not know. A
/// number that is combined with zero is unknown as well. So the verifier checks once what follows, and not again for
/// each way to that number.
#[inline(always)]
pub(crate) fn unknown_zero(number: u64) -> u64 {
    opaque(number) ^ number
}

/// Returns a number that the compiler does not know and the verifier does. So what depends on it
/// stays distinct on each path.
#[inline(always)]
pub(crate) fn literal<const NUMBER: u32>() -> u32 {
    let number: u64;
    // SAFETY: a register is set.
    unsafe { asm!("{} = {}", out(reg) number, const NUMBER, options(pure, nomem, nostack, preserves_flags)) };
    number as u32
}

/// Returns the number. What is loaded from an address that is made of it is loaded after `loaded`:
/// all CPUs keep the order of loads of which one's address depends on the other
/// (Documentation/memory-barriers.txt, "Address-dependency barriers"). On arm64, others may change
/// places.
#[inline(always)]
pub(crate) fn after_load(number: u32, loaded: u32) -> u32 {
    let mut nothing = u64::from(loaded);
    // SAFETY: a register is set to zero.
    unsafe { asm!("{0} &= 0", inout(reg) nothing, options(pure, nomem, nostack, preserves_flags)) };
    number | nothing as u32
}

/// Adds to a number in a map, atomically. This form has no result, so kernels before 5.12 and
/// before 5.18 on arm64 have it too. On x86-64 it orders memory. On arm64 it does not, so the agent
/// changes it there to the form with a result (`vipmux_datapath::bpf::object`). That one overwrites
/// the register of `increase`.
///
/// # Safety
/// `number` points into a map value, aligned.
#[inline(always)]
#[cfg(target_arch = "bpf")]
pub(crate) unsafe fn add_atomically(number: *mut u32, increase: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "lock *(u32 *)({} + 0) += {}",
            in(reg) number, inout(wreg) increase => _, options(nostack, preserves_flags)
        );
    }
}

/// The same where the lints run: only BPF has the register class.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "bpf"))]
pub(crate) unsafe fn add_atomically(number: *mut u32, increase: u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's.
    unsafe { AtomicU32::from_ptr(number) }.fetch_add(increase, Ordering::Relaxed);
}
