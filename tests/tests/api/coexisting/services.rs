//! A cluster with a real API server, with a real kube-proxy and an agent on every node, and with a
//! CNI's rules.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    kube_proxy::{KubeProxy, Mode},
    lan::{Client, Lan, Node, Options, PodNetwork},
    manifests::{Service, VIP, VIP_V6},
    netns::Namespace,
    pod::{Listener, Pod},
    requirement, resets, wait,
};

/// The addresses that all Services share.
pub(super) const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
/// A pod and a Service of each kind on every node. A port ends with the node's number, at the
/// Service and at the pod.
const OFFERS: [(&str, Kind, u16); 4] = [
    ("bulk", Kind::Bulk, 7000),
    ("lines", Kind::Echo, 7100),
    ("datagrams", Kind::UdpEcho, 7200),
    ("web", Kind::Http, 8000),
];
/// The serving pods, and the pods that are only clients, in their node's network.
const SERVER: u8 = 10;
const CALLER: u8 = 20;

/// Two nodes. So the leader has the pod of one Service of a kind, and the other node has that of
/// the other.
const LAN: Options = Options { nodes: 2, clients: 2, cni_rules: true, reverse_path_filter: 1, ..Options::DEFAULT };

/// The cluster, and what runs beside vipmux.
pub(super) struct SharedServices {
    /// By node; stopped before the nodes are removed.
    pub(super) proxies: Vec<KubeProxy>,
    /// Pods without servers, by node.
    pub(super) callers: Vec<Pod>,
    /// The rest: serving pods by node, and agents.
    pub(super) cluster: Cluster,
    /// kube-proxy's mode.
    pub(super) mode: Mode,
    /// The pod network.
    pub(super) pods: PodNetwork,
}

impl SharedServices {
    /// Makes a cluster that serves; `None` if the test is skipped. `change` is applied to each
    /// Service.
    pub(super) fn new(mode: Mode, pods: PodNetwork, change: fn(Service) -> Service) -> Result<Option<Self>> {
        if !requirement::kube_proxy(mode)? {
            return Ok(None);
        }
        let Some(lan) = Lan::for_test(Options { pods, ..LAN })? else { return Ok(None) };
        let callers = lan.nodes.iter().map(|node| node.add_pod(&format!("calls-on-{}", node.name), CALLER));
        let callers = callers.collect::<Result<Vec<_>>>()?;
        let Some(cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
        let mut services = Self { proxies: Vec::new(), callers, cluster, mode, pods };
        services.add_services(change)?;
        services.watched().try_for_each(resets::watch)?;
        for number in 0..services.cluster.lan.nodes.len() {
            services.start_proxy(number)?;
        }
        let options = services.cluster.agent_options();
        services.cluster.start_agents(&options)?;
        services.await_served()?;
        Ok(Some(services))
    }

    fn add_services(&mut self, change: fn(Service) -> Service) -> Result<()> {
        let nodes: Vec<_> = self.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
        for (number, node) in (1..).zip(&nodes) {
            let listeners =
                OFFERS.map(|(name, kind, port)| Listener::new(kind, port + number, &format!("shop/{name}-{number}")));
            self.cluster.add_pod(node, &format!("serves-on-{node}"), SERVER, &listeners)?;
        }
        for (number, pod) in (1..).zip(&self.cluster.pods) {
            let endpoints = [self.cluster.endpoint(&pod.name)?, self.cluster.endpoint_v6(&pod.name)?];
            for (name, kind, port) in OFFERS {
                let port = port + number;
                let service = Service::sharing(&format!("shop/{name}-{number}"), port, kind.protocol(), port);
                let service = change(service.dual_stack().with(endpoints.clone()));
                self.cluster.manifests.write_service(&service)?;
                self.cluster.api()?.give(&service.full_name(), &VIPS)?;
            }
        }
        Ok(())
    }

    /// Starts kube-proxy on a node, also after it was stopped.
    pub(super) fn start_proxy(&mut self, number: usize) -> Result<()> {
        let proxy = KubeProxy::start(&self.cluster.lan.nodes[number], self.cluster.api()?, self.mode)?;
        if let Some(before) = self.proxies.get_mut(number) {
            *before = proxy;
        } else {
            self.proxies.push(proxy);
        }
        Ok(())
    }

    fn await_served(&self) -> Result<()> {
        for offer in self.offers() {
            self.cluster.await_ready(offer.port, 1)?;
            for vip in VIPS {
                self.cluster.await_service(offer.at(vip), &offer.service)?;
            }
        }
        Ok(())
    }

    /// Returns all Services, one per kind and node.
    pub(super) fn offers(&self) -> Vec<Offer<'_>> {
        let of_node = |(number, (pod, node)): (u16, (_, _))| {
            OFFERS.map(|(name, kind, port)| Offer {
                service: format!("shop/{name}-{number}"),
                kind,
                port: port + number,
                pod,
                node,
            })
        };
        (1..).zip(self.cluster.pods.iter().zip(&self.cluster.lan.nodes)).flat_map(of_node).collect()
    }

