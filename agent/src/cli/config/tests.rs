//! Configuration files, read by commands made for these tests.

use std::{fs, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use super::*;

#[derive(Debug, Parser)]
#[command(name = "test")]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Serve(Serve),
    Allot(Allot),
    /// Reads the file of the others
    Look(Look),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    On,
    Off,
    Auto,
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.trim_end_matches('s').parse().map(Duration::from_secs).map_err(|_| "it is not a time".to_owned())
}

#[derive(Debug, clap::Args)]
struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    #[arg(long)]
    node_name: String,
    #[arg(long = "interface", value_delimiter = ',')]
    interfaces: Vec<String>,
    #[arg(long, env = "VIPMUX_TEST_GOSSIP_PORT", default_value_t = 7944, value_parser = clap::value_parser!(u16).range(1..))]
    gossip_port: u16,
    #[arg(long, value_enum, default_value = "auto")]
    allocator: Mode,
    #[arg(long, default_value = "30s", value_parser = seconds)]
    self_check: Duration,
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    detection: bool,
    #[arg(long)]
    manifests: Option<PathBuf>,
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Allot {
    #[command(flatten)]
    config: ConfigArgs,
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Takes over what others wrote.
    #[arg(long)]
    adopt: bool,
}

#[derive(Debug, clap::Args)]
struct Look {
    #[command(flatten)]
    _config: SharedConfigArgs,
    #[arg(long)]
    all: bool,
    #[arg(long, env = "VIPMUX_TEST_GOSSIP_PORT", default_value_t = 1)]
    gossip_port: u16,
    /// Another one than the others have.
    #[arg(long)]
    manifests: Option<PathBuf>,
}

/// The command line with a file of this text.
fn read(text: &str, arguments: &[&str]) -> Result<Sub, CommandLineError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    let (command, rest) = arguments.split_first().unwrap();
    let mut all: Vec<OsString> = vec!["test".into(), command.into(), "--config".into(), path.into()];
    all.extend(rest.iter().map(Into::into));
    parse::<Cli>(&all).map(|cli| cli.command)
}

