//! The demo's steps, in order.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use vipmux_tests::{
    agent::{self, Plan},
    arp,
    client::Request,
    cluster::{Cluster, PATIENCE},
    demo::{LATER, LATER_SERVICE, SERVICES, Service},
    lan::Node,
    process,
    traffic::Traffic,
    wait,
};

use crate::{TIMEOUT, screen::Screen};

/// How long the client waits for ARP replies.
const ARP_WINDOW: Duration = Duration::from_millis(300);
/// Requests to each port. With two equal pods, the chance that one gets none is 2^-19.
const REQUESTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Show<'a> {
    screen: &'a mut Screen,
    cluster: &'a Cluster,
    vip: Ipv4Addr,
    leader: &'a Node,
}

impl<'a> Show<'a> {
    pub(crate) fn new(screen: &'a mut Screen, cluster: &'a Cluster) -> Result<Self> {
        let plan = Plan::of(cluster.manifests.path())?;
        let vip = plan.address(SERVICES[0].name)?;
        let leader = cluster.await_leader(vip)?;
        Ok(Self { screen, cluster, vip, leader })
    }

    pub(crate) fn all(mut self) -> Result<()> {
        self.plan()?;
        self.leader()?;
        self.requests()?;
        self.inspect()?;
        self.changes()
    }

    fn plan(&mut self) -> Result<()> {
        self.screen.heading("The manifests and the resulting plan");
        let mut command = Command::new(agent::binary()?);
        command.arg("plan").arg(self.cluster.manifests.path());
        let output = process::run(command)?;
        self.screen.command(&format!("vipmux plan {}", self.cluster.manifests.path().display()), &output);
        let plan = Plan::of(self.cluster.manifests.path())?;
        for service in SERVICES {
            let address = plan.address(service.name)?;
            ensure!(address == self.vip, "{} got {address}, not {}", service.name, self.vip);
        }
        self.screen.shown("five Services share one address", self.vip.to_string());
        Ok(())
    }

    fn leader(&mut self) -> Result<()> {
        self.screen.heading("The node that answers for the address");
        let (client, vip) = (self.cluster.lan.client()?, self.vip);
        let answers = arp::answers(client.namespace(), client.address, vip, ARP_WINDOW)?;
        let names: Vec<_> = answers.iter().map(|mac| self.name_of(*mac)).collect();
        ensure!(answers == [self.leader.mac], "{} leads {vip}, but these nodes answer: {names:?}", self.leader.name);
        self.screen.shown("exactly one node answers ARP", format!("{} ({})", self.leader.name, self.leader.mac));

        self.await_services()?;
        let entry = client.neighbor(vip)?.with_context(|| format!("the client has no ARP entry for {vip}"))?;
        ensure!(entry == self.leader.mac, "the client's ARP entry for {vip} is {entry}");
        self.screen.shown("the client's ARP entry is the leader's", format!("{vip} is at {entry}"));
        Ok(())
    }

    fn name_of(&self, mac: pnet::util::MacAddr) -> String {
        self.cluster.lan.node_of(mac).map_or_else(|| mac.to_string(), |node| node.name.clone())
    }

    /// Right after the start, nodes may not know each other's MACs yet.
    fn await_services(&self) -> Result<()> {
        self.screen.step("every port answers", || {
            SERVICES
                .iter()
                .try_for_each(|service| self.cluster.await_service(self.request(service), service.name).map(drop))
        })
    }

    fn request(&self, service: &Service) -> Request {
        Request::new(service.kind, self.vip, service.port)
    }

    fn requests(&mut self) -> Result<()> {
        self.screen.heading(&format!("{REQUESTS} requests to each port"));
        let client = self.cluster.lan.client()?.address;
        for service in SERVICES {
            let mut by_pod = BTreeMap::new();
            for _ in 0..REQUESTS {
                let answer = self.cluster.ask(self.request(&service), TIMEOUT)?;
                ensure!(answer.service == service.name, "a request to {} was answered by {answer}", service.name);
                ensure!(
                    answer.client.ip() == client,
                    "{} saw {} and not the client {client}",
                    answer.pod,
                    answer.client
                );
                *by_pod.entry(answer.pod).or_insert(0) += 1;
            }
            let reached: Vec<_> = by_pod.keys().map(String::as_str).collect();
            ensure!(
                reached == service.pods,
                "{} has the pods {:?}, but requests reached {reached:?}",
                service.name,
                service.pods
            );
            let places = by_pod.iter().map(|(pod, count)| Ok(format!("{pod} on {} {count}x", self.node_of(pod)?)));
            let places = places.collect::<Result<Vec<_>>>()?.join(", ");
            let what =
                format!("{}/{} {} reaches {}", service.port, service.kind.protocol(), service.kind, service.name);
            self.screen.shown(&what, places);
        }
        self.screen.shown("every pod saw the client's own address", client.to_string());
        Ok(())
    }

