//! Types that the bench and its wrapper program share (`ebpf/src/testing.rs`).

/// Words of the packet that the wrapper restores: Ethernet, IPv4 and TCP without options, and a
/// little more.
pub const WORDS: usize = 7;
/// Bytes of a frame of a test run: room for these words, at least an Ethernet frame's 60 bytes.
pub const LENGTH: usize = 60;
/// Ports per client address, as a power of two. They begin at [`FIRST_PORT`].
pub const PORT_BITS: u32 = 15;
/// The first of them.
pub const FIRST_PORT: u16 = 1024;

/// The first byte of the backends' addresses.
pub const BACKENDS: u8 = 10;

/// `TEMPLATE[0]`: the initial packet of each iteration of a test run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Template {
    /// The packet's first 56 bytes, in wire order.
    pub words: [u64; WORDS],
    /// Flows that `restore_flow` cycles through, less one. Their number is a power of two.
    pub flow_mask: u32,
    /// Odd: the step between flows.
    pub stride: u32,
    /// The first client's address, host order.
    pub client: u32,
    /// Services that the flows are spread over.
    pub services: u32,
    /// The first Service's port, host order; the others follow.
    pub port: u32,
    /// The interface that `generate` sends out of.
    pub ifindex: u32,
}

// SAFETY: `repr(C)`, of integers alone, and as long as their sum: 56 bytes of words and 24 of the rest.
#[cfg(feature = "aya")]
unsafe impl aya::Pod for Template {}
const _: () = assert!(size_of::<Template>() == WORDS * 8 + 24);
