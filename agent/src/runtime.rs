//! The agent's one event loop: it reads the clock and the kernel's notifications, feeds the pure parts, and executes
//! what they say.
//!
//! Tasks and threads beside it, each bounded and joined by a watched value, so that a slow reader sees the newest state
//! and never a backlog: the manifests' follower, the stages up to the plan (`settle`), the [`Monitor`] of interfaces and
//! neighbours, those that keep the NAT chain and the groups, and the health probes. Questions come by a bounded channel ([`control`]).

mod asked;
mod check;
mod conflicts;
mod desired;
mod elector;
mod health;
mod interfaces;
mod kernel;
mod leaving;
mod privileges;
mod settle;
mod showing;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::OrdSet;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{
        mpsc,
        watch::{self, error::RecvError},
    },
    time::{MissedTickBehavior, interval, sleep_until},
};
use vipmux_common::abi::Mac;

use self::{
    check::Checks,
    elector::Elector,
    health::{Hearsay, Probes},
    interfaces::Interfaces,
    kernel::{Kernel, Synced},
    leaving::Leaving,
    settle::{Question, Settled},
    showing::Shown,
};
pub use self::{kernel::KernelError, privileges::PrivilegeError};
use crate::{
    announce::{Announcer, Frame, Pacing, SendError, Sender, groups, probe::Prober, watch::Watch},
    control::{self, ListenError, Query},
    datapath::{
        apply::Unclaimed,
        attach::{HandoverMac, Mode, Tc},
        load::LoadError,
        maps::{MapsError, flow_entries},
        pins::{LinkKind, Pins},
    },
    election::{self, Election, HEARTBEAT, Input},
    gossip::{self, KeyFileError, StartError},
    keeper::Keeper,
    link::{self, Ethtool, EthtoolError, InterfaceError, LinkError, Links, Monitor, Neighbors},
    membership::sealing::Keys,
    model::{
        self, NodeName, Vip,
        range::{SUBNET_ANYCAST, subnet_anycast},
        tag::ServiceTags,
    },
    plan::{Desired, REST, Unreachable},
    probe::TlsError,
    snat::{self, SnatError},
    source::manifests::{self, WatchError, WatchGuard},
    store::Report,
};

/// Most interfaces that VIPs are announced on: a bit each.
const MOST_INTERFACES: usize = 32;
/// Most questions about what was decided that wait at the same time.
const MOST_QUESTIONS: usize = 16;
/// How often is looked for answers while the LAN is asked for an address.
const LISTEN: Duration = Duration::from_millis(10);
/// Bytes of the machine's memory for each entry of a flow table. Both tables' entries take 280 bytes, so they take
/// about a hundredth of it.
const MEMORY_PER_FLOW: u64 = 28_000;

/// What the agent is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of manifests.
    pub manifests: PathBuf,
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
    /// The UDP port on which the agents speak to each other.
    pub gossip_port: u16,
    /// Where the gossip's keys are; `None`: in the state directory, and made there.
    pub gossip_key: Option<PathBuf>,
    /// How VIPs are led.
    pub election: election::Settings,
    /// Where to listen for questions.
    pub socket: PathBuf,
}