    fn node_of(&self, pod: &str) -> Result<&str> {
        Ok(&self.cluster.pod(pod)?.node)
    }

    fn inspect(&mut self) -> Result<()> {
        self.screen.heading(&format!("The kernel's state on {}", self.leader.name));
        let agent = self.cluster.agent(&self.leader.name)?;
        for view in ["vips", "services", "backends", "neighbors", "flows", "stats"] {
            let arguments: &[&str] = if view == "flows" { &[view, "--limit", "8"] } else { &[view] };
            let output = agent.inspect(self.leader, arguments)?;
            self.screen.command(&format!("vipmux inspect {}", arguments.join(" ")), &output);
        }
        let services = agent.inspect(self.leader, &["services"])?;
        for service in SERVICES {
            ensure!(services.contains(service.name), "`vipmux inspect services` has no {}", service.name);
        }
        self.screen.shown("inspect reads the kernel's maps", "vips, services, backends, flows, stats");
        Ok(())
    }

    fn changes(&mut self) -> Result<()> {
        self.screen.heading("A Service is added and removed while the others have traffic");
        let namespace = self.cluster.lan.client()?.namespace();
        let traffic: Vec<_> = SERVICES
            .iter()
            .map(|service| Traffic::start(namespace, self.request(service), PAUSE))
            .collect::<Result<_>>()?;
        let (file, text) = LATER;
        let request = self.request(&LATER_SERVICE);
        self.screen.step(&format!("add {file}: {} answers on {}", LATER_SERVICE.name, LATER_SERVICE.port), || {
            self.cluster.manifests.write_text(file, text)?;
            self.cluster.await_service(request, LATER_SERVICE.name)
        })?;
        self.screen.step(&format!("remove {file}: nobody answers there"), || {
            self.cluster.manifests.remove(file)?;
            wait::until("silence on the removed port", PATIENCE, || match self.cluster.ask(request, PAUSE * 60) {
                Ok(answer) => bail!("{answer}"),
                Err(_) => Ok(()),
            })
        })?;
        let mut answered = 0;
        for (traffic, service) in traffic.into_iter().zip(SERVICES) {
            traffic.wait_for_more(10, PATIENCE)?;
            let tally = traffic.stop()?;
            tally.check_all_by(service.name)?;
            answered += tally.answered;
        }
        self.screen.shown("a Service was added and removed under traffic", LATER_SERVICE.name);
        self.screen.shown("no request to the others was lost", format!("{answered} answered, 0 lost"));
        Ok(())
    }
}

/// Prints commands for another terminal, while the demo is kept running.
pub(crate) fn commands_to_try(screen: &Screen, cluster: &Cluster) -> Result<()> {
    let vip = Plan::of(cluster.manifests.path())?.address(SERVICES[0].name)?;
    let leader = cluster.await_leader(vip)?;
    let agent = cluster.agent(&leader.name)?;
    let binary = agent::binary()?;
    let client = enter(cluster.lan.client()?.namespace().path());
    let on_leader = enter(leader.namespace().path());
    screen.heading("Everything keeps running. In another terminal, try:");
    let demo = std::env::current_exe()?;
    for Service { kind, port, .. } in SERVICES {
        println!("  {client} {} ask {kind} {vip}:{port}", demo.display());
    }
    println!("  {client} curl http://{vip}/");
    println!("  {client} ip neighbour");
    let (binary, pins, folder) = (binary.display(), agent.pins().display(), cluster.manifests.path().display());
    for view in ["vips", "services", "flows", "stats", &format!("lookup 192.0.2.101:40000 {vip}:80 tcp")] {
        println!("  {on_leader} {binary} inspect --pin-path {pins} {view}");
    }
    println!("  {binary} plan {folder}");
    println!("Edit the manifests in {folder}: the agents apply the changes. Ctrl-C removes everything.");
    Ok(())
}

fn enter(namespace: &Path) -> String {
    format!("nsenter --net={}", namespace.display())
}
