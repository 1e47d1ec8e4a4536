//! Network namespaces for tests: made by the test, gone with it.

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

use crate::datapath::maps::fixture::is_root;

type Change = LinkMessageBuilder<LinkUnspec>;

/// A network namespace. It lives as long as this value, its sockets and its threads.
pub(crate) struct Namespace(File);

impl Namespace {
    /// `N` new ones, each with its loopback interface up; `None` where the test is to be skipped ([`is_root`]).
    pub(crate) fn new<const N: usize>() -> Option<[Self; N]> {
        if !is_root() {
            return None;
        }
        Some([(); N].map(|()| {
            let open = || {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                File::open("/proc/thread-self/ns/net").unwrap()
            };
            let namespace = Self(thread::spawn(open).join().unwrap());
            // Of interfaces not made yet: the kernel asks from a link-local address, which it would first look for
            // duplicates of, for up to two seconds.
            namespace.sysctl("ipv6/conf/default/accept_dad", "0");
            namespace.up("lo");
            namespace
        }))
    }

    /// Runs `f` in here, on a thread of its own. Sockets that it opens stay in here.
    pub(crate) fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            f()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a future in here, with a netlink handle.
    pub(crate) fn run<F: Future<Output: Send>>(&self, f: impl FnOnce(Handle) -> F + Send) -> F::Output {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                tokio::spawn(connection);
                f(handle).await
            })
        })
    }

    /// A veth pair: `name` in here and `peer_name` in `peer`, both up.
    pub(crate) fn veth(&self, name: &str, peer: &Self, peer_name: &str) {
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

    /// A bridge without ports, up.
    pub(crate) fn bridge(&self, name: &str) {
        self.run(async |handle| handle.link().add(LinkBridge::new(name).up().build()).execute().await.unwrap());
    }

    /// Changes an interface.
    pub(crate) fn set(&self, name: &str, change: impl FnOnce(Change) -> Change + Send) {
        self.run(async |handle| {
            handle.link().set(change(LinkUnspec::new_with_name(name)).build()).execute().await.unwrap();
        });
    }

    pub(crate) fn up(&self, name: &str) {
        self.set(name, LinkMessageBuilder::up);
    }

    /// Waits until what is sent on an interface leaves it. A new one claims to have a carrier, with an operational state
    /// of UNKNOWN, some milliseconds before its queue opens; until then the kernel drops frames without an error.
    pub(crate) fn ready(&self, name: &str) {
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

    /// Gives an interface an address, which is usable at once: no search for duplicates.
    pub(crate) fn address(&self, name: &str, address: &str, prefix: u8) {
        self.run(async |handle| {
            let index = index(&handle, name).await;
            let mut request = handle.address().add(index, address.parse().unwrap(), prefix);
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            request.execute().await.unwrap();
        });
    }

    /// The default route.
    pub(crate) fn default_via(&self, gateway: &str) {
        self.run(async |handle| {
            let route = match gateway.parse().unwrap() {
                IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build(),
                IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).build(),
            };
            handle.route().add(route).execute().await.unwrap();
        });
    }

    /// Writes `/proc/sys/net/<path>`.
    pub(crate) fn sysctl(&self, path: &str, value: &str) {
        self.enter(|| fs::write(format!("/proc/sys/net/{path}"), value).unwrap());
    }
}

/// An interface's index.
pub(crate) async fn index(handle: &Handle, name: &str) -> u32 {
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await.unwrap() {
        if link.attributes.contains(&LinkAttribute::IfName(name.to_owned())) {
            return link.header.index;
        }
    }
    panic!("no interface {name}");
}