fn serve(text: &str, arguments: &[&str]) -> Serve {
    match read(text, &[&["serve"], arguments].concat()).unwrap_or_else(|error| panic!("{error}")) {
        Sub::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

/// The mistakes of a file, one per line.
fn problems(text: &str, command: &str) -> Vec<String> {
    match read(text, &[command]) {
        Err(CommandLineError::File(ConfigError::Problems { problems, .. })) => problems
            .into_iter()
            .map(|ConfigProblem { line, message }| {
                format!("{}: {message}", line.map_or_else(String::new, |it| it.to_string()))
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_option_is_read() {
    let text = "
        nodeName: node-1
        interface: [eth0, 'eth1,eth2']
        gossipPort: 7000
        allocator: off
        selfCheck: 5
        detection: false
        manifests: /manifests
    ";
    let read = serve(text, &[]);
    assert_eq!((read.node_name.as_str(), read.gossip_port), ("node-1", 7000));
    assert_eq!(read.interfaces, ["eth0", "eth1", "eth2"]);
    assert_eq!((read.allocator, read.self_check, read.detection), (Mode::Off, Duration::from_secs(5), false));
    assert_eq!(read.manifests, Some("/manifests".into()));
    assert!(read.config.config.is_some());
    let one = serve("{nodeName: n, interface: eth0, allocator: false, selfCheck: 7s}", &[]);
    assert_eq!((one.interfaces, one.allocator), (vec!["eth0".to_owned()], Mode::Off));
    assert_eq!(one.self_check, Duration::from_secs(7));
}

#[test]
fn a_flag_overrides_the_file_and_the_file_the_default() {
    let text = "{nodeName: of-the-file, gossipPort: 7000, interface: [eth0, eth1]}";
    let read = serve(text, &["--node-name", "of-the-flag", "--interface", "eth9"]);
    assert_eq!((read.node_name.as_str(), read.gossip_port), ("of-the-flag", 7000));
    assert_eq!((read.interfaces, read.self_check), (vec!["eth9".to_owned()], Duration::from_secs(30)));
}

/// Clap reads the environment of the process, so agent/tests/configuration.rs tests it with a
/// process of its own. This test checks that the file's values replace defaults, over which the
/// environment takes precedence.
#[test]
fn the_values_of_the_file_replace_the_defaults() {
    let all: Vec<OsString> = ["test", "serve", "--node-name", "n"].map(Into::into).into();
    let Sub::Serve(plain) = parse::<Cli>(&all).unwrap().command else { panic!() };
    assert_eq!(plain.gossip_port, 7944);
    let command = Cli::command();
    let port = |arg: &&clap::Arg| arg.get_id() == "gossip_port";
    let arg = command.find_subcommand("serve").unwrap().get_arguments().find(port).unwrap();
    assert!(arg.get_env().is_some());
}

#[test]
fn an_empty_file_says_nothing() {
    for text in ["", "# nothing\n", "---\n", "{}"] {
        assert_eq!(serve(text, &["--node-name", "n"]).gossip_port, 7944, "{text:?}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "nodeName: [a]\n\
                gosipPort: 1\n\
                gossip-port: 1\n\
                gossipPort: 0\n\
                allocator: maybe\n\
                selfCheck: soon\n\
                detection: 1\n\
                interface: {a: b}\n\
                kubeconfig: 5\n\
                adopt: yes\n\
                zzz: 1\n";
    let expected = [
        "1: nodeName: is a list, but one value is expected",
        "2: gosipPort: unknown key; did you mean gossipPort?",
        "3: gossip-port: unknown key; did you mean gossipPort?",
        "4: gossipPort: \"0\" cannot be used: 0 is not in 1..=65535",
        "5: allocator: \"maybe\" is not one of on, off, auto",
        "6: selfCheck: \"soon\" cannot be used: it is not a time",
        "7: detection: 1 is a number, but true or false is expected",
        "8: interface: it is a mapping, but text is expected",
        "9: kubeconfig: 5 is a number, but text is expected: put it in quotes",
        "10: adopt: \"yes\" is text, but true or false is expected",
        "11: zzz: unknown key; `vipmux agent --help` lists the options",
    ];
    assert_eq!(problems(text, "serve"), expected);
}

#[test]
fn a_file_that_is_no_mapping_is_reported_with_its_line() {
    let [one] = &problems("nodeName: a\n  b: [\n", "serve")[..] else { panic!() };
    assert!(one.starts_with("2: ") || one.starts_with("3: "), "{one}");
    assert_eq!(problems("- nodeName\n", "serve").len(), 1);
    let [twice] = &problems("nodeName: a\nnodeName: b\n", "serve")[..] else { panic!() };
    assert!(twice.contains("nodeName"), "{twice}");
}

#[test]
fn a_missing_value_is_reported() {
    assert_eq!(problems("nodeName:\n", "serve"), ["1: nodeName: the value is missing, but text is expected"]);
}

#[test]
fn a_key_of_another_command_is_checked_and_not_used() {
    let text = "{nodeName: n, adopt: true, kubeconfig: /k}";
    assert_eq!(serve(text, &[]).kubeconfig, Some("/k".into()));
    match read(text, &["allot"]).unwrap() {
        Sub::Allot(allot) => {
            assert!(allot.adopt && allot.kubeconfig == Some("/k".into()) && allot.config.config.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(problems("gossipPort: 70000\n", "allot").len(), 1);
}

#[test]
fn a_key_that_no_command_with_a_file_has_is_refused() {
    assert!(problems("all: true\n", "serve")[0].contains("unknown key"));
    assert_eq!(problems("config: other.yaml\n", "serve"), ["1: config: a file cannot name another file"]);
}

#[test]
fn keys_that_exclude_each_other_are_reported_and_a_flag_overrules_the_other_key() {
    let both = "nodeName: n\nmanifests: /m\nkubeconfig: /k\n";
    assert_eq!(problems(both, "serve"), ["3: kubeconfig: cannot be used together with manifests (line 2)"]);
    let read = serve("{nodeName: n, manifests: /m}", &["--kubeconfig", "/k"]);
    assert_eq!((read.manifests, read.kubeconfig), (None, Some("/k".into())));
    let read = serve("{nodeName: n, kubeconfig: /k}", &["--manifests", "/m"]);
    assert_eq!((read.manifests, read.kubeconfig), (Some("/m".into()), None));
}

#[test]
fn flags_that_exclude_each_other_are_refused_and_a_variable_is_no_flag() {
    let both = ["test", "serve", "--node-name", "n", "--manifests", "/m", "--kubeconfig", "/k"].map(OsString::from);
    let error = parse::<Cli>(&both).unwrap_err().to_string();
    assert!(error.contains("--manifests cannot be used together with --kubeconfig"), "{error}");
    let Err(CommandLineError::Usage(error)) =
        read("nodeName: n\n", &["serve", "--manifests", "/m", "--kubeconfig", "/k"])
    else {
        panic!()
    };
    assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
}

#[test]
fn a_command_beside_an_agent_takes_what_it_shares_with_it() {
    let look = |text: &str, arguments: &[&str]| match read(text, &[&["look"], arguments].concat()) {
        Ok(Sub::Look(look)) => look,
        other => panic!("{other:?}"),
    };
    let text = "{nodeName: n, gossipPort: 7000, manifests: /m}";
    let Look { gossip_port, manifests, all, .. } = look(text, &[]);
    assert_eq!((gossip_port, manifests, all), (7000, None, false));
    assert_eq!(look(text, &["--gossip-port", "7001", "--all"]).gossip_port, 7001);
    assert_eq!(look("{}", &[]).gossip_port, 1);
    assert!(problems("all: true\n", "look")[0].contains("unknown key"));
}

#[test]
fn a_mistake_on_the_command_line_is_reported_as_without_a_file() {
    let Err(CommandLineError::Usage(missing)) = read("gossipPort: 1\n", &["serve"]) else { panic!() };
    assert_eq!(missing.kind(), ErrorKind::MissingRequiredArgument);
    let Err(CommandLineError::Usage(wrong)) = read("nodeName: [\n", &["serve", "--gossip-port", "0"]) else { panic!() };
    assert_eq!(wrong.kind(), ErrorKind::ValueValidation);
    let absent: Vec<_> = ["test", "serve", "--config", "/nowhere/config.yaml"].map(OsString::from).into();
    let error = parse::<Cli>(&absent).unwrap_err().to_string();
    assert_eq!(error, "cannot read the configuration file /nowhere/config.yaml");
}

#[test]
fn the_schema_and_the_table_have_every_key() {
    let schema = schema::<Cli>();
    let keys: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "adopt",
        "allocator",
        "detection",
        "gossipPort",
        "interface",
        "kubeconfig",
        "manifests",
        "nodeName",
        "selfCheck",
    ];
    assert_eq!(keys, expected);
    assert_eq!(schema["properties"]["gossipPort"]["default"], 7944);
    assert_eq!(schema["properties"]["allocator"]["enum"], serde_json::json!(["on", "off", "auto"]));
    let table = table::<Cli>();
    for key in expected {
        assert!(table.contains(&format!("| `{key}` |")), "{key}: {table}");
    }
    assert!(table.contains("serve, allot"), "{table}");
}
