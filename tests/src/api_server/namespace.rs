//! The namespace of vipmux.

/// vipmux's namespace.
pub const SYSTEM: &str = "vipmux-system";
