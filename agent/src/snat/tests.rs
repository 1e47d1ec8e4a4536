use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::Duration,
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily, NetfilterSubsystem,
    nftables::{
        ChainAttribute, ChainMessage, Hook, InetHookNumber, NfTablesMessage, Operator, Register, RuleAttribute,
        RuleMessage, TableAttribute, TableMessage,
    },
};
use tokio::net::TcpSocket;

use super::{transaction::Change, *};
use crate::{
    link::netns::Namespace,
    model::{NodeName, PortClaim, ServiceName, Vip},
    plan::{DesiredService, Treatment, Unreachable},
};

const CLIENT: &str = "192.0.2.100";
const NODE: &str = "192.0.2.1";
const POD: &str = "10.244.1.2";
const UDP: LocalBackend = LocalBackend { address: Ipv4Addr::new(10, 244, 1, 2), protocol: Protocol::Udp, port: 5353 };
const TCP: LocalBackend = LocalBackend { protocol: Protocol::Tcp, port: 8080, ..UDP };
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// A client, a node that routes and masquerades, and a pod behind it.
struct Network {
    client: Namespace,
    node: Namespace,
    pod: Namespace,
}

impl Network {
    fn new() -> Option<Self> {
        let [client, node, pod] = Namespace::new()?;
        node.veth("lan", &client, "eth0");
        node.veth("cni", &pod, "eth0");
        node.address("lan", NODE, 24);
        node.address("cni", "10.244.1.1", 24);
        client.address("eth0", CLIENT, 24);
        client.default_via(NODE);
        pod.address("eth0", POD, 24);
        pod.default_via("10.244.1.1");
        node.sysctl("ipv4/ip_forward", "1");
        node.enter(masquerade);
        Some(Self { client, node, pod })
    }

    /// The source of a UDP reply that the pod sends after conntrack lost the flow.
    fn udp_reply_source(&self) -> SocketAddr {
        let client = self.client.enter(|| UdpSocket::bind((CLIENT, 0)).unwrap());
        let pod = self.pod.enter(|| UdpSocket::bind((POD, UDP.port)).unwrap());
        client.set_read_timeout(PATIENCE).unwrap();
        pod.set_read_timeout(PATIENCE).unwrap();
        client.send_to(b"question", (POD, UDP.port)).unwrap();
        let (_, from) = pod.recv_from(&mut [0; 16]).unwrap();
        self.node.enter(flush_conntrack);
        pod.send_to(b"answer", from).unwrap();
        client.recv_from(&mut [0; 16]).unwrap().1
    }

    /// A TCP connection of the client to the pod, in use: (client's end, pod's end).
    fn connection(&self) -> (TcpStream, TcpStream) {
        let listener = self.pod.enter(|| TcpListener::bind((POD, TCP.port)).unwrap());
        let mut client = self.client.enter(|| TcpStream::connect((POD, TCP.port)).unwrap());
        let (mut pod, _) = listener.accept().unwrap();
        client.set_read_timeout(PATIENCE).unwrap();
        pod.set_read_timeout(PATIENCE).unwrap();
        client.write_all(b"?").unwrap();
        pod.read_exact(&mut [0]).unwrap();
        (client, pod)
    }
}

/// What kube-proxy and most CNIs have: a nat chain at priority 100 that masquerades.
fn masquerade() {
    let table = TableMessage { attributes: vec![TableAttribute::Name("cni".to_owned())] };
    let chain = vec![
        ChainAttribute::Table("cni".to_owned()),
        ChainAttribute::Name("postrouting".to_owned()),
        ChainAttribute::Hook(vec![Hook::Number(InetHookNumber::PostRouting.into()), Hook::Priority(100)]),
        ChainAttribute::Type("nat".to_owned()),
    ];
    let rule = vec![
        RuleAttribute::Table("cni".to_owned()),
        RuleAttribute::Chain("postrouting".to_owned()),
        // What the pod sends, as CNIs do it: `ip saddr <pod> masquerade`.
        RuleAttribute::Expressions(vec![
            ruleset::load(ruleset::NETWORK, ruleset::IP_SOURCE, 4, Register::Reg1),
            ruleset::compare(Operator::Equal, &UDP.address.octets()),
            ruleset::other("masq", vec![]),
        ]),
    ];
    let changes = vec![
        Change::Create(NfTablesMessage::NewTable(table)),
        Change::Create(NfTablesMessage::NewChain(ChainMessage { attributes: chain })),
        Change::Append(NfTablesMessage::NewRule(RuleMessage { attributes: rule })),
    ];
    Socket::open().unwrap().commit("masquerade", changes).unwrap();
}

