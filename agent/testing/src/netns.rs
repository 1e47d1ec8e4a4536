//! Creates network namespaces for tests. They go away with the test.

use std::{
    fs,
    fs::File,
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    thread,
    time::Duration,
};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    address::AddressHeaderFlags,
    link::{LinkAttribute, State},
};
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::time::{sleep, timeout};

use crate::is_root;

type Change = LinkMessageBuilder<LinkUnspec>;

/// A network namespace. It lives as long as this value, its sockets and its threads.
pub struct Namespace(File);

impl Namespace {
    /// Returns `N` new namespaces, each with its loopback interface up; `None` if the test is to be
    /// skipped ([`is_root`]).
    pub fn new<const N: usize>() -> Option<[Self; N]> {
        if !is_root() {
            return None;
        }
        Some([(); N].map(|()| {
            let open = || {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                File::open("/proc/thread-self/ns/net").unwrap()
            };
            let namespace = Self(thread::spawn(open).join().unwrap());
            // For interfaces that are created later: the kernel sends from a link-local address. It
            // would first check that address for duplicates, for up to two seconds.
            namespace.sysctl("ipv6/conf/default/accept_dad", "0");
            namespace.up("lo");
            namespace
        }))
    }

    /// Runs `f` in the namespace, on a thread of its own. Sockets that it opens stay in the
    /// namespace.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            f()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a future in the namespace, with a netlink handle.
    pub fn run<F: Future<Output: Send>>(&self, f: impl FnOnce(Handle) -> F + Send) -> F::Output {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                tokio::spawn(connection);
                f(handle).await
            })
        })
    }

    /// Adds a veth pair: `name` here and `peer_name` in `peer`, both up.
    pub fn veth(&self, name: &str, peer: &Self, peer_name: &str) {
        self.run(async |handle| {
            let passing = "passing";
            handle.link().add(LinkVeth::new(name, passing).build()).execute().await.unwrap();
            let moved = LinkUnspec::new_with_index(index(&handle, passing).await);
            let moved = moved.name(peer_name).setns_by_fd(peer.0.as_raw_fd()).build();
            handle.link().set(moved).execute().await.unwrap();
        });
        self.up(name);
        peer.up(peer_name);
    }

    /// Adds a bridge without ports, up.
    pub fn bridge(&self, name: &str) {
        self.run(async |handle| handle.link().add(LinkBridge::new(name).up().build()).execute().await.unwrap());
    }

    /// Changes an interface.
    pub fn set(&self, name: &str, change: impl FnOnce(Change) -> Change + Send) {
        self.run(async |handle| {
            handle.link().set(change(LinkUnspec::new_with_name(name)).build()).execute().await.unwrap();
        });
    }

    /// Sets an interface up.
    pub fn up(&self, name: &str) {
        self.set(name, LinkMessageBuilder::up);
    }

    /// Waits until sent frames leave an interface. A new interface reports a carrier, with the
    /// operational state UNKNOWN, some milliseconds before its queue opens. Until then the kernel
    /// drops frames without an error.
    pub fn ready(&self, name: &str) {
        self.run(async |handle| {
            let up = async || {
                let index = index(&handle, name).await;
                let link = handle.link().get().match_index(index).execute().try_next().await.unwrap().unwrap();
                link.attributes.contains(&LinkAttribute::OperState(State::Up))
            };
            let waiting = async {
                while !up().await {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(20), waiting).await.unwrap();
        });
    }

    /// Gives an interface an address. It is usable at once, without duplicate address detection.
    pub fn address(&self, name: &str, address: &str, prefix: u8) {
        self.run(async |handle| {
            let index = index(&handle, name).await;
            let mut request = handle.address().add(index, address.parse().unwrap(), prefix);
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            request.execute().await.unwrap();
        });
    }

    /// Adds the default route.
    pub fn default_via(&self, gateway: &str) {
        self.run(async |handle| {
            let route = match gateway.parse().unwrap() {
                IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build(),
                IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).build(),
            };
            handle.route().add(route).execute().await.unwrap();
        });
    }

    /// Writes `/proc/sys/net/<path>`.
    pub fn sysctl(&self, path: &str, value: &str) {
        self.enter(|| fs::write(format!("/proc/sys/net/{path}"), value).unwrap());
    }
}

/// Returns an interface's index.
pub async fn index(handle: &Handle, name: &str) -> u32 {
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await.unwrap() {
        if link.attributes.contains(&LinkAttribute::IfName(name.to_owned())) {
            return link.header.index;
        }
    }
    panic!("no interface {name}");
}
