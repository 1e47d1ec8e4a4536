//! Tests the nftables table for replies.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    num::NonZeroU16,
    sync::Arc,
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily, NetfilterSubsystem,
    nftables::{
        ChainAttribute, ChainMessage, DataAttribute, Hook, InetHookNumber, ListAttribute, NfTablesMessage, Operator,
        Register, RuleAttribute, RuleMessage, SetAttribute, SetElementAttribute, SetElementList, SetElementMessage,
        SetMessage, TableAttribute, TableMessage,
    },
};
use tokio::net::TcpSocket;

use super::{
    expression::{NETWORK, compare, load, other},
    sets::{ClientSet, FamilyLayout, IPV4, IPV6, TABLE},
    transaction::TransactionMessage,
    *,
};
use vipmux_model::{
    NodeName, PortClaim, PortNumber, ServiceName, Vip,
    desired::{DesiredService, Readiness, Treatment, Unreachable},
    hashing::Hashing,
};
use vipmux_testing::{
    PATIENCE,
    names::{claim, node_name, tcp_claim, vip4},
    netns::Namespace,
};

/// A family's addresses of the network.
struct Addresses {
    family: &'static FamilyLayout,
    prefix: u8,
    client: &'static str,
    /// The node's two addresses: to the client, and to the pod.
    node: [&'static str; 2],
    pod: &'static str,
}

const V4: Addresses = Addresses {
    family: &IPV4,
    prefix: 24,
    client: "192.0.2.100",
    node: ["192.0.2.1", "10.244.1.1"],
    pod: "10.244.1.2",
};
const V6: Addresses = Addresses {
    family: &IPV6,
    prefix: 64,
    client: "2001:db8::100",
    node: ["2001:db8::1", "fd00:244:1::1"],
    pod: "fd00:244:1::2",
};
const UDP_PORT: u16 = 5353;
const UDP: LocalBackend = LocalBackend {
    address: IpAddr::V4(Ipv4Addr::new(10, 244, 1, 2)),
    protocol: Protocol::Udp,
    port: NonZeroU16::new(UDP_PORT),
};
const TCP_PORT: u16 = 8080;
const TCP: LocalBackend = LocalBackend { protocol: Protocol::Tcp, port: NonZeroU16::new(TCP_PORT), ..UDP };

impl Addresses {
    fn client(&self) -> IpAddr {
        self.client.parse().unwrap()
    }

    fn pod(&self) -> IpAddr {
        self.pod.parse().unwrap()
    }

    /// The source of masqueraded packets of the pod.
    fn masqueraded(&self) -> IpAddr {
        self.node[0].parse().unwrap()
    }

    fn backend(&self, backend: LocalBackend) -> LocalBackend {
        LocalBackend { address: self.pod(), ..backend }
    }
}

/// A client, a node that routes and masquerades, and a pod behind it.
struct Network {
    addresses: Addresses,
    client: Namespace,
    node: Namespace,
    pod: Namespace,
    /// The pod's, for all questions: one that was closed may keep its port for a while, in a
    /// process that another test is starting.
    server: UdpSocket,
}

impl Network {
    fn new(addresses: Addresses) -> Option<Self> {
        let [client, node, pod] = Namespace::new()?;
        node.veth("lan", &client, "eth0");
        node.veth("cni", &pod, "eth0");
        let Addresses { prefix, node: [to_client, to_pod], .. } = addresses;
        node.address("lan", to_client, prefix);
        node.address("cni", to_pod, prefix);
        client.address("eth0", addresses.client, prefix);
        client.default_via(to_client);
        pod.address("eth0", addresses.pod, prefix);
        pod.default_via(to_pod);
        for (namespace, end) in [(&node, "lan"), (&client, "eth0"), (&node, "cni"), (&pod, "eth0")] {
            namespace.ready(end);
        }
        node.sysctl("ipv4/ip_forward", "1");
        node.sysctl("ipv6/conf/all/forwarding", "1");
        node.enter(|| masquerade(&addresses));
        let server = pod.enter(|| UdpSocket::bind((addresses.pod(), UDP_PORT)).unwrap());
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Self { addresses, client, node, pod, server })
    }

    /// The source of a UDP reply that the pod sends after conntrack lost the flow.
    fn udp_reply_source(&self) -> SocketAddr {
        let client = self.client_socket();
        client.send_to(b"question", (self.addresses.pod(), UDP_PORT)).unwrap();
        let (_, from) = self.server.recv_from(&mut [0; 16]).unwrap();
        self.node.enter(flush_conntrack);
        self.server.send_to(b"answer", from).unwrap();
        client.recv_from(&mut [0; 16]).unwrap().1
    }

