//! Connections to route netlink (rtnetlink(7)), and the errors of requests.

use rtnetlink::Handle;
use tokio::task::JoinSet;

use super::EthtoolError;

/// The interfaces could not be read or followed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No route netlink socket.
    #[error("cannot open a route netlink socket")]
    Open(#[source] std::io::Error),
    /// A request failed.
    #[error("cannot {operation} over netlink")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The kernel's error.
        source: Box<rtnetlink::Error>,
    },
    /// No socket for ethtool requests.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// A socket closed.
    #[error("a netlink socket closed")]
    Closed,
}

impl LinkError {
    /// Returns a function that makes the error of `operation` from its cause.
    pub(super) fn request(operation: &'static str) -> impl FnOnce(rtnetlink::Error) -> Self {
        move |source| Self::Request { operation, source: Box::new(source) }
    }
}

/// Returns a handle for requests. A task carries messages between handle and socket. It ends when
/// the last handle is dropped. To abort it loses only requests in flight. It is not supervised: after its end
/// the requests of this handle fail.
pub(super) fn connect() -> Result<Handle, LinkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    tokio::spawn(connection);
    Ok(handle)
}

/// Like [`connect`], with the task among `carriers`.
pub(super) fn connect_in(carriers: &mut JoinSet<()>) -> Result<Handle, LinkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    carriers.spawn(connection);
    Ok(handle)
}