/// `conntrack -F` (`IPCTNL_MSG_CT_DELETE` without a tuple).
fn flush_conntrack() {
    let inner =
        NetfilterMessageInner::Other { subsys: NetfilterSubsystem::Conntrack, message_type: 2, attributes: vec![] };
    let header = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0);
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    socket.send_to(&bytes, &netlink_sys::SocketAddr::new(0, 0), 0).unwrap();
    let mut answer = Vec::with_capacity(4096);
    socket.recv(&mut answer, 0).unwrap();
    assert_eq!(answer[16..20], [0; 4], "conntrack was not flushed");
}

fn set(backends: &[LocalBackend]) -> BTreeSet<LocalBackend> {
    backends.iter().copied().collect()
}

#[test]
fn local_backends_are_those_of_this_node_by_protocol() {
    let (here, there) = (NodeName("here".to_owned()), NodeName("there".to_owned()));
    let backend = |address: &str, port, node: &NodeName, ready| DesiredBackend {
        address: address.parse().unwrap(),
        port,
        node: node.clone(),
        ready,
    };
    let dns = [
        backend("10.244.1.2", 5353, &here, true),
        backend("10.244.1.3", 5353, &here, false),
        backend("10.244.2.2", 5353, &there, true),
        backend("2001:db8::2", 5353, &here, true),
    ];
    let owner = ServiceName { namespace: "default".to_owned(), name: "dns".to_owned() };
    let service = DesiredService { owner, backends: Arc::new(dns.into()), treatment: Treatment::default() };
    let web = Arc::new([backend("10.244.1.9", 80, &here, true)].into());
    let treated = |treatment| DesiredService { treatment, backends: Arc::clone(&web), ..service.clone() };
    let direct = treated(Treatment { direct: true, ..Treatment::default() });
    let kernel = treated(Treatment { kernel: true, ..Treatment::default() });
    let web = |port| PortClaim { vip: Vip([192, 0, 2, 51].into()), protocol: Protocol::Tcp, port };
    let claim = |protocol| PortClaim { vip: Vip([192, 0, 2, 50].into()), protocol, port: 53 };
    let desired = Desired {
        local: here,
        nodes: BTreeMap::new(),
        vips: BTreeMap::new(),
        services: [
            (claim(Protocol::Tcp), service.clone()),
            (claim(Protocol::Udp), service),
            (web(80), direct),
            (web(81), kernel),
        ]
        .into(),
        unreachable: Unreachable::Refuse,
    };
    let draining = LocalBackend { address: Ipv4Addr::new(10, 244, 1, 3), ..UDP };
    let tcp = |backend| LocalBackend { protocol: Protocol::Tcp, ..backend };
    assert_eq!(local_backends(&desired), set(&[UDP, draining, tcp(UDP), tcp(draining)]));
}

#[test]
fn a_udp_reply_keeps_its_source_when_conntrack_lost_the_flow() {
    let Some(network) = Network::new() else { return };
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from([192, 0, 2, 1]), "masqueraded without the chain");
    let mut snat = network.node.enter(|| IdentitySnat::open().unwrap());
    assert_eq!(snat.sync(&set(&[UDP])).unwrap(), Synced::Replaced);
    assert_eq!(network.udp_reply_source(), SocketAddr::from((UDP.address, UDP.port)));
}