    fn client_socket(&self) -> UdpSocket {
        let socket = self.client.enter(|| UdpSocket::bind((self.addresses.client(), 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// A client that has sent a datagram to the pod.
    fn asking_client(&self) -> UdpSocket {
        let client = self.client_socket();
        client.send_to(b"question", (self.addresses.pod(), UDP_PORT)).unwrap();
        self.server.recv_from(&mut [0; 16]).unwrap();
        client
    }

    /// Fills the set of clients, and returns the new ones: keys of made-up addresses.
    fn fill_clients(&self) -> Vec<Vec<u8>> {
        let length = self.addresses.family.length as usize;
        // The set has one client already.
        let made_up: Vec<_> = (1..ClientSet::LIMIT)
            .map(|number| [&number.to_be_bytes()[..], &vec![0; 2 * length + 4]].concat())
            .collect();
        self.node.enter(|| change_clients(&ClientSet::of(self.addresses.family), &made_up, made));
        made_up
    }

    /// The pod's, for all connections, as with UDP.
    fn listener(&self) -> TcpListener {
        self.pod.enter(|| TcpListener::bind((self.addresses.pod(), TCP_PORT)).unwrap())
    }

    /// A TCP connection of the client to the pod, in use: (client's end, pod's end).
    fn connection(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let at = listener.local_addr().unwrap();
        let mut client = self.client.enter(|| TcpStream::connect(at).unwrap());
        let (mut pod, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        pod.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"?").unwrap();
        pod.read_exact(&mut [0]).unwrap();
        (client, pod)
    }

    fn snat(&self) -> IdentitySnat {
        self.node.enter(|| IdentitySnat::open().unwrap())
    }
}

/// Makes a nat chain at priority 100 that masquerades, as kube-proxy and most CNIs do.
fn masquerade(addresses: &Addresses) {
    let table = TableMessage { attributes: vec![TableAttribute::Name("cni".to_owned())] };
    let chain = vec![
        ChainAttribute::Table("cni".to_owned()),
        ChainAttribute::Name("postrouting".to_owned()),
        ChainAttribute::Hook(vec![Hook::Number(InetHookNumber::PostRouting.into()), Hook::Priority(100)]),
        ChainAttribute::Type("nat".to_owned()),
    ];
    let pod = match addresses.pod() {
        IpAddr::V4(pod) => pod.octets().to_vec(),
        IpAddr::V6(pod) => pod.octets().to_vec(),
    };
    let FamilyLayout { source, length, .. } = *addresses.family;
    let rule = vec![
        RuleAttribute::Table("cni".to_owned()),
        RuleAttribute::Chain("postrouting".to_owned()),
        // Packets of the pod, as CNIs do it: `ip saddr <pod> masquerade`.
        RuleAttribute::Expressions(vec![
            load(NETWORK, source, length, Register::Reg1),
            compare(Operator::Equal, &pod),
            other("masq", vec![]),
        ]),
    ];
    let changes = vec![
        TransactionMessage::Create(NfTablesMessage::NewTable(table)),
        TransactionMessage::Create(NfTablesMessage::NewChain(ChainMessage { attributes: chain })),
        TransactionMessage::Append(NfTablesMessage::NewRule(RuleMessage { attributes: rule })),
    ];
    Socket::open().unwrap().commit("masquerade", changes).unwrap();
}

/// Makes these changes of a set of clients.
fn change_clients(set: &ClientSet, keys: &[Vec<u8>], change: fn(SetElementMessage) -> TransactionMessage) {
    let element =
        |key: &Vec<u8>| ListAttribute::Element(vec![SetElementAttribute::Key(DataAttribute::Value(key.clone()))]);
    let message = |keys: &[Vec<u8>]| {
        change(SetElementMessage {
            attributes: vec![
                SetElementList::Table(TABLE.to_owned()),
                SetElementList::Set(set.name.to_owned()),
                SetElementList::Elements(keys.iter().map(element).collect()),
            ],
        })
    };
    Socket::open().unwrap().commit("change the clients", keys.chunks(1_024).map(message).collect()).unwrap();
}

fn made(elements: SetElementMessage) -> TransactionMessage {
    TransactionMessage::Create(NfTablesMessage::NewSetElement(elements))
}

fn deleted(elements: SetElementMessage) -> TransactionMessage {
    TransactionMessage::Delete(NfTablesMessage::DeleteSetElement(elements))
}

/// Runs `conntrack -F` (`IPCTNL_MSG_CT_DELETE` without a tuple).
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

fn table(elements: impl IntoIterator<Item = Element>) -> DesiredTable {
    DesiredTable { elements: elements.into_iter().collect(), ..DesiredTable::default() }
}

fn set(backends: &[LocalBackend]) -> DesiredTable {
    table(backends.iter().copied().map(Element::Backend))
}

/// Returns a desired state without Services.
fn nothing(local: NodeName) -> Desired {
    Desired {
        local,
        nodes: BTreeMap::new(),
        speakers: BTreeMap::new(),
        handover_macs: Arc::default(),
        vips: BTreeMap::new(),
        services: OrdMap::new(),
        unreachable: Unreachable::Refuse,
        hashing: Hashing::First,
    }
}

#[test]
fn desired_elements_are_this_nodes_backends_by_protocol() {
    let (here, there) = (node_name("here"), node_name("there"));
    let backend = |address: &str, port, node: &NodeName, ready| DesiredBackend {
        address: address.parse().unwrap(),
        port: NonZeroU16::new(port),
        node: Some(node.clone()),
        readiness: if ready { Readiness::Ready } else { Readiness::Stopping },
    };
    let dns = [
        backend("10.244.1.2", 5353, &here, true),
        backend("10.244.1.3", 5353, &here, false),
        backend("10.244.2.2", 5353, &there, true),
        backend("2001:db8::2", 5353, &here, true),
    ];
    let owner = ServiceName::new("default", "dns");
    let service = DesiredService { owner, backends: Arc::new(dns.into()), treatment: Treatment::default() };
    let web = Arc::new([backend("10.244.1.9", 80, &here, true)].into());
    let treated = |treatment| DesiredService { treatment, backends: Arc::clone(&web), ..service.clone() };
    let direct = treated(Treatment { direct: true, ..Treatment::default() });
    let elsewhere = Arc::new([backend("10.244.2.9", 80, &there, true)].into());
    let elsewhere = DesiredService { backends: elsewhere, ..direct.clone() };
    let kernel = treated(Treatment { kernel: true, ..Treatment::default() });
    let web = |port| tcp_claim(vip4(51), port);
    let dns = |protocol| claim(vip4(50), protocol, 53);
    let mut desired = nothing(here);
    desired.services.extend([
        (dns(Protocol::Tcp), service.clone()),
        (dns(Protocol::Udp), service),
        (web(80), direct),
        (web(81), kernel),
        (web(82), elsewhere),
    ]);
    let at = |address: &str| LocalBackend { address: address.parse().unwrap(), ..UDP };
    let udp = ["10.244.1.2", "10.244.1.3", "2001:db8::2"].map(at);
    let tcp = udp.map(|backend| LocalBackend { protocol: Protocol::Tcp, ..backend });
    let translated = set(&[udp, tcp].concat());
    let mut all = translated.clone();
    all.elements.extend([Element::Direct(web(80)), Element::DirectErrors(web(80).vip), Element::Uplink(2)]);
    let mut wanted = TableBuilder::default();
    assert_eq!(wanted.update(&desired, [2].into_iter()), all);
    desired.services.remove(&web(80));
    assert_eq!(wanted.update(&desired, [2].into_iter()), translated, "no other is direct here");
    // Another claim needs the same element as the first one, and keeps it when the first one goes.
    let service = desired.services[&dns(Protocol::Udp)].clone();
    desired.services.insert(PortClaim { port: 54.into(), ..dns(Protocol::Udp) }, service);
    desired.services.remove(&dns(Protocol::Udp));
    assert_eq!(wanted.update(&desired, [2].into_iter()), translated);
    desired.services.remove(&PortClaim { port: 54.into(), ..dns(Protocol::Udp) });
    assert_eq!(wanted.update(&desired, [2].into_iter()), set(&tcp));
}

#[test]
fn a_udp_reply_keeps_its_source_when_conntrack_lost_the_flow() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let masqueraded = network.addresses.masqueraded();
        assert_eq!(network.udp_reply_source().ip(), masqueraded, "masqueraded without the chain");
        let (mut snat, backend) = (network.snat(), network.addresses.backend(UDP));
        assert_eq!(snat.sync(&set(&[backend])).unwrap(), SyncResult::Replaced);
        assert_eq!(network.udp_reply_source(), SocketAddr::from((backend.address, UDP_PORT)));
    }
}

#[test]
fn every_port_of_a_backend_keeps_its_source_where_it_has_them_all() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let mut snat = network.snat();
        let every = |backend| LocalBackend { port: None, ..network.addresses.backend(backend) };
        assert_eq!(snat.sync(&set(&[every(TCP)])).unwrap(), SyncResult::Replaced);
        assert_eq!(network.udp_reply_source().ip(), network.addresses.masqueraded(), "of another protocol");
        assert_eq!(snat.sync(&set(&[every(UDP)])).unwrap(), SyncResult::Updated { added: 1, removed: 1 });
        assert_eq!(network.udp_reply_source().ip(), network.addresses.pod());
    }
}

