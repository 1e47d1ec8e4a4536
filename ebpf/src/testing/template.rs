//! What the bench's wrapper and the bench agree on. Shared by path, like the BPF programs' own map types in `common`.

/// Words of the packet that the wrapper puts back: Ethernet, IPv4 and TCP without options, and a little more.
pub const WORDS: usize = 7;
/// Ports of one client address that are used, as a power of two; they begin at [`FIRST_PORT`].
pub const PORT_BITS: u32 = 15;
/// The first of them.
pub const FIRST_PORT: u16 = 1024;

/// The first byte of the backends' addresses.
pub const BACKENDS: u8 = 10;

/// `TEMPLATE[0]`: the packet that each iteration of a test run begins with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Template {
    /// The packet's first 56 bytes, as they lie.
    pub words: [u64; WORDS],
    /// Flows that `restore_flow` cycles through, less one; that many is a power of two.
    pub flow_mask: u32,
    /// Odd: the order in which they come.
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