    /// Returns the Services of one kind, by node.
    pub(super) fn offers_of(&self, kind: Kind) -> Vec<Offer<'_>> {
        self.offers().into_iter().filter(|offer| offer.kind == kind).collect()
    }

    /// Returns the nodes, and the pods without servers.
    pub(super) fn inside(&self) -> Vec<&Namespace> {
        self.cluster.lan.nodes.iter().map(Node::namespace).chain(self.callers.iter().map(Pod::namespace)).collect()
    }

    /// Opens a connection from the first client to each node's pod, through each VIP.
    pub(super) fn sessions(&self) -> Result<Vec<Session>> {
        let lines = self.offers_of(Kind::Echo);
        let servers = lines.iter().flat_map(|offer| VIPS.map(|vip| offer.at(vip).server));
        let client = self.cluster.lan.client()?.namespace();
        let mut sessions: Vec<_> =
            servers.map(|server| client.run(|| Session::connect(server, TIMEOUT))).collect::<Result<_>>()?;
        sessions.iter_mut().try_for_each(|session| session.echo("hello").map(drop))?;
        Ok(sessions)
    }

    /// Returns a Service from the API server.
    pub(super) fn service(&self, name: &str) -> Result<Value> {
        let (namespace, name) = name.split_once('/').context("no namespace/name")?;
        let named =
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name } });
        self.cluster.api()?.get(&named)?.with_context(|| format!("no Service {name}"))
    }

    /// Runs a part of a test in which no client and no pod may reset a connection.
    pub(super) fn without_resets(&mut self, part: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = self.resets()?;
        work(self).context(part.to_owned())?;
        let resets: Vec<_> = self.resets()?.difference(&before).cloned().collect();
        ensure!(resets.is_empty(), "{part}: RSTs were sent: {}", resets.join(", "));
        Ok(())
    }

    fn resets(&self) -> Result<BTreeSet<String>> {
        self.watched().try_fold(BTreeSet::new(), |all, namespace| Ok(&all | &resets::noted(namespace)?))
    }

    /// Returns the clients and the pods.
    fn watched(&self) -> impl Iterator<Item = &Namespace> {
        let clients = self.cluster.lan.clients.iter().map(Client::namespace);
        clients.chain(self.cluster.pods.iter().chain(&self.callers).map(Pod::namespace))
    }
}

/// A pod's server, with a Service of its own.
pub(super) struct Offer<'a> {
    /// `namespace/name`.
    pub(super) service: String,
    /// The kind of server.
    pub(super) kind: Kind,
    /// The Service's port, and the pod's.
    pub(super) port: u16,
    /// The serving pod.
    pub(super) pod: &'a Pod,
    /// The pod's node.
    pub(super) node: &'a Node,
}

impl Offer<'_> {
    /// Returns a request for it.
    pub(super) fn at(&self, address: impl Into<IpAddr>) -> Request {
        Request::new(self.kind, address, self.port)
    }

    /// Returns the pod's address of a VIP's family.
    pub(super) fn pod_address(&self, vip: IpAddr) -> IpAddr {
        if vip.is_ipv4() { self.pod.address.into() } else { self.pod.address_v6.into() }
    }

    /// Sends it a request from somewhere. Returns the client that the pod saw.
    pub(super) fn seen_by(&self, from: &Namespace, request: Request) -> Result<IpAddr> {
        let answer = from.run(|| request.send(TIMEOUT)).with_context(|| format!("from {}", from.name()))?;
        self.check(request, &answer.service)?;
        Ok(answer.client.ip())
    }

    /// The same through kube-proxy, which may need more time.
    pub(super) fn await_seen_by(&self, from: &Namespace, request: Request) -> Result<IpAddr> {
        wait::until(&format!("{request} from {}", from.name()), PATIENCE, || self.seen_by(from, request))
    }

    fn check(&self, request: Request, service: &str) -> Result<()> {
        ensure!(service == self.service, "{request} is for {} and was answered by {service}", self.service);
        Ok(())
    }
}

/// Returns a machine's address of a VIP's family.
pub(super) fn of_family(vip: IpAddr, v4: impl Into<IpAddr>, v6: impl Into<IpAddr>) -> IpAddr {
    if vip.is_ipv4() { v4.into() } else { v6.into() }
}