#[test]
fn packets_of_a_backend_with_a_vip_as_source_are_not_tracked() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let (pod, masqueraded) = (network.addresses.pod(), network.addresses.masqueraded());
        let claim = PortClaim { vip: Vip::new(pod), protocol: Protocol::Udp, port: UDP_PORT.into() };
        let mut snat = network.snat();
        snat.sync(&set(&[])).unwrap();
        assert_eq!(network.udp_reply_source().ip(), masqueraded);
        for port in [claim.port, PortNumber::Every] {
            let direct = Element::Direct(PortClaim { port, ..claim });
            assert_eq!(snat.sync(&table([direct])).unwrap(), SyncResult::Replaced, "with more rules");
            assert_eq!(network.udp_reply_source().ip(), pod);
            let uplink = network.node.enter(|| nix::net::if_::if_nametoindex("cni").unwrap());
            assert_eq!(
                snat.sync(&table([direct, Element::Uplink(uplink)])).unwrap(),
                SyncResult::Updated { added: 1, removed: 0 }
            );
            assert_eq!(network.udp_reply_source().ip(), masqueraded, "of an uplink");
            let other = Element::Direct(PortClaim { protocol: Protocol::Tcp, ..claim });
            assert_eq!(snat.sync(&table([other])).unwrap(), SyncResult::Updated { added: 1, removed: 2 });
            assert_eq!(network.udp_reply_source().ip(), masqueraded, "of another protocol");
            assert_eq!(snat.sync(&set(&[])).unwrap(), SyncResult::Replaced, "without them");
            assert_eq!(network.udp_reply_source().ip(), masqueraded);
        }
    }
}

