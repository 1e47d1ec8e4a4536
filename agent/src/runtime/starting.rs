//! From what the agent is told to its event loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tokio::sync::{mpsc, watch};

use super::{
    Agent, AgentError,
    conflicts::owners,
    elector::Elector,
    health::Probes,
    interfaces::Interfaces,
    kernel::{Kernel, boottime},
    observing::{self, Sources},
    origin::{self, Opened, Origin},
    privileges,
    quota::Quota,
    settle,
    showing::Shown,
    vitals::Vitals,
};
use crate::{
    announce::{Announcer, Pacing, Sender, groups, probe::Prober, watch::Watch},
    control,
    datapath::{
        apply::Unclaimed,
        attach::{HandoverMac, Mode, Tc},
        maps::flow_entries,
        pins::Pins,
    },
    election::{self, Election},
    gossip::{self, StartError},
    http::Listen,
    link::{self, Ethtool, LinkError, Links, Monitor},
    membership::sealing::Keys,
    metrics::Meters,
    model::{
        self, NodeName,
        range::{SUBNET_ANYCAST, subnet_anycast},
        tag::ServiceTags,
    },
    plan::Unreachable,
    snat,
    stop::Stop,
    store::{Place, Report},
};

/// Most questions about what was decided that wait at the same time.
const MOST_QUESTIONS: usize = 16;
/// Bytes of the machine's memory for each entry of a flow table. Both tables' entries take 280 bytes, so they take
/// about a hundredth of it.
const MEMORY_PER_FLOW: u64 = 28_000;

/// What the agent is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its objects come from.
    pub origin: Origin,
    /// The Node that this is.
    pub node: NodeName,
    /// Interfaces to announce on; empty: whose subnet holds the Node's InternalIP.
    pub interfaces: Vec<String>,
    /// Where `assignments.yaml` is.
    pub state_dir: PathBuf,
    /// The root of the pins.
    pub pin_path: PathBuf,
    /// How XDP programs run.
    pub mode: Mode,
    /// The source MAC of frames that are handed over.
    pub handover_mac: HandoverMac,
    /// How the egress program is attached.
    pub tc: Tc,
    /// What becomes of packets that no Service takes.
    pub unclaimed: Unclaimed,
    /// What becomes of Service ports whose endpoints cannot be reached.
    pub unreachable: Unreachable,
    /// Entries of each flow table; 0: as many as there are, or by the memory.
    pub flows: u32,
    /// How often the kernel's state is checked and repaired; zero: never.
    pub self_check: Duration,
    /// How often each VIP is announced after the burst; zero: never.
    pub announce_every: Duration,
    /// Source ranges that Services ask for by name.
    pub service_tags: ServiceTags,
    /// Services with this `loadBalancerClass` are ours.
    pub load_balancer_class: String,
    /// Services without one are ours too.
    pub unset_class_is_ours: bool,
    /// The UDP port on which the agents speak to each other.
    pub gossip_port: u16,
    /// Where the gossip's keys are; `None`: in the state directory, and made there, but not in a cluster.
    pub gossip_key: Option<PathBuf>,
    /// How VIPs are led.
    pub election: election::Settings,
    /// Where to listen for questions.
    pub socket: PathBuf,
    /// Where to serve metrics and probes.
    pub http: Listen,
}

