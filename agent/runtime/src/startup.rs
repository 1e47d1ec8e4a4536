//! Starts the agent: opens everything that it needs, then runs the event loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tokio::{
    select,
    sync::{mpsc, watch},
};

use crate::{
    AgentError, control,
    election::{
        ElectionDriver, announcements::Announcements, elector::Elector, gossip_keys, handover_macs::HandoverMacs,
        peer_health::HealthProbes,
    },
    event_loop::Agent,
    events::Inputs,
    metrics::Meters,
    metrics_server::{self, MetricSources},
    problems::{
        address_conflicts::AddressConflicts, bypass::Bypasses, conflict_events, cut_segments::CutSegments,
        hashing_agreement::HashingAgreement, liveness::Liveness,
    },
    published::Published,
    runtime_options::RuntimeOptions,
    serving::{
        Serving,
        interfaces::{self, AttachedInterfaces},
        kernel::{Kernel, boottime},
        kernel_error::KernelError,
        link_kernel::LinkKernel,
        object_source::{self, Listed, OpenSource},
        pipeline::Pipeline,
        self_check::SelfCheck,
    },
    telemetry::Telemetry,
};
use vipmux_cluster::{
    clock,
    events::EventRecorder,
    store::{self, ConfiguredStore, StoreReport},
};
use vipmux_datapath::{
    bpf::{maps::flow_capacity, pins::Pins},
    capabilities,
    link::{self, Ethtool, LinkError, Links, Monitor},
};
use vipmux_election::{
    Election,
    membership::{Item, sealing::SealingKeys},
};
use vipmux_model as model;
use vipmux_model::{
    Vip,
    range::{SUBNET_ANYCAST, subnet_anycast},
};
use vipmux_supervisor::Supervisor;
use vipmux_supervisor::signals::StopSignals;

/// Most explain requests that wait at the same time.
const MOST_REQUESTS: usize = 16;
/// Bytes of the machine's memory for each record of the flow table. A record takes 68 bytes with its share
/// of the reserve, so the table takes about a hundredth of the memory at most.
const MEMORY_PER_FLOW: u64 = 6_400;