#[test]
fn a_tcp_connection_lives_on_when_conntrack_lost_it() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let listener = network.listener();
        let (_client, mut pod) = network.connection(&listener);
        network.node.enter(flush_conntrack);
        pod.write_all(b"!").unwrap();
        assert_eq!(pod.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "masqueraded without the chain");

        let mut snat = network.snat();
        snat.sync(&set(&[network.addresses.backend(TCP)])).unwrap();
        let (mut client, mut pod) = network.connection(&listener);
        network.node.enter(flush_conntrack);
        pod.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn a_connection_that_the_backend_opens_itself_is_masqueraded_as_ever() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let backend = network.addresses.backend(TCP);
        let mut snat = network.snat();
        snat.sync(&set(&[backend, LocalBackend { port: None, ..backend }])).unwrap();
        let listener = network.client.enter(|| TcpListener::bind((network.addresses.client(), 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let _connection = network.pod.run(async |_| {
            let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
            socket.bind((backend.address, TCP_PORT).into()).unwrap();
            socket.connect(to).await.unwrap()
        });
        assert_eq!(listener.accept().unwrap().1.ip(), network.addresses.masqueraded());
    }
}

/// NTP, SIP, WireGuard: the source port is the Service's.
#[test]
fn a_flow_of_datagrams_that_the_backend_starts_is_masqueraded_as_ever() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let (pod, masqueraded) = (network.addresses.pod(), network.addresses.masqueraded());
        let backend = network.addresses.backend(UDP);
        let mut snat = network.snat();
        for backend in [backend, LocalBackend { port: None, ..backend }] {
            snat.sync(&set(&[backend])).unwrap();
            let peer = network.client_socket();
            let to = peer.local_addr().unwrap();
            for _ in 0..2 {
                network.server.send_to(b"question", to).unwrap();
                let (_, from) = peer.recv_from(&mut [0; 16]).unwrap();
                assert_eq!(from.ip(), masqueraded);
                // The answer does not make the peer a client.
                peer.send_to(b"answer", from).unwrap();
                assert_eq!(network.server.recv_from(&mut [0; 16]).unwrap().1, to);
                network.node.enter(flush_conntrack);
            }
            // Another port of the same machine is a client's.
            assert_eq!(network.udp_reply_source().ip(), pod);
            network.server.send_to(b"question", to).unwrap();
            assert_eq!(peer.recv_from(&mut [0; 16]).unwrap().1.ip(), masqueraded);
            peer.send_to(b"a question of its own", (pod, UDP_PORT)).unwrap();
            network.server.recv_from(&mut [0; 32]).unwrap();
            network.node.enter(flush_conntrack);
            network.server.send_to(b"answer", to).unwrap();
            assert_eq!(peer.recv_from(&mut [0; 16]).unwrap().1.ip(), pod, "now it is a client");
        }
    }
}

