//! Tests `vipmux drain` with an agent that follows a script.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The output of `vipmux drain` and its exit status.
struct Outcome {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

fn drain(socket: &Path, arguments: &[&str]) -> Result<Outcome> {
    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipmux"));
    let output = command.arg("drain").arg("--socket").arg(socket).args(arguments).output()?;
    Ok(Outcome {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
        took: began.elapsed(),
    })
}

/// An agent that gives these answers in order, repeats the last one, and records the requests.
struct Agent {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    asked: Receiver<Value>,
}

impl Agent {
    fn new(answers: Vec<Value>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket)?;
        let (sender, asked) = channel();
        // The thread ends with the process.
        thread::spawn(move || {
            let last = answers.last().cloned();
            for answer in answers.into_iter().chain(std::iter::repeat_with(|| last.clone().unwrap_or_default())) {
                let Ok((stream, _)) = listener.accept() else { return };
                let Ok(request) = request(&stream) else { return };
                // The request is recorded before the answer is sent.
                if sender.send(request).is_err() || reply(&stream, answer).is_err() {
                    return;
                }
            }
        });
        Ok(Self { _folder: folder, socket, asked })
    }

    /// Returns the requests so far.
    fn asked(&self) -> Vec<Value> {
        self.asked.try_iter().map(|request| request["command"].clone()).collect()
    }
}

fn request(stream: &UnixStream) -> Result<Value> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Sends the answer with its version.
fn reply(mut stream: &UnixStream, mut answer: Value) -> Result<()> {
    answer["version"] = 1.into();
    Ok(writeln!(stream, "{answer}")?)
}

/// Parses the seconds from the last line, which must name this number of VIPs.
fn seconds(line: &str, vips: usize) -> Result<f64> {
    let seconds = line.strip_prefix(&format!("drained: {vips} VIPs handed over in "));
    let seconds = seconds.and_then(|rest| rest.strip_suffix(" s\n"));
    Ok(seconds.with_context(|| line.to_owned())?.parse()?)
}

/// Returns an answer with the progress.
fn progress(held: &[&str], handed: &[(&str, &str)], kept: &[(&str, &str)]) -> Value {
    json!({"drain": {"draining": true, "held": held, "handed": handed, "kept": kept}})
}

const FIRST: (&str, &str) = ("192.0.2.1", "node-2");
const SECOND: (&str, &str) = ("192.0.2.2", "node-3");
const THIRD: (&str, &str) = ("2001:db8::1", "node-2");

#[test]
fn each_vip_is_printed_once_when_it_goes_and_their_number_at_the_end() -> Result<()> {
    let agent = Agent::new(vec![
        progress(&["192.0.2.1", "192.0.2.2", "2001:db8::1"], &[], &[]),
        progress(&["192.0.2.2", "2001:db8::1"], &[FIRST], &[]),
        progress(&["2001:db8::1"], &[FIRST, SECOND], &[]),
        progress(&[], &[FIRST, SECOND, THIRD], &[]),
    ])?;
    let outcome = drain(&agent.socket, &[])?;
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    let (lines, end) = outcome.stdout.split_at(outcome.stdout.find("drained: ").context("an end")?);
    assert_eq!(
        lines,
        "192.0.2.1 handed over to node-2\n192.0.2.2 handed over to node-3\n2001:db8::1 handed over to node-2\n"
    );
    assert!(seconds(end, 3)? >= 0.5, "three times 200 ms: {end}");
    assert_eq!(
        agent.asked(),
        [json!({"drain": {"cancel": false}}), "draining".into(), "draining".into(), "draining".into()]
    );
    Ok(())
}

#[test]
fn a_node_that_leads_nothing_is_drained_at_once() -> Result<()> {
    let agent = Agent::new(vec![progress(&[], &[], &[])])?;
    let outcome = drain(&agent.socket, &[])?;
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    seconds(&outcome.stdout, 0)?;
    assert_eq!(agent.asked(), [json!({"drain": {"cancel": false}})], "it is not asked again");
    Ok(())
}

#[test]
fn a_vip_that_no_node_can_take_is_printed_with_the_reason_and_not_waited_for() -> Result<()> {
    let kept = ("192.0.2.2", "no other node may lead it");
    let agent = Agent::new(vec![progress(&["192.0.2.1"], &[], &[kept]), progress(&[], &[FIRST], &[kept])])?;
    let outcome = drain(&agent.socket, &["--timeout", "5m"])?;
    assert_eq!(outcome.status, Some(1));
    assert_eq!(
        outcome.stdout,
        "192.0.2.1 handed over to node-2\n192.0.2.2 is still led here: no other node may lead it\n"
    );
    assert_eq!(
        outcome.stderr,
        "vipmux: not drained: 1 VIP still led here; the node keeps draining until `vipmux drain --cancel`\n"
    );
    Ok(())
}

#[test]
fn vips_that_are_not_handed_over_in_time_are_printed() -> Result<()> {
    let agent = Agent::new(vec![progress(&["192.0.2.1", "192.0.2.2"], &[], &[])])?;
    let outcome = drain(&agent.socket, &["--timeout", "1"])?;
    assert_eq!(outcome.status, Some(1));
    assert!(outcome.took >= Duration::from_secs(1), "{:?}", outcome.took);
    let line = |vip| format!("{vip} is still led here: not handed over within 1s\n");
    assert_eq!(outcome.stdout, line("192.0.2.1") + &line("192.0.2.2"));
    assert!(outcome.stderr.starts_with("vipmux: not drained: 2 VIPs still led here;"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn a_drain_is_canceled_by_this_command_or_by_another() -> Result<()> {
    let stopped = json!({"drain": {"draining": false, "held": [], "handed": [], "kept": []}});
    let agent = Agent::new(vec![stopped.clone()])?;
    let outcome = drain(&agent.socket, &["--cancel"])?;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(0), "drain ended: this node may lead VIPs again\n"));
    assert_eq!(agent.asked(), [json!({"drain": {"cancel": true}})]);

    let agent = Agent::new(vec![progress(&["192.0.2.1"], &[], &[]), stopped])?;
    let outcome = drain(&agent.socket, &[])?;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("the drain was ended by another `vipmux drain --cancel`"), "{}", outcome.stderr);

    let agent = Agent::new(vec![progress(&[], &[], &[])])?;
    let outcome = drain(&agent.socket, &["--cancel"])?;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("keeps draining"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn an_agent_that_is_not_there_or_cannot_drain_is_an_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock");
    let outcome = drain(&socket, &[])?;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.starts_with("vipmux: no agent listens on "), "{}", outcome.stderr);

    for (answer, expected) in [
        (json!({"error": "the request makes no sense: unknown variant"}), "the agent says: the request makes no sense"),
        (json!({"diff": {"differences": [], "refused": []}}), "answered another request"),
        (json!({"drain": {"draining": true}}), "answered something else"),
    ] {
        let agent = Agent::new(vec![answer])?;
        let outcome = drain(&agent.socket, &[])?;
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(1), ""));
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
    Ok(())
}