/// Runs the agent until SIGTERM or SIGINT, when it drains this node. Programs, maps and links stay
/// pinned: traffic goes on, and VIPs that no other node took are answered for until the fence
/// deadline. Fails if a supervised task ends: as if it was killed, without a drain.
pub async fn run(options: RuntimeOptions, supervisor: &Supervisor) -> Result<(), AgentError> {
    let mut stop = StopSignals::listen().map_err(AgentError::Signal)?;
    capabilities::check()?;
    check_clock()?;
    let _lock = lock(&options)?;
    // Probes that come before the agent has started wait for its answer.
    let listener = options.http.open()?;
    let OpenSource { listed, guard, allocation, leases, rollbacks, events, gossip_secret } =
        object_source::open(&options.origin, &options.node, &options.state_dir, supervisor).await?;
    // Read before anything is put into the kernel that would stay.
    let found_keys = select! {
        found = gossip_keys::find(&options, gossip_secret) => found?,
        failure = supervisor.failure() => return Err(failure.into()),
        () = stop.received() => return Ok(()),
    };
    let monitor = Monitor::start(supervisor).await?;
    check_interfaces(&options.interfaces, &monitor.links().borrow())?;
    let reserved = reserved(&monitor.links().borrow().clone()).await?;
    let (states, state) = watch::channel(Arc::default());
    let (explain_requests, requests) = mpsc::channel(MOST_REQUESTS);
    let (probes, health) = HealthProbes::start(options.node.clone(), supervisor)?;
    let (problems, problem_notes) = mpsc::channel(conflict_events::WAITING);
    let (refreshed, source, model) = (guard.refreshed(), allocation, model_options(&options, reserved));
    let pipeline = Pipeline { refreshed, requests, source, options: model, probes, published: states };
    start_pipeline(pipeline, listed, events, problem_notes, supervisor);
    let (mut kernel, links) = open_kernel(&options)?;
    kernel.limit_deadline(options.election.lease)?;
    let made_key = found_keys.is_none().then(|| gossip_keys::path(&options));
    let keys = gossip_keys::follow(&options, found_keys, supervisor)?;
    let watched = store::follow(&leases, rollbacks, supervisor);
    let recorded_macs = store::publish_macs(&leases, options.node.clone(), watched.clone(), supervisor);
    let led = kernel.answering(boottime()?)?;
    let (elector, reports) = start_elector(&options, led, leases, keys.clone(), made_key, supervisor)?;
    let hashing = HashingAgreement::new(kernel.observed().hashing(), options.election.hold_down);
    // Before its readiness, so that no peer takes it for an agent without this item.
    elector.publish(Item::Hashing(hashing.info()))?;
    let published = Published::read(&kernel)?;
    let queries = control::listen(&options.socket, supervisor)?;
    let (meters, liveness) = (Meters::default(), Arc::<Liveness>::default());
    let (gossip, findings) = (elector.counters(), health.findings());
    let handover_macs = HandoverMacs::new(keys.clone());
    let sources = MetricSources { meters: &meters, liveness: &liveness, gossip, keys: keys.clone(), findings };
    metrics_server::serve(listener, &options.pin_path, sources, supervisor)?;
    let conflicts = AddressConflicts::new(problems.clone(), meters.clone());
    let announcements = Announcements::new(
        (options.announce_every, options.announce_rate),
        seed()?,
        (conflicts, problems),
        meters.clone(),
    )?;
    let interfaces = AttachedInterfaces::new(interface_settings(&options), Ethtool::open()?);
    let node = options.node;
    let agent = Agent {
        serving: Serving::new(
            node.clone(),
            options.unreachable,
            handover_macs,
            (kernel, links),
            interfaces,
            supervisor,
        )?,
        election: ElectionDriver::new(node.clone(), elector, published, guard, recorded_macs),
        announcements,
        health,
        self_check: SelfCheck::new(options.self_check, meters.clone()),
        cut_segments: CutSegments::default(),
        bypasses: Bypasses::default(),
        hashing,
        telemetry: Telemetry::new(meters, liveness),
        explain_requests,
        unloaded: false,
        pins_checked: Duration::ZERO,
        node,
    };
    let inputs = Inputs::new(stop, &monitor, state, keys, queries, (reports, watched));
    // Large, and alive as long as the agent.
    let agent = Box::pin(agent.run(inputs, &monitor));
    select! {
        biased;
        // First: tasks end with it.
        ended = agent => ended?,
        failure = supervisor.failure() => return Err(failure.into()),
    }
    tracing::info!("stopping, programs and maps stay in place (`vipmux unload` removes them)");
    monitor.stop().await;
    Ok(())
}

/// Checks that this process and the programs read the same clock for the fence deadline.
fn check_clock() -> Result<(), AgentError> {
    match clock::boottime_offset().map_err(AgentError::TimeOffsets)? {
        0.0 => Ok(()),
        offset => Err(AgentError::TimeNamespace(offset)),
    }
}

/// Starts the tasks that need the objects, when those are listed.
fn start_pipeline(
    pipeline: Pipeline,
    listed: Listed,
    events: Option<EventRecorder>,
    problems: mpsc::Receiver<conflict_events::VipProblem>,
    supervisor: &Supervisor,
) {
    let supervised = supervisor.clone();
    // Computes the serving state. It ends with the source of objects, or with the runtime. It may
    // be canceled at any point.
    supervisor.spawn("pipeline", async move {
        let Some(objects) = listed.await else { return };
        if let Some(events) = events {
            // Sends Events about VIPs' problems on the LAN. It ends with the event loop, or with the
            // runtime: canceling it loses the Events that wait.
            supervised.spawn("Events of VIPs", conflict_events::run(events, objects.clone(), problems));
        }
        pipeline.run(objects).await;
    });
}

/// Checks that the named interfaces can be announced on. Logs those that are a port of another
/// interface.
fn check_interfaces(names: &[String], links: &Links) -> Result<(), AgentError> {
    for name in names {
        let interface = links.named(name)?;
        let segment = links.segment(interface)?;
        if let Some(whole) = links.get(segment.ifindex).filter(|whole| whole.ifindex != interface.ifindex) {
            tracing::warn!(interface = name, segment = whole.name, "interface is a port, announcing for its segment");
        }
    }
    Ok(())
}