#[test]
fn clients_are_remembered_while_the_table_is_replaced() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let backends = set(&[network.addresses.backend(UDP)]);
        network.snat().sync(&backends).unwrap();
        let client = network.asking_client();
        let to = client.local_addr().unwrap();
        let longer = DesiredTable { remembered: 3_600, ..backends.clone() };
        let other = set(&[network.addresses.backend(TCP)]);
        let mut snat = network.snat();
        for desired in [&backends, &longer, &backends, &other, &backends] {
            snat.sync(desired).unwrap();
        }
        assert_eq!(network.snat().sync(&longer).unwrap(), SyncResult::Replaced, "as by another agent");
        network.node.enter(flush_conntrack);
        network.server.send_to(b"answer", to).unwrap();
        assert_eq!(client.recv_from(&mut [0; 16]).unwrap().1.ip(), network.addresses.pod());
    }
}

#[test]
fn a_full_set_keeps_its_clients_and_takes_others_when_there_is_room() {
    for addresses in [V4, V6] {
        let Some(network) = Network::new(addresses) else { return };
        let (pod, masqueraded) = (network.addresses.pod(), network.addresses.masqueraded());
        network.snat().sync(&set(&[network.addresses.backend(UDP)])).unwrap();
        let old = network.asking_client();
        let made_up = network.fill_clients();
        let new = network.asking_client();
        let answer = |client: &UdpSocket| {
            network.node.enter(flush_conntrack);
            network.server.send_to(b"answer", client.local_addr().unwrap()).unwrap();
            client.recv_from(&mut [0; 16]).unwrap().1.ip()
        };
        assert_eq!(answer(&old), pod);
        assert_eq!(answer(&new), masqueraded);
        network.node.enter(|| change_clients(&ClientSet::of(network.addresses.family), &made_up, deleted));
        assert_eq!(answer(&new), masqueraded, "it has not sent anything yet");
        new.send_to(b"question", (pod, UDP_PORT)).unwrap();
        network.server.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(answer(&new), pod);
        assert_eq!(answer(&old), pod);
    }
}

#[test]
fn clients_are_remembered_for_the_longest_idle_timeout_of_the_nodes_services() {
    let here = node_name("here");
    let owner = ServiceName::new("default", "dns");
    let backend = |address: &str| DesiredBackend {
        address: address.parse().unwrap(),
        port: NonZeroU16::new(53),
        node: Some(here.clone()),
        readiness: Readiness::Ready,
    };
    let service = |idle, direct| DesiredService {
        owner: owner.clone(),
        backends: Arc::new([backend("10.244.1.2")].into()),
        treatment: Treatment { idle, direct, ..Treatment::default() },
    };
    let mut desired = nothing(here.clone());
    let mut builder = TableBuilder::default();
    let mut remembered = |desired: &Desired| builder.update(desired, [].into_iter()).remembered;
    assert_eq!(remembered(&desired), 300);
    for (protocol, port, idle, direct, expected) in [
        (Protocol::Tcp, 1, Some(7_200), false, 300),
        (Protocol::Udp, 2, Some(10), false, 10),
        (Protocol::Udp, 3, None, false, 300),
        (Protocol::Udp, 4, Some(3_600), true, 300),
        (Protocol::Udp, 5, Some(3_600), false, 3_600),
        (Protocol::Udp, 6, Some(3_600), false, 3_600),
        (Protocol::Udp, 5, Some(60), false, 3_600),
        (Protocol::Udp, 6, Some(60), false, 300),
    ] {
        desired.services.insert(claim(vip4(50), protocol, port), service(idle, direct));
        assert_eq!(remembered(&desired), expected, "{protocol} {port}");
    }
    desired.services.remove(&claim(vip4(50), Protocol::Udp, 3));
    assert_eq!(remembered(&desired), 60);
}

