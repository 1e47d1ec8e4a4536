//! `cargo xtask cluster`: a real Kubernetes cluster on this machine, until it is taken down.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Parser, Subcommand};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, setsid},
};
use serde::{Deserialize, Serialize};
use vipmux_tests::{
    api_server::ADMIN,
    cleanup, cluster_programs,
    ip_families::IpFamilies,
    kube_proxy::Mode,
    lan::MOST_NODES,
    real_cluster::{Cni, Plan, RealCluster, System, bench, conformance},
    watch::CLIENTS,
};

/// The folder of what is known about running clusters.
const STATE: &str = "/run/vipmux-clusters";
/// The number of nodes that Kubernetes' own tests need to move Pods.
const CONFORMANCE_NODES: u8 = 3;
/// The interval of looks at the log and at the process.
const LOOK: Duration = Duration::from_millis(100);

/// Runs a real Kubernetes cluster on this machine: etcd, API server, controller manager, scheduler, and
/// nodes with kubelet, containerd and kube-proxy, each in namespaces of its own. Needs root, and about
/// 1.5 GiB of memory for three nodes.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask cluster")]
struct Arguments {
    /// The cluster's name. Several clusters can run side by side.
    #[arg(long, default_value = "vipmux", global = true, value_parser = parse_name)]
    name: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the cluster, and return when its nodes are Ready
    Up(Up),
    /// Show the cluster's nodes, Pods and machines
    Status,
    /// Run a shell, or a command, on one of its machines, with kubectl and a kubeconfig
    Shell {
        /// control-plane, client, remote (behind the router), or a node's name
        #[arg(long, default_value = "control-plane")]
        on: String,
        /// The command; a shell if there is none
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// End the cluster, and remove everything that it made
    Down,
    /// Test vipmux in clusters of its own, as it is deployed: about nine minutes
    Test {
        /// Names of tests, and other options of cargo's test programs
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Run Kubernetes' own tests of Services in a cluster of its own that vipmux serves: about an hour
    Conformance {
        /// The tests whose names match this regular expression (RE2)
        #[arg(default_value = conformance::FOCUS)]
        focus: String,
        #[command(flatten)]
        network: Network,
    },
    /// Measure load balancers, each in a cluster of its own
    #[command(hide = true)]
    Bench {
        /// What is measured; several are measured one after the other
        #[arg(long, value_enum, default_values = ["vipmux"])]
        system: Vec<System>,
        /// Runs of each event, and new Services
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
        runs: u8,
        /// Minutes for which the cluster is left alone before: kinds that are not installed are looked for less
        /// often then (docs/cluster.md)
        #[arg(long, default_value_t = 11)]
        settle: u8,
        /// Minutes for which the cluster at rest is observed
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
        rest: u8,
        #[command(flatten)]
        up: Up,
    },
    /// The process that has the cluster
    #[command(hide = true)]
    Serve(Up),
}

#[derive(Clone, Debug, clap::Args)]
struct Up {
    /// The number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
    nodes: u8,
    /// The address families of Nodes, Pods and Services
    #[arg(long, value_enum, default_value_t = IpFamilies::Dual)]
    ip_family: IpFamilies,
    #[command(flatten)]
    network: Network,
}

#[derive(Clone, Debug, clap::Args)]
struct Network {
    /// kube-proxy's mode
    #[arg(long, value_enum, default_value_t = Mode::Nftables)]
    kube_proxy: Mode,
    /// The network of Pods
    #[arg(long, value_enum, default_value_t = Cni::Bridge)]
    cni: Cni,
    /// The files of vipmux's image
    #[arg(long, hide = true, env = "VIPMUX_IMAGE_ROOT")]
    image: Option<PathBuf>,
}

/// A running cluster, for the other commands.
#[derive(Debug, Deserialize, Serialize)]
struct State {
    kubeconfig: PathBuf,
    machines: Vec<Machine>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Machine {
    name: String,
    address: String,
    address_v6: String,
    /// Its network namespace.
    network: PathBuf,
    /// The first process of a node's namespaces.
    pid: Option<u32>,
    /// The folder of a node's logs.
    logs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { name, action } = Arguments::parse();
    let done = match action {
        Action::Up(plan) => up(&name, &plan),
        Action::Status => status(&name),
        Action::Shell { on, command } => shell(&name, &on, &command),
        Action::Down => down(&name),
        Action::Bench { system, runs, settle, rest, up } => {
            bench(&system, &up, &bench::Plan { runs, settle: minutes(settle), rest: minutes(rest) })
        }
        Action::Conformance { focus, network } => conform(&name, &focus, network),
        Action::Test { .. } => Err(anyhow!("run the tests by `cargo xtask cluster test`")),
        Action::Serve(up) => serve(&name, up),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn minutes(count: u8) -> Duration {
    Duration::from_mins(count.into())
}

/// A name is part of a file's.
fn parse_name(name: &str) -> Result<String, String> {
    let is_good = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_good { Ok(name.to_owned()) } else { Err("only letters, digits and `-`".to_owned()) }
}

fn path(name: &str, extension: &str) -> PathBuf {
    Path::new(STATE).join(format!("{name}.{extension}"))
}

/// Returns the process that has the cluster of this name, or starts it; `None`: there is none.
fn process(name: &str) -> Option<i32> {
    let pid = fs::read_to_string(path(name, "pid")).ok()?.trim().parse().ok()?;
    is_running(pid).then_some(pid)
}

/// Returns the running cluster of this name.
fn running(name: &str) -> Result<State> {
    ensure!(process(name).is_some(), "no cluster {name} is running; start it by `cargo xtask cluster up`");
    let (path, log) = (path(name, "json"), path(name, "log"));
    let text = fs::read(&path).with_context(|| format!("the cluster {name} is starting; see {}", log.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// Returns whether this process has a cluster. Another program may have its id by now.
fn is_running(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = line.split(|byte| *byte == 0);
    let program = arguments.next().unwrap_or_default();
    Path::new(OsStr::from_bytes(program)).file_name() == Some(OsStr::new("cluster"))
        && arguments.next() == Some(b"serve")
}

/// Starts the process that has the cluster, and shows what it says until the cluster runs.
fn up(name: &str, plan: &Up) -> Result<()> {
    ensure!(process(name).is_none(), "a cluster {name} is running; end it by `cargo xtask cluster down`");
    fs::create_dir_all(STATE).with_context(|| format!("cannot make {STATE}"))?;
    let (state, log) = (path(name, "json"), path(name, "log"));
    let _ = fs::remove_file(&state);
    let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut serve = Command::new(env::current_exe()?);
    serve.args(["serve", "--name", name, "--nodes", &plan.nodes.to_string()]);
    let Network { kube_proxy, cni, image } = &plan.network;
    serve.args(["--kube-proxy", &kube_proxy.to_string(), "--cni", &cni.to_string()]);
    serve.args(["--ip-family", &plan.ip_family.to_string()]);
    serve.args(image.iter().flat_map(|image| [OsStr::new("--image"), image.as_os_str()]));
    serve.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).current_dir("/");
    // SAFETY: between fork and exec, this is one system call.
    unsafe { serve.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let mut child = serve.spawn().context("cannot start the cluster's process")?;
    fs::write(path(name, "pid"), child.id().to_string()).context("cannot write the process's id")?;
    let mut shown = 0;
    loop {
        thread::sleep(LOOK);
        let ended = child.try_wait()?;
        shown = show(&log, shown)?;
        if let Some(status) = ended {
            bail!("the cluster's process ended ({status}); its log is {}", log.display());
        }
        if state.exists() {
            return status(name);
        }
    }
}

/// Shows what a log has from a position on. Returns the next position.
fn show(log: &Path, from: u64) -> Result<u64> {
    let mut file = File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    file.seek(SeekFrom::Start(from))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    eprint!("{text}");
    Ok(from + u64::try_from(text.len())?)
}

/// Has the cluster until a signal comes.
fn serve(name: &str, up: Up) -> Result<()> {
    cleanup::prepare()?;
    cleanup::exit_with_on_interrupt(0);
    let cluster = start(&plan(up, 1))?;
    let file = path(name, "json");
    let draft = path(name, "draft");
    fs::write(&draft, serde_json::to_vec_pretty(&state(&cluster)?)?)?;
    fs::rename(&draft, &file).with_context(|| format!("cannot make {}", file.display()))?;
    loop {
        thread::park();
    }
}

fn plan(up: Up, clients: u8) -> Plan {
    let Up { nodes, ip_family: families, network: Network { kube_proxy: mode, cni, image: vipmux } } = up;
    Plan { nodes, clients, mode, cni, families, vipmux, ..Plan::default() }
}

fn start(plan: &Plan) -> Result<RealCluster> {
    RealCluster::start(plan, &mut |step| eprintln!("==> {step}"))
}

fn bench(systems: &[System], up: &Up, how: &bench::Plan) -> Result<()> {
    cleanup::prepare()?;
    cleanup::exit_with_on_interrupt(130);
    ensure!(up.nodes >= 3, "a drained node and a backend elsewhere take three nodes");
    for system in systems {
        let mut cluster = start(&Plan { others: vec![*system], ..plan(up.clone(), CLIENTS) })?;
        bench::run(*system, &mut cluster, how, &mut |line| println!("{line}"))?;
    }
    Ok(())
}

fn conform(name: &str, focus: &str, network: Network) -> Result<()> {
    cleanup::prepare()?;
    cleanup::exit_with_on_interrupt(130);
    // On nodes with both families the tests look for both, and their Services have one.
    let up = Up { nodes: CONFORMANCE_NODES, ip_family: IpFamilies::Ipv4, network };
    let cluster = start(&Plan { conformance: true, ..plan(up, 1) })?;
    let logs = conformance::logs(name);
    ensure!(conformance::run(&cluster, focus, &logs, &mut |line| println!("{line}"))?, "tests failed");
    Ok(())
}

fn state(cluster: &RealCluster) -> Result<State> {
    let (api, lan) = (cluster.api.machine(), &cluster.lan);
    let client = lan.client()?;
    let mut machines = vec![
        machine("control-plane", &api.address, &api.address_v6, api.namespace.path()),
        machine("client", &client.address, &client.address_v6, client.namespace().path()),
        machine("remote", &cluster.router.address, &cluster.router.address_v6, cluster.router.client().path()),
    ];
    for (node, real) in lan.nodes.iter().zip(&cluster.nodes) {
        let machine = machine(&node.name, &node.address, &node.address_v6, node.namespace().path());
        machines.push(Machine { pid: Some(real.pid()?), logs: Some(real.logs().to_owned()), ..machine });
    }
    Ok(State { kubeconfig: cluster.api.kubeconfig(ADMIN)?, machines })
}

fn machine(name: &str, address: &impl ToString, address_v6: &impl ToString, network: &Path) -> Machine {
    let (address, address_v6) = (address.to_string(), address_v6.to_string());
    Machine { name: name.to_owned(), address, address_v6, network: network.to_owned(), pid: None, logs: None }
}

impl State {
    fn machine(&self, name: &str) -> Result<&Machine> {
        let names = || self.machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.machines.iter().find(|machine| machine.name == name);
        found.with_context(|| format!("there is no machine {name}, only {}", names()))
    }

    /// Returns a command on a machine, with kubectl and the administrator's kubeconfig.
    fn command(&self, machine: &Machine, command: &[String]) -> Result<Command> {
        let mut enter = Command::new("nsenter");
        if let Some(pid) = machine.pid {
            enter.args(["--target", &pid.to_string()]);
            enter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]);
        } else {
            let mut network = OsString::from("--net=");
            network.push(&machine.network);
            enter.arg(network);
        }
        enter.env("PATH", cluster_programs::search_path()?).env("KUBECONFIG", &self.kubeconfig);
        enter.arg("--").args(command);
        Ok(enter)
    }
}

fn status(name: &str) -> Result<()> {
    let state = running(name)?;
    let mut text = format!("cluster {name}, log {}\n", path(name, "log").display());
    writeln!(text, "kubeconfig {}, for the control plane's machine", state.kubeconfig.display())?;
    for machine in &state.machines {
        let logs = machine.logs.as_ref().map(|logs| format!("  logs in {}", logs.display())).unwrap_or_default();
        writeln!(text, "  {:<14} {:<14} {:<17}{logs}", machine.name, machine.address, machine.address_v6)?;
    }
    // A reader that ends early, such as `head`, is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
    for what in [&["get", "nodes"][..], &["get", "pods", "--all-namespaces"]] {
        let command: Vec<_> = ["kubectl"].iter().chain(what).map(|word| (*word).to_owned()).collect();
        let shown = state.command(state.machine("control-plane")?, &command)?.status().context("cannot run nsenter")?;
        ensure!(shown.success(), "kubectl failed ({shown})");
    }
    eprintln!("try: cargo xtask cluster shell -- kubectl get all -A; end it: cargo xtask cluster down");
    Ok(())
}

fn shell(name: &str, on: &str, command: &[String]) -> Result<()> {
    let state = running(name)?;
    let machine = state.machine(on)?;
    let shell = [env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned())];
    let command = if command.is_empty() { &shell } else { command };
    let error = state.command(machine, command)?.exec();
    Err(error).context("cannot run nsenter")
}

fn down(name: &str) -> Result<()> {
    let found = process(name);
    if let Some(pid) = found {
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("cannot end the cluster's process")?;
        while is_running(pid) {
            thread::sleep(LOOK);
        }
    }
    // Removes what a killed one left.
    cleanup::prepare()?;
    for extension in ["json", "pid", "log"] {
        let _ = fs::remove_file(path(name, extension));
    }
    println!(
        "{}",
        if found.is_some() { format!("cluster {name} is gone") } else { format!("no cluster {name} is running") }
    );
    Ok(())
}