fn model_options(options: &RuntimeOptions, reserved: BTreeMap<IpAddr, String>) -> model::IngestOptions {
    model::IngestOptions {
        load_balancer_class: options.load_balancer_class.clone(),
        unset_class_is_ours: options.unset_class_is_ours,
        reserved,
        service_tags: options.service_tags.clone(),
        pod_ranges: options.pod_ranges.clone(),
        limits: options.limits,
    }
}

fn interface_settings(options: &RuntimeOptions) -> interfaces::InterfaceSettings {
    interfaces::InterfaceSettings {
        node: options.node.clone(),
        names: options.interfaces.clone(),
        mode: options.mode,
        handover_mac: options.handover_mac,
        tc: options.tc,
    }
}

/// Returns addresses that can be no VIP (rule 14), as they are when the agent starts: the node's
/// gateways, and the subnet-router anycast addresses of its subnets.
async fn reserved(links: &Links) -> Result<BTreeMap<IpAddr, String>, LinkError> {
    let gateways = link::gateways().await?.into_iter().map(|address| (address, "a gateway of the nodes".to_owned()));
    let anycast = links.iter().flat_map(|interface| &interface.addresses).filter_map(|&(own, prefix)| match own {
        IpAddr::V4(_) => None,
        IpAddr::V6(own) => Some((subnet_anycast(own, prefix)?.into(), SUBNET_ANYCAST.to_owned())),
    });
    Ok(anycast.chain(gateways).collect())
}

fn open_kernel(options: &RuntimeOptions) -> Result<(Kernel, LinkKernel), KernelError> {
    let pins = Pins::new(&options.pin_path);
    let flows = match options.flows {
        0 => flow_capacity(&pins).unwrap_or_else(flows_by_memory),
        flows => flows,
    };
    Kernel::open(pins, flows, options.unclaimed)
}

/// Starts the election, and the gossip with the other agents.
///
/// `led`: the VIPs that the kernel answers for.
fn start_elector(
    options: &RuntimeOptions,
    led: BTreeSet<Vip>,
    leases: ConfiguredStore,
    keys: watch::Receiver<SealingKeys>,
    made_key: Option<PathBuf>,
    supervisor: &Supervisor,
) -> Result<(Elector, mpsc::Receiver<StoreReport>), AgentError> {
    let now = boottime()?;
    let election = Election::new(options.node.clone(), options.election, now).resuming(led);
    let gossip = vipmux_gossip::GossipSettings { local: options.node.clone(), port: options.gossip_port, keys };
    Elector::start(election, options.election.lease, gossip, leases, seed()?, made_key, supervisor)
}

/// Returns a random seed, another one for each agent.
fn seed() -> Result<u64, AgentError> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed)?;
    Ok(u64::from_ne_bytes(seed))
}

/// The lock of the state directory. Its file goes with it.
struct StateLock {
    path: PathBuf,
    _file: Flock<File>,
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // Another agent that has opened the file sees that it is gone. If this fails, it stays.
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks the state directory: there is one agent per node name and state directory.
fn lock(options: &RuntimeOptions) -> Result<StateLock, AgentError> {
    let state = |source| AgentError::State { path: options.state_dir.clone(), source };
    fs::create_dir_all(&options.state_dir).map_err(state)?;
    let path = options.state_dir.join(format!("agent-{}.lock", options.node.as_str().replace('/', "_")));
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(state)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => AgentError::Running { node: options.node.clone(), path: path.clone() },
            other => state(other.into()),
        })?;
        // An agent that has just ended may have removed it.
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let named = fs::metadata(&path).map(inode).ok();
        if named == Some(inode(file.metadata().map_err(state)?)) {
            return Ok(StateLock { path, _file: file });
        }
    }
}

/// Derives the size of the flow table from the machine's memory: a power of two, between 16 k and 1
/// M flows.
fn flows_by_memory() -> u32 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let flows = total.unwrap_or(0_u64) * 1024 / MEMORY_PER_FLOW;
    1 << u32::try_from(flows).unwrap_or(u32::MAX).clamp(16_384, 1_048_576).ilog2()
}