#[test]
fn elements_come_and_go_with_the_backends() {
    let Some(network) = Network::new(V4) else { return };
    let mut snat = network.snat();
    assert_eq!(snat.sync(&set(&[TCP])).unwrap(), SyncResult::Replaced);
    assert_eq!(network.udp_reply_source().ip(), V4.masqueraded(), "of another protocol");
    assert_eq!(snat.sync(&set(&[TCP, UDP])).unwrap(), SyncResult::Updated { added: 1, removed: 0 });
    assert_eq!(snat.sync(&set(&[TCP, UDP])).unwrap(), SyncResult::Unchanged);
    assert_eq!(network.udp_reply_source().ip(), UDP.address);
    assert_eq!(snat.sync(&set(&[TCP])).unwrap(), SyncResult::Updated { added: 0, removed: 1 });
    assert_eq!(network.udp_reply_source().ip(), V4.masqueraded());
}

#[test]
fn a_flushed_or_inherited_table_is_replaced_whole() {
    let Some(network) = Network::new(V4) else { return };
    let (mut first, mut other) = (network.snat(), network.snat());
    first.sync(&set(&[TCP])).unwrap();
    assert_eq!(other.sync(&set(&[UDP])).unwrap(), SyncResult::Replaced, "as after a restart");
    assert_eq!(network.udp_reply_source().ip(), UDP.address);
    other.remove().unwrap();
    assert_eq!(first.sync(&set(&[UDP])).unwrap(), SyncResult::Replaced, "as after `nft flush ruleset`");
    assert_eq!(network.udp_reply_source().ip(), UDP.address);
}

/// It has a set of the same name with another key, and a chain at another hook.
#[test]
fn a_table_of_another_version_is_replaced_whole() {
    let Some(network) = Network::new(V4) else { return };
    let table = || TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_owned())] };
    let chain = vec![
        ChainAttribute::Table(TABLE.to_owned()),
        ChainAttribute::Name("prerouting".to_owned()),
        ChainAttribute::Hook(vec![Hook::Number(InetHookNumber::Forward.into()), Hook::Priority(0)]),
        ChainAttribute::Type("filter".to_owned()),
    ];
    let set = vec![
        SetAttribute::Table(TABLE.to_owned()),
        SetAttribute::Name("clients4".to_owned()),
        SetAttribute::KeyType(7),
        SetAttribute::KeyLen(4),
        SetAttribute::Id(1),
    ];
    for other in [
        NfTablesMessage::NewChain(ChainMessage { attributes: chain }),
        NfTablesMessage::NewSet(SetMessage { attributes: set }),
    ] {
        network.snat().remove().unwrap();
        let changes = [NfTablesMessage::NewTable(table()), other].map(TransactionMessage::Create);
        network.node.enter(|| Socket::open().unwrap().commit("be another version", changes.into()).unwrap());
        assert_eq!(network.snat().sync(&self::set(&[UDP])).unwrap(), SyncResult::Replaced);
        assert_eq!(network.udp_reply_source().ip(), UDP.address);
    }
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
    let ports = (1..=10_000).map(|port| LocalBackend { port: NonZeroU16::new(port), ..UDP });
    let v6 = ports.clone().map(|backend| V6.backend(backend));
    let half = table(ports.clone().map(Element::Backend));
    let all = table(ports.chain(v6).map(Element::Backend));
    assert_eq!(snat.sync(&all).unwrap(), SyncResult::Replaced);
    assert_eq!(snat.sync(&half).unwrap(), SyncResult::Updated { added: 0, removed: 10_000 });
    assert_eq!(snat.sync(&all).unwrap(), SyncResult::Updated { added: 10_000, removed: 0 });
}

#[test]
fn a_refused_change_changes_nothing() {
    let Some([node]) = Namespace::new() else { return };
    let mut snat = node.enter(|| IdentitySnat::open().unwrap());
    snat.sync(&set(&[UDP])).unwrap();
    let [tcp, other] = [TCP, LocalBackend { port: Some(NonZeroU16::MIN), ..UDP }].map(Element::Backend);
    let refused = ruleset::update(&mut snat.socket, &[tcp], &[other]);
    assert!(
        matches!(&refused, Err(SnatError::Refused { source, .. }) if source.raw_os_error() == Some(libc::ENOENT)),
        "{refused:?}"
    );
    ruleset::update(&mut snat.socket, &[], &[tcp]).expect_err("it was not added");
}