/// The agent cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It lacks rights.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another agent has this node's name and state directory.
    #[error("another agent is running as {node} (it holds {})", path.display())]
    Running {
        /// The node.
        node: NodeName,
        /// The lock file.
        path: PathBuf,
    },
    /// The manifests cannot be followed.
    #[error(transparent)]
    Manifests(#[from] WatchError),
    /// The network's state cannot be followed.
    #[error("cannot follow the network interfaces")]
    Links(#[from] LinkError),
    /// VIPs cannot be announced on an interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A driver was asked or told in vain.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// Too many of them.
    #[error("{0} interfaces are too many: VIPs can be announced on {MOST_INTERFACES}")]
    TooManyInterfaces(usize),
    /// The data plane failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The announcement socket cannot be opened.
    #[error(transparent)]
    Announce(#[from] SendError),
    /// Nobody can ask it anything.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The SNAT chain's socket cannot be opened.
    #[error(transparent)]
    Snat(#[from] SnatError),
    /// Backends cannot be probed.
    #[error(transparent)]
    Probes(#[from] TlsError),
    /// The asynchronous runtime cannot be started.
    #[error("cannot start the asynchronous runtime")]
    Runtime(#[source] io::Error),
    /// The gossip's keys cannot be had.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The agents cannot speak to each other.
    #[error(transparent)]
    Gossip(#[from] StartError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signal(#[source] io::Error),
    /// What it goes by is not followed any more, so it must not go on by what it was last.
    #[error("a part of the agent failed that follows the manifests, the network, the peers or the backends' health")]
    Blind(#[from] RecvError),
}

impl From<MapsError> for AgentError {
    fn from(error: MapsError) -> Self {
        KernelError::from(error).into()
    }
}

impl From<LoadError> for AgentError {
    fn from(error: LoadError) -> Self {
        KernelError::from(error).into()
    }
}

/// Runs the agent until SIGTERM or SIGINT, when it hands over what it leads. Programs, maps and links stay pinned: traffic
/// goes on, and what nobody took is answered for until the fence's deadline.
pub async fn run(options: Options) -> Result<(), AgentError> {
    privileges::check()?;
    let _lock = lock(&options)?;
    let (objects, manifests) = manifests::watch(&options.manifests)?;
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
    let ours = model::Options { reserved, service_tags: options.service_tags.clone(), ..model::Options::default() };
    // Ends with the agent: it is aborted with the runtime, and holds nothing that needs care.
    let state = options.state_dir.join("assignments.yaml");
    let (questions, asked) = mpsc::channel(MOST_QUESTIONS);
    let (probes, health) = Probes::start(options.node.clone())?;
    tokio::spawn(settle::follow(objects, manifests.looked(), asked, state, ours, probes, sender));
    let pins = Pins::new(&options.pin_path);
    let flows = match options.flows {
        0 => flow_entries(&pins).unwrap_or_else(flows_by_memory),
        flows => flows,
    };
    // Before anything is put into the kernel that would stay.
    let keys = keys(&options)?;
    let kernel = Kernel::open(pins, flows, options.unclaimed)?;
    let (elector, reports) = elect(&options, keys)?;
    let shown = Shown::read(&kernel)?;
    let queries = control::listen(&options.socket)?;
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
        manifests,
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
        retry: None,
        options,
    };
    agent.turn(&monitor, settled, queries, reports).await?;
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

/// What seals the gossip.
fn keys(options: &Options) -> Result<Keys, KeyFileError> {
    match &options.gossip_key {
        Some(path) => gossip::load(path),
        None => gossip::load_or_make(&options.state_dir.join("gossip.key")),
    }
}

/// Begins to listen to the other agents.
fn elect(options: &Options, keys: Keys) -> Result<(Elector, mpsc::Receiver<Report>), AgentError> {
    let now = kernel::boottime()?;
    let election = Election::new(options.node.clone(), options.election, now);
    let gossip = gossip::Settings { local: options.node.clone(), port: options.gossip_port, keys };
    Elector::start(election, options.election.lease, gossip, &options.state_dir, seed()?)
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

struct Agent {
    options: Options,
    kernel: Kernel,
    elector: Elector,
    /// At least one announcing interface has a carrier.
    carrier: bool,
    /// What peers say are their MACs: 0 is that on the segment of their InternalIP.
    macs: BTreeMap<NodeName, BTreeMap<u8, Mac>>,
    /// This node is to lead nothing.
    leaving: Option<Leaving>,
    /// What `vipmux inspect` sees of leaders and peers.
    shown: Shown,
    /// What health probes found, here and elsewhere.
    health: Hearsay,
    /// Who asks the LAN for addresses.
    prober: Prober,
    /// Frames that had come in when it was asked whether anybody is there.
    received: BTreeMap<Vip, u64>,
    manifests: WatchGuard,
    /// To whom questions about what was decided are passed on.
    questions: mpsc::Sender<Question>,
    /// The look at the manifests that the next choice must rest on.
    awaited: u64,
    announcer: Announcer,
    sender: Sender,
    snat: Keeper<OrdSet<snat::Element>>,
    groups: Keeper<BTreeSet<groups::Group>>,
    wanted: snat::Wanted,
    interfaces: Interfaces,
    /// Where the programs were attached when the links were last taken note of.
    linked: BTreeSet<(LinkKind, u32)>,
    ready: bool,
    /// An interface or its MAC is new, so what is led must be announced there.
    changed: bool,
    /// VIPs and the like that were refused, as last told.
    refused: BTreeSet<String>,
    watch: Watch,
    /// Strangers that have addresses which are led here, as last told.
    conflicts: BTreeSet<String>,
    /// When to try again what found no room.
    retry: Option<Instant>,
}

impl Agent {
    async fn turn(
        mut self,
        monitor: &Monitor,
        mut settled: watch::Receiver<Arc<Settled>>,
        mut queries: mpsc::Receiver<Query>,
        mut reports: mpsc::Receiver<Report>,
    ) -> Result<(), AgentError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(AgentError::Signal)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(AgentError::Signal)?;
        let (mut links, mut neighbors) = (monitor.links(), monitor.neighbors());
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Nothing was read yet: that is not the same as nothing is wanted, and the maps may be full of what is in use.
        let mut begun = false;
        let mut checks = Checks::new(self.options.self_check);
        loop {
            let check = checks.next().filter(|_| self.ready).map(Into::into);
            let announce = self.announcer.next().map(Into::into);
            let retry = self.retry.map(Into::into);
            let since_boot = kernel::boottime()?;
            let turn = self.elector.next().map(|next| next.saturating_sub(since_boot));
            let probe = self.prober.next().map(|next| next.saturating_sub(since_boot).min(LISTEN));
            let now = tokio::time::Instant::now();
            tokio::select! {
                biased;
                _ = heartbeat.tick() => {
                    self.beat()?;
                    self.heed_strangers(&links.borrow())?;
                    self.show()?;
                    if self.has_left() {
                        self.elector.leave().await;
                        return Ok(());
                    }
                    continue;
                }
                found = self.health.found() => {
                    found?;
                    self.hear_health()?;
                    continue;
                }
                happened = self.elector.happened() => {
                    happened?;
                    self.elect()?;
                    self.hear_health()?;
                    if !begun || !self.follow_macs() { continue }
                }
                Some(report) = reports.recv() => {
                    let commands = self.elector.report(&mut self.kernel, report)?;
                    self.react(&commands)?;
                    continue;
                }
                () = sleep_until(now + probe.unwrap_or_default()), if probe.is_some() => {
                    self.hear_answers()?;
                    continue;
                }
                () = sleep_until(now + turn.unwrap_or_default()), if turn.is_some() => {
                    self.elect()?;
                    continue;
                }
                () = sleep_until(announce.unwrap_or(now)), if announce.is_some() => {
                    self.announce();
                    continue;
                }
                _ = terminate.recv() => {
                    self.leave()?;
                    continue;
                }
                _ = interrupt.recv() => {
                    self.leave()?;
                    continue;
                }
                changed = settled.changed() => {
                    changed?;
                    begun = true;
                }
                changed = links.changed(), if begun => changed?,
                changed = neighbors.changed(), if begun => changed?,
                () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
                reading = checks.read() => if !self.checked(&mut checks, reading)? { continue },
                Some(query) = queries.recv() => {
                    self.answer(query, &mut checks)?;
                    continue;
                }
                () = sleep_until(check.unwrap_or(now)), if check.is_some() => {
                    checks.begin(&self.kernel);
                    continue;
                }
            }
            let settled = Arc::clone(&settled.borrow_and_update());
            let links = Arc::clone(&links.borrow_and_update());
            let neighbors = Arc::clone(&neighbors.borrow_and_update());
            self.follow(monitor, &settled, &links, &neighbors)?;
        }
    }

    /// Brings the interfaces, and then the kernel, to what is settled.
    fn follow(
        &mut self,
        monitor: &Monitor,
        settled: &Settled,
        links: &Links,
        neighbors: &Neighbors,
    ) -> Result<(), AgentError> {
        let mut complaints = BTreeSet::new();
        self.attach(links, settled, &mut complaints)?;
        let wanted = settled.nodes.values().filter_map(|addresses| addresses.first()).copied().collect();
        monitor.resolve(self.interfaces.segments.iter().map(|segment| segment.ifindex).collect(), wanted);
        self.update(links, settled, neighbors, complaints)?;
        let linked = self.interfaces.linked();
        if linked != self.linked {
            self.linked = linked;
            self.kernel.note_links()?;
        }
        Ok(())
    }

    /// Brings the kernel to what is settled, then tells the election who was chosen.
    fn update(
        &mut self,
        links: &Links,
        settled: &Settled,
        neighbors: &Neighbors,
        mut complaints: BTreeSet<String>,
    ) -> Result<(), AgentError> {
        let desired = self.desired(links, settled, neighbors, &mut complaints);
        let uplinks = self.interfaces.segments.iter().map(|segment| segment.ifindex);
        let wanted = self.wanted.follow(&desired, uplinks);
        let direct = snat::has_direct(&wanted);
        if direct {
            self.look_in(links, true, &mut complaints)?;
        }
        let before = self.kernel.announced();
        let mut commands = Vec::new();
        let (elector, carrier) = (&mut self.elector, self.carrier);
        let synced = self.kernel.sync(&desired, |kernel| {
            commands.extend(elector.beat(kernel, carrier)?);
            Ok(())
        });
        let Synced { refused, unreachable, leftovers } = synced?;
        self.react(&commands)?;
        self.tell_peers(links, settled, &desired)?;
        if !direct {
            self.look_in(links, false, &mut complaints)?;
        }
        self.retry = (leftovers || !refused.is_empty()).then(|| Instant::now() + REST);
        complaints.extend(refused.iter().map(ToString::to_string));
        complaints.extend(unreachable.iter().map(|claim| self.lost(claim)));
        self.snat.want(wanted);
        self.groups.want(self.solicited(&desired));
        if settled.look >= self.awaited {
            self.choose(settled, &desired)?;
        }
        settle::tell(&self.refused, &complaints);
        self.refused = complaints;
        let anew = std::mem::take(&mut self.changed);
        for (vip, place) in self.kernel.announced() {
            if anew || before.get(&vip) != Some(&place) {
                self.lead(vip);
            }
        }
        if !self.ready && !self.interfaces.attached.is_empty() {
            self.ready = true;
            self.beat()?;
            tracing::info!(
                node = %self.options.node,
                vips = desired.vips.len(),
                services = desired.services.len(),
                "ready"
            );
        }
        Ok(())
    }

    /// Tells the election what is wanted. The beat after it opens the fence, which lets announcements out.
    fn choose(&mut self, settled: &Settled, desired: &Desired) -> Result<(), AgentError> {
        let wanted = settled.contenders.iter().filter(|(vip, _)| desired.vips.contains_key(vip));
        let wanted = wanted.map(|(vip, contenders)| (*vip, contenders.clone())).collect();
        let commands = self.elector.give(&mut self.kernel, Input::Wanted(Arc::new(wanted)))?;
        self.react(&commands)?;
        if !commands.is_empty() {
            self.beat()?;
        }
        Ok(())
    }

    /// One turn of the heart.
    fn beat(&mut self) -> Result<(), AgentError> {
        let commands = self.elector.beat(&mut self.kernel, self.carrier)?;
        self.react(&commands)
    }

    /// Time has passed, or peers have spoken.
    fn elect(&mut self) -> Result<(), AgentError> {
        let commands = self.elector.turn(&mut self.kernel)?;
        self.react(&commands)
    }

    /// Announces what was gained, forgets what was lost, asks the LAN, and tells it all.
    fn react(&mut self, commands: &[election::Command]) -> Result<(), AgentError> {
        let mut asked = Vec::new();
        for command in commands {
            match command {
                election::Command::Lead { vip, epoch, why } => {
                    self.lead(*vip);
                    self.show_leader(*vip)?;
                    tracing::info!(%vip, epoch, why = %why, "leading");
                }
                election::Command::Follow { vip, why } => {
                    self.announcer.lost(*vip);
                    self.show_leader(*vip)?;
                    tracing::info!(%vip, why = %why, "no longer leading");
                }
                election::Command::Gather => self.awaited = self.manifests.look(),
                election::Command::Probe { vip, detect } => asked.push((*vip, *detect)),
                election::Command::Conflict { vip, mac } => {
                    tracing::warn!(%vip, %mac, "a stranger has this address: it is not announced, and asked for again");
                }
                _ => {}
            }
        }
        self.probe(&asked)
    }

    fn lead(&mut self, vip: Vip) {
        let Some(value) = self.kernel.observed().vips().get(&vip.0.into()) else { return };
        for (ifindex, mac) in self.interfaces.announced_on(value.interfaces, value.vlan) {
            self.announcer.gained(vip, ifindex, mac, Instant::now());
        }
    }

    /// Sends what is due. A frame that cannot be sent now is one of a burst.
    fn announce(&mut self) {
        let frames = self.announcer.due(Instant::now());
        self.send(&frames);
    }

    fn send(&self, frames: &[Frame]) {
        let errors: Vec<_> = frames.iter().filter_map(|frame| self.sender.send(frame).err()).collect();
        if let Some(error) = errors.first() {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                failed = errors.len(),
                "announcements were not sent"
            );
        }
    }
}
