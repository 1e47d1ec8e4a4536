//! Tests that a process ends when one of its tasks does.
//!
//! No task of the product can be made to panic from outside. So these tests run the program's `main` in a process
//! of their own, with one more task under its supervisor.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio, exit},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result};
use vipmux_supervisor::Supervisor;
use vipmux_testing::{PATIENCE, again_while, bpffs, netns::Namespace};

/// Names the arguments of the program, one a line, and makes this test the process.
const ARGUMENTS: &str = "VIPMUX_TEST_ARGUMENTS";
/// Names a file. The task panics when it exists.
const PANICS_AFTER: &str = "VIPMUX_TEST_PANICS_AFTER";

/// Is the process, if it was started by [`end_of`].
#[test]
fn main_with_a_task_that_panics() {
    let Ok(arguments) = env::var(ARGUMENTS) else { return };
    let supervisor = Supervisor::default();
    let file = env::var(PANICS_AFTER).unwrap();
    let panics = move || {
        while !Path::new(&file).exists() {
            sleep(Duration::from_millis(10));
        }
        panic!("no entry")
    };
    supervisor.spawn_thread("injected", panics).unwrap();
    let arguments: Vec<OsString> = arguments.lines().map(OsString::from).collect();
    let code = vipmux::cli::run(&arguments, &supervisor);
    exit(i32::from(code != ExitCode::SUCCESS));
}

/// Starts a process with these arguments, and checks that it ends by the panic of the task.
fn check_end(arguments: &[&str], panics_after: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", "main_with_a_task_that_panics", "--nocapture"]).stdout(Stdio::null());
    command.env(ARGUMENTS, arguments.join("\n")).env(PANICS_AFTER, panics_after).stderr(File::create(&log)?);
    let mut child = command.spawn()?;
    let status = again_while(PATIENCE, |status| matches!(status, Ok(None)), || child.try_wait())?;
    if status.is_none() {
        child.kill()?;
    }
    let log = fs::read_to_string(&log)?;
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{log}");
    let line = log.lines().find(|line| line.contains("task panicked, stopping")).with_context(|| log.clone())?;
    let line: serde_json::Value = serde_json::from_str(line)?;
    assert_eq!((&line["task"], &line["panic"]), (&"injected".into(), &"no entry".into()), "{line}");
    assert!(log.ends_with("vipmux: the task \"injected\" panicked: no entry\n"), "{log}");
    Ok(())
}

#[test]
fn an_allocator_whose_task_panics_fails_and_logs_its_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // An API server that never answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let kubeconfig = folder.path().join("kubeconfig");
    let server = format!("http://{}", silent.local_addr()?);
    let config = "
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: SERVER}}]
users: [{name: test, user: {}}]
contexts: [{name: test, context: {cluster: test, user: test, namespace: vipmux-system}}]
";
    fs::write(&kubeconfig, config.replace("SERVER", &server))?;
    let kubeconfig = kubeconfig.to_str().context("not UTF-8")?;
    let arguments = ["vipmux", "allocator", "--name=a", "--log-format=json", "--http-listen=off", "--kubeconfig"];
    check_end(&[&arguments[..], &[kubeconfig]].concat(), folder.path())
}

#[test]
fn an_agent_whose_task_panics_fails_and_logs_its_name() -> Result<()> {
    let (Some([node, other]), Some(pins)) = (Namespace::new(), bpffs::pin_path()) else { return Ok(()) };
    node.veth("eth0", &other, "eth1");
    node.address("eth0", "192.0.2.1", 24);
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(path("manifests"))?;
    let manifest = "
apiVersion: v1
kind: Node
metadata: { name: n1 }
status: { addresses: [{ type: InternalIP, address: 192.0.2.1 }] }
";
    fs::write(path("manifests/node.yaml"), manifest)?;
    let options = [
        ("manifests", path("manifests")),
        ("node-name", "n1".to_owned()),
        ("state-dir", path("state")),
        ("pin-path", pins.display().to_string()),
        ("flows", "1024".to_owned()),
        ("socket", path("agent.sock")),
        ("http-listen", "off".to_owned()),
        ("log-format", "json".to_owned()),
    ];
    let options: Vec<String> = options.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    let arguments: Vec<&str> = ["vipmux", "agent"].into_iter().chain(options.iter().map(String::as_str)).collect();
    // The mount namespace of this thread is the agent's, too.
    node.enter(|| check_end(&arguments, Path::new(&path("agent.sock"))))
}

/// Returns the files of source text in and below a folder, without those of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().context("no name")?;
        if name == "tests" || name == "testing" || name == "supervisor" {
            continue;
        }
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn a_task_is_supervised_or_a_comment_says_why_not() -> Result<()> {
    let mut files = Vec::new();
    sources(Path::new(env!("CARGO_MANIFEST_DIR")), &mut files)?;
    let mut spawns = 0;
    for file in files {
        let text = fs::read_to_string(&file)?;
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines: Vec<&str> = product.lines().collect();
        let is_spawn = |line: &str| line.contains("tokio::spawn(") || line.contains("thread::spawn(");
        for (number, _) in lines.iter().enumerate().filter(|(_, line)| is_spawn(line)) {
            let above = &lines[number.saturating_sub(10)..number];
            let says_why = above.iter().any(|line| line.trim().starts_with("//") && line.contains("supervised"));
            assert!(says_why, "{}:{}: use Supervisor::spawn, or say why not", file.display(), number + 1);
            spawns += 1;
        }
    }
    assert!(spawns > 3, "{spawns}");
    Ok(())
}
