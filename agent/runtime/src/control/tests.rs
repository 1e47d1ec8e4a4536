//! Tests the agent's socket.

use std::io::{Read as _, Write as _};

use super::*;
use vipmux_testing::names::node_name;

fn diff() -> Diff {
    let difference = ReportedDifference::new("VIPS", "192.0.2.1", Some("here".to_owned()), None);
    Diff { differences: vec![difference], refused: vec!["too much".to_owned()] }
}

/// Runs `asking` beside an agent that answers everything with [`diff`].
fn beside_an_agent<T: Send + 'static>(asking: impl FnOnce(&Path) -> T + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/agent.sock");
        let mut queries = listen(&path, &Supervisor::default()).unwrap();
        tokio::spawn(async move {
            while let Some(query) = queries.recv().await {
                query.answer(Answer::Diff(diff()));
            }
        });
        tokio::task::spawn_blocking(move || asking(&path)).await.unwrap()
    })
}

fn raw(path: &Path, request: &[u8]) -> String {
    let mut stream = StdStream::connect(path).unwrap();
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_request_is_answered_over_a_socket_for_root_alone() {
    let (answer, mode) =
        beside_an_agent(|path| (ask(path, ControlCommand::Diff), fs::metadata(path).unwrap().permissions().mode()));
    assert_eq!(answer.unwrap(), Answer::Diff(diff()));
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn commands_and_answers_survive_serialization() {
    let details = TargetDetails { refused: vec!["x".to_owned()], ..TargetDetails::default() };
    let unknown =
        UnknownTarget { target: "192.0.2.1".parse().unwrap(), near: vec!["192.0.2.2".to_owned()], problems: vec![] };
    let progress = DrainProgress {
        draining: true,
        held: vec!["192.0.2.1".parse().map(Vip::new).unwrap()],
        handed: vec![("2001:db8::1".parse().map(Vip::new).unwrap(), node_name("node-2"))],
        kept: vec![("192.0.2.2".parse().map(Vip::new).unwrap(), "no other node may lead it".to_owned())],
    };
    for answer in [Answer::Details(Box::new(details)), Answer::Unknown(unknown), Answer::Drain(progress)] {
        let text = serde_json::to_string(&Reply { version: VERSION, answer: answer.clone() }).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap().answer, answer);
    }
    for (command, text) in [
        (ControlCommand::Explain("shop/web".parse().unwrap()), r#"{"explain":"shop/web"}"#),
        (ControlCommand::Drain { cancel: true }, r#"{"drain":{"cancel":true}}"#),
        (ControlCommand::Draining, r#""draining""#),
    ] {
        let request = serde_json::to_string(&ControlRequest { version: VERSION, command: command.clone() }).unwrap();
        assert_eq!(request, format!(r#"{{"version":1,"command":{text}}}"#));
        assert_eq!(serde_json::from_str::<ControlRequest>(&request).unwrap().command, command);
    }
}

#[test]
fn malformed_requests_get_an_error() {
    for (request, expected) in [
        (r#"{"version":2,"command":"diff"}"#, "version 2 are not understood"),
        (r#"{"version":1,"command":"dance"}"#, "makes no sense"),
        (r#"{"version":1,"command":{"explain":"neither"}}"#, "is neither NAMESPACE/SERVICE nor an IP address"),
        ("", "makes no sense"),
    ] {
        let answer = beside_an_agent(move |path| raw(path, format!("{request}\n").as_bytes()));
        assert!(answer.starts_with(r#"{"version":1,"error":""#) && answer.contains(expected), "{request}: {answer}");
    }
}

#[test]
fn a_request_without_an_end_is_cut_off() {
    let endless = vec![b' '; usize::try_from(LONGEST_REQUEST).unwrap()];
    let answer = beside_an_agent(move |path| raw(path, &endless));
    assert!(answer.contains("makes no sense"), "{answer}");
}

#[test]
fn a_second_agent_does_not_take_the_socket_and_one_that_ended_leaves_it() {
    let taken = beside_an_agent(|path| listen(path, &Supervisor::default()).map(drop));
    assert!(matches!(taken, Err(ListenError::Taken { .. })));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    // Bound and dropped, like the socket of an agent that ended. It does not listen: a process that
    // another test starts could inherit a listening one, and keep it open for a while.
    tokio::net::UnixSocket::new_stream().unwrap().bind(&path).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { listen(&path, &Supervisor::default()).map(drop) }).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    let refused = runtime.block_on(async { listen(&path, &Supervisor::default()).map(drop) });
    assert!(matches!(refused, Err(ListenError::Refused { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn without_an_agent_the_error_says_what_to_do() {
    let error = ask(Path::new("/nonexistent/agent.sock"), ControlCommand::Diff).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no agent listens on /nonexistent/agent.sock: start it, or name its socket by --socket"
    );
}

/// For instance, the agent ends.
#[test]
fn an_agent_that_says_nothing_is_not_taken_for_another_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let agent = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stream), &mut String::new()).unwrap()
    });
    let error = ask(&path, ControlCommand::Draining).unwrap_err();
    assert!(matches!(error, AskError::Broken { .. }), "{error}");
    assert_ne!(agent.join().unwrap(), 0, "it was asked");
}