#[test]
fn a_tcp_connection_lives_on_when_conntrack_lost_it() {
    let Some(network) = Network::new() else { return };
    let (_client, mut pod) = network.connection();
    network.node.enter(flush_conntrack);
    pod.write_all(b"!").unwrap();
    assert_eq!(pod.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "masqueraded without the chain");

    let mut snat = network.node.enter(|| IdentitySnat::open().unwrap());
    snat.sync(&set(&[TCP])).unwrap();
    let (mut client, mut pod) = network.connection();
    network.node.enter(flush_conntrack);
    pod.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_connection_that_the_backend_opens_itself_is_masqueraded_as_ever() {
    let Some(network) = Network::new() else { return };
    let mut snat = network.node.enter(|| IdentitySnat::open().unwrap());
    snat.sync(&set(&[TCP])).unwrap();
    let listener = network.client.enter(|| TcpListener::bind((CLIENT, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let _connection = network.pod.run(async |_| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((TCP.address, TCP.port).into()).unwrap();
        socket.connect(to).await.unwrap()
    });
    assert_eq!(listener.accept().unwrap().1.ip(), IpAddr::from([192, 0, 2, 1]));
}

#[test]
fn elements_come_and_go_with_the_backends() {
    let Some(network) = Network::new() else { return };
    let mut snat = network.node.enter(|| IdentitySnat::open().unwrap());
    assert_eq!(snat.sync(&set(&[TCP])).unwrap(), Synced::Replaced);
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from([192, 0, 2, 1]), "of another protocol");
    assert_eq!(snat.sync(&set(&[TCP, UDP])).unwrap(), Synced::Updated { added: 1, removed: 0 });
    assert_eq!(snat.sync(&set(&[TCP, UDP])).unwrap(), Synced::Unchanged);
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from(UDP.address));
    assert_eq!(snat.sync(&set(&[TCP])).unwrap(), Synced::Updated { added: 0, removed: 1 });
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from([192, 0, 2, 1]));
}

#[test]
fn a_flushed_or_inherited_table_is_replaced_whole() {
    let Some(network) = Network::new() else { return };
    let open = || network.node.enter(|| IdentitySnat::open().unwrap());
    let (mut first, mut other) = (open(), open());
    first.sync(&set(&[TCP])).unwrap();
    assert_eq!(other.sync(&set(&[UDP])).unwrap(), Synced::Replaced, "as after a restart");
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from(UDP.address));
    other.remove().unwrap();
    assert_eq!(first.sync(&set(&[UDP])).unwrap(), Synced::Replaced, "as after `nft flush ruleset`");
    assert_eq!(network.udp_reply_source().ip(), IpAddr::from(UDP.address));
}

#[test]
fn removing_leaves_no_trace_and_may_be_repeated() {
    let Some([node]) = Namespace::new() else { return };
    let mut snat = node.enter(|| IdentitySnat::open().unwrap());
    snat.remove().unwrap();
    snat.sync(&set(&[UDP])).unwrap();
    snat.remove().unwrap();
    snat.remove().unwrap();
    assert_eq!(ruleset::table_handle(&mut snat.socket).unwrap(), None);
}

#[test]
fn many_backends_are_one_transaction() {
    let Some([node]) = Namespace::new() else { return };
    let mut snat = node.enter(|| IdentitySnat::open().unwrap());
    let all: BTreeSet<_> = (1..=20_000).map(|port| LocalBackend { port, ..UDP }).collect();
    let half = all.iter().copied().take(10_000).collect();
    assert_eq!(snat.sync(&all).unwrap(), Synced::Replaced);
    assert_eq!(snat.sync(&half).unwrap(), Synced::Updated { added: 0, removed: 10_000 });
    assert_eq!(snat.sync(&all).unwrap(), Synced::Updated { added: 10_000, removed: 0 });
}

#[test]
fn a_refused_change_changes_nothing() {
    let Some([node]) = Namespace::new() else { return };
    let mut snat = node.enter(|| IdentitySnat::open().unwrap());
    snat.sync(&set(&[UDP])).unwrap();
    let refused = ruleset::update(&mut snat.socket, &[TCP], &[LocalBackend { port: 1, ..UDP }]);
    assert!(
        matches!(&refused, Err(SnatError::Refused { source, .. }) if source.raw_os_error() == Some(libc::ENOENT)),
        "{refused:?}"
    );
    ruleset::update(&mut snat.socket, &[], &[TCP]).expect_err("it was not added");
}