/// Runs the agent until SIGTERM or SIGINT, when it hands over what it leads. Programs, maps and links stay pinned: traffic
/// goes on, and what nobody took is answered for until the fence's deadline.
pub async fn run(options: Options) -> Result<(), AgentError> {
    let stop = Stop::listen().map_err(AgentError::Signal)?;
    privileges::check()?;
    let _lock = lock(&options)?;
    let Opened { listed, follower, authority, leases, teller } =
        origin::open(&options.origin, &options.node, &options.state_dir).await?;
    // Before anything is put into the kernel that would stay.
    let keys = keys(&options)?;
    let monitor = Monitor::start().await?;
    let links = monitor.links();
    for name in &options.interfaces {
        let links = links.borrow();
        let interface = links.named(name)?;
        let segment = links.segment(interface)?;
        if let Some(whole) = links.get(segment.ifindex).filter(|whole| whole.ifindex != interface.ifindex) {
            tracing::warn!(interface = name, "it is a port of {0}: announcing for {0} there", whole.name);
        }
    }
    let (sender, settled) = watch::channel(Arc::default());
    let reserved = reserved(&links.borrow().clone()).await?;
    let ours = model::Options {
        load_balancer_class: options.load_balancer_class.clone(),
        unset_class_is_ours: options.unset_class_is_ours,
        reserved,
        service_tags: options.service_tags.clone(),
    };
    let (questions, asked) = mpsc::channel(MOST_QUESTIONS);
    let (probes, health) = Probes::start(options.node.clone())?;
    let looked = follower.looked();
    let (owners, conflicts) = mpsc::channel(owners::WAITING);
    // Both end with the agent: they are aborted with the runtime, and hold nothing that needs care.
    tokio::spawn(async move {
        let Some(objects) = listed.await else { return };
        if let Some(teller) = teller {
            tokio::spawn(owners::tell(teller, objects.clone(), conflicts));
        }
        settle::follow(objects, looked, asked, authority, ours, probes, sender).await;
    });
    let pins = Pins::new(&options.pin_path);
    let flows = match options.flows {
        0 => flow_entries(&pins).unwrap_or_else(flows_by_memory),
        flows => flows,
    };
    let port = options.http.open()?;
    let kernel = Kernel::open(pins, flows, options.unclaimed)?;
    let (elector, reports) = elect(&options, leases, keys.clone())?;
    let shown = Shown::read(&kernel)?;
    let queries = control::listen(&options.socket)?;
    let (meters, vitals) = (Meters::default(), Arc::<Vitals>::default());
    let (gossip, findings) = (elector.counters(), health.findings());
    observing::serve(port, &options.pin_path, Sources { meters: &meters, vitals: &vitals, gossip, keys, findings })?;
    let agent = Agent {
        kernel,
        elector,
        carrier: false,
        macs: BTreeMap::new(),
        leaving: None,
        shown,
        health,
        prober: Prober::new(seed()?),
        received: BTreeMap::new(),
        source: follower,
        questions,
        awaited: 0,
        announcer: Announcer::new(Pacing::default().repeating(options.announce_every)),
        sender: Sender::open()?,
        snat: snat::keep()?,
        groups: groups::keep(),
        wanted: snat::Wanted::default(),
        interfaces: Interfaces::new(Ethtool::open()?),
        linked: BTreeSet::new(),
        ready: false,
        changed: false,
        refused: BTreeSet::new(),
        watch: Watch::default(),
        conflicts: BTreeSet::new(),
        owners,
        meters,
        vitals,
        course: settle::Course::default(),
        lapses: 0,
        leaderships: Quota::default(),
        strangers: Quota::default(),
        failures: Quota::default(),
        retry: None,
        options,
    };
    agent.turn(stop, &monitor, settled, queries, reports).await?;
    tracing::info!("stopping; programs and maps stay in place (`vipmux unload` removes them)");
    monitor.stop().await;
    Ok(())
}

/// Addresses that this node knows to be nobody's VIP (rule 14), as they are when the agent starts: its gateways, and what
/// every router of its subnets answers to.
async fn reserved(links: &Links) -> Result<BTreeMap<IpAddr, String>, LinkError> {
    let gateways = link::gateways().await?.into_iter().map(|address| (address, "a gateway of the nodes".to_owned()));
    let anycast = links.iter().flat_map(|interface| &interface.addresses).filter_map(|&(own, prefix)| match own {
        IpAddr::V4(_) => None,
        IpAddr::V6(own) => Some((subnet_anycast(own, prefix)?.into(), SUBNET_ANYCAST.to_owned())),
    });
    Ok(anycast.chain(gateways).collect())
}

/// What seals the gossip, as long as it is followed.
fn keys(options: &Options) -> Result<watch::Receiver<Keys>, AgentError> {
    let made = options.state_dir.join("gossip.key");
    let (path, keys) = match (&options.gossip_key, &options.origin) {
        (Some(path), _) => (path.clone(), gossip::load(path)?),
        (None, Origin::Manifests(_)) => (made.clone(), gossip::load_or_make(&made)?),
        // Each node would make its own, and hear nobody.
        (None, Origin::Cluster { .. }) => return Err(AgentError::NoKey),
    };
    Ok(gossip::follow(path, keys))
}

/// Begins to listen to the other agents.
fn elect(
    options: &Options,
    leases: Place,
    keys: watch::Receiver<Keys>,
) -> Result<(Elector, mpsc::Receiver<Report>), AgentError> {
    let now = boottime()?;
    let election = Election::new(options.node.clone(), options.election, now);
    let gossip = gossip::Settings { local: options.node.clone(), port: options.gossip_port, keys };
    Elector::start(election, options.election.lease, gossip, leases, seed()?)
}

/// Something that no two agents have.
fn seed() -> Result<u64, AgentError> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(StartError::Random)?;
    Ok(u64::from_ne_bytes(seed))
}

/// One agent per node name and state directory.
fn lock(options: &Options) -> Result<Flock<File>, AgentError> {
    let state = |source| AgentError::State { path: options.state_dir.clone(), source };
    fs::create_dir_all(&options.state_dir).map_err(state)?;
    let path = options.state_dir.join(format!("agent-{}.lock", options.node.0.replace('/', "_")));
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(state)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => AgentError::Running { node: options.node.clone(), path },
        other => state(other.into()),
    })
}

/// Between 16 k and 1 M entries, by the machine's memory.
fn flows_by_memory() -> u32 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let flows = total.unwrap_or(0_u64) * 1024 / MEMORY_PER_FLOW;
    u32::try_from(flows).unwrap_or(u32::MAX).clamp(16_384, 1_048_576)
}
