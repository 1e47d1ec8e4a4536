//! The directions of an interface's traffic.

use aya::programs::TcAttachType;

use super::pins::LinkKind;

/// A direction of an interface's traffic, which has its own classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// [`LinkKind::Egress`].
    Egress,
    /// [`LinkKind::Ingress`].
    Ingress,
}

impl Direction {
    /// Returns the direction of a classifier; `None` for XDP.
    pub const fn of(kind: LinkKind) -> Option<Self> {
        match kind {
            LinkKind::Xdp => None,
            LinkKind::Egress => Some(Self::Egress),
            LinkKind::Ingress => Some(Self::Ingress),
        }
    }

    /// Returns the kind of its classifier's link.
    pub const fn kind(self) -> LinkKind {
        match self {
            Self::Egress => LinkKind::Egress,
            Self::Ingress => LinkKind::Ingress,
        }
    }

    pub(super) const fn tc_type(self) -> TcAttachType {
        match self {
            Self::Egress => TcAttachType::Egress,
            Self::Ingress => TcAttachType::Ingress,
        }
    }
}
