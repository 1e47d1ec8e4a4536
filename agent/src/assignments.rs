//! `assignments.yaml`: who holds which addresses, where no cluster keeps it in the Services' statuses.
//!
//! It lies in the agent's state directory. All agents that share the directory read it; one at a time writes it, under a
//! lock (`flock(2)` on `assignments.yaml.lock`), whole and atomically, and only when something changed. The version
//! before is kept as `assignments.yaml.old`.
//!
//! ```yaml
//! version: 1
//! services:
//!   shop/web:                    # namespace/name
//!     addresses: [192.0.2.10, "2001:db8::10"] # what it holds
//!     ports: [80/TCP, 443/TCP]   # what it claimed then; tells who changed, where two Services clash
//!     sharing:                   # its sharing key then; left out where it has none
//!       dialect: vipmux
//!       key: web
//!       scope: cluster           # or `namespaces: [a, b]`; left out where the key stays in its namespace
//!     by-address: explicit       # with whom it shared by address then; left out where its key, or that it has none, tells
//!     pool: lan                  # the pool that it named then
//!     additional: ["2001:db8::10"] # those of its addresses that it asked for beside its own then
//!     alike: {aviinfrasetting.ako.vmware.com/name: gold} # what its group had to say alike then
//!     label: shop                # the label that it gave its addresses then
//! ```
//!
//! To move a Service by hand, stop the agents, change its `addresses` and start them again. All else may be left out, and
//! is where it does not apply; without `ports` nothing is known of the terms on which it holds its addresses. A file that cannot be understood is never written over.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};

use crate::{
    allocate::holders::{Alike, Held, Holders, Terms},
    durable::{self, directory},
    model::{
        ServiceName, Vip,
        name::{Port, is_label},
        range::AddressRange,
        request::{ByAddress, Sharing, SharingKey},
    },
};

/// The format's version.
const VERSION: u32 = 1;
/// A larger file is damaged: 10,000 Services need about 2 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// How long others may have the lock: allocating for 10,000 Services takes under a second.
const LOCKED: Duration = Duration::from_secs(2);
/// How often it is tried.
const ATTEMPTS: Duration = Duration::from_millis(5);

/// What can go wrong with `assignments.yaml`.
#[derive(Debug, thiserror::Error)]
pub enum AssignmentsError {
    /// It is there and cannot be read.
    #[error("cannot read the assignments {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be understood. It is left as it is.
    #[error(
        "the assignments {} are damaged: {message}; repair the file, put the version before in its place \
         ({}.old), or move it away to start anew", path.display(), path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
    /// It is of another version of vipmux. It is left as it is.
    #[error("the assignments {} have version {found}, and this vipmux knows version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that it says.
        found: u32,
    },
    /// The lock beside it cannot be had.
    #[error("cannot lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written. The file is as it was.
    #[error("cannot write the assignments {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    services: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    addresses: BTreeSet<Vip>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<BTreeSet<Port>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharing: Option<SharingKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_address: Option<ByAddress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    additional: BTreeSet<Vip>,
    #[serde(default, skip_serializing_if = "Alike::is_empty")]
    alike: Alike,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

impl Entry {
    fn of(held: &Held) -> Self {
        let terms = held.terms.clone();
        let ports = terms.as_ref().map(|terms| terms.ports.clone());
        let Terms { sharing: Sharing { key, by_address }, pool, additional, alike, label, .. } =
            terms.unwrap_or_default();
        let by_address = Some(by_address).filter(|found| ports.is_some() && *found != by_address_with(key.as_ref()));
        Self { addresses: held.addresses.clone(), ports, sharing: key, by_address, pool, additional, alike, label }
    }

    fn held(self) -> Held {
        let Self { addresses, ports, sharing: key, by_address, pool, additional, alike, label } = self;
        let by_address = by_address.unwrap_or_else(|| by_address_with(key.as_ref()));
        let sharing = Sharing { key, by_address };
        Held { addresses, terms: ports.map(|ports| Terms { ports, sharing, pool, additional, alike, label }) }
    }
}

/// What is not written down: most Services have a key or no annotation at all.
fn by_address_with(key: Option<&SharingKey>) -> ByAddress {
    if key.is_some() { ByAddress::Never } else { ByAddress::Plain }
}

/// Who holds what by the file; `None`: there is no file.
pub fn load(path: &Path) -> Result<Option<Holders>, AssignmentsError> {
    let read = |source| AssignmentsError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let damaged = |message: String| AssignmentsError::Damaged { path: path.to_owned(), message };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(damaged(format!("more than {MAX_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let document = parse(&text).map_err(|failure| match failure {
        Failure::Version(found) => AssignmentsError::Version { path: path.to_owned(), found },
        Failure::Syntax(message) => damaged(message),
    })?;
    document
        .services
        .into_iter()
        .map(|(name, entry)| held(&name, entry).map_err(damaged))
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Lets `decide` choose new holders from the present ones (none, where there is no file) and writes them if they differ.
///
/// Holders that stay as they are need no lock. Otherwise `decide` is asked again under the lock, with what is there by
/// then, and its last answer counts; so it may be called twice. Agents that share the file thus agree. Blocks while
/// another agent holds the lock, for two seconds at most.
pub fn update<T>(path: &Path, mut decide: impl FnMut(&Holders) -> (Holders, T)) -> Result<T, AssignmentsError> {
    let present = load(path)?.unwrap_or_default();
    let (chosen, outcome) = decide(&present);
    if chosen == present {
        return Ok(outcome);
    }
    let _lock = lock(path)?;
    let present = load(path)?.unwrap_or_default();
    let (chosen, outcome) = decide(&present);
    if chosen != present {
        write(path, &chosen).map_err(|source| AssignmentsError::Write { path: path.to_owned(), source })?;
    }
    Ok(outcome)
}

/// Writes these holders in place of what the file was when it had this stamp. Says which it has then; `None`: it is another
/// file by now, and was left as it is.
pub fn replace(path: &Path, seen: Option<Stamp>, holders: &Holders) -> Result<Option<Stamp>, AssignmentsError> {
    let _lock = lock(path)?;
    if stamp(path) != seen {
        return Ok(None);
    }
    write(path, holders).map_err(|source| AssignmentsError::Write { path: path.to_owned(), source })?;
    Ok(stamp(path))
}

/// Tells one version of the file from another: its inode, which every writing replaces, and when it was modified.
pub type Stamp = (u64, SystemTime);

/// The file's stamp; `None`: there is no file.
pub fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.modified().ok()?))
}

enum Failure {
    Version(u32),
    Syntax(String),
}

fn parse(text: &str) -> Result<Document, Failure> {
    /// All that is asked of a file that may be of another version.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    // The file's size is bounded; nothing in it can refer to anything else in it.
    let options = || {
        serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: usize::MAX, max_nodes: usize::MAX, max_total_scalar_bytes: usize::MAX,
                max_aliases: 0, max_anchors: 0,
            },
            with_snippet: false,
        }
    };
    match serde_saphyr::from_str_with_options::<Document>(text, options()) {
        Ok(document) if document.version == VERSION => Ok(document),
        Ok(document) => Err(Failure::Version(document.version)),
        Err(error) => match serde_saphyr::from_str_with_options::<Versioned>(text, options()) {
            Ok(other) if other.version != VERSION => Err(Failure::Version(other.version)),
            _ => Err(Failure::Syntax(error.to_string())),
        },
    }
}

fn held(name: &str, entry: Entry) -> Result<(ServiceName, Held), String> {
    let split = name.split_once('/').filter(|(namespace, name)| is_label(namespace) && is_label(name));
    let (namespace, service) = split.ok_or_else(|| format!("services: {name:?} is no namespace/name"))?;
    if entry.addresses.is_empty() {
        return Err(format!("services: {name} holds no addresses"));
    }
    for vip in &entry.addresses {
        AddressRange::single(vip.0).map_err(|block| format!("services: {name} holds {vip}, which is in {block}"))?;
    }
    let name = ServiceName { namespace: namespace.to_owned(), name: service.to_owned() };
    Ok((name, entry.held()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Waits for the lock. The lock is on a file of its own, since the assignments' file is another one after each write.
fn lock(path: &Path) -> Result<Flock<File>, AssignmentsError> {
    let lock_path = beside(path, ".lock");
    let failed = |source| AssignmentsError::Lock { path: lock_path.clone(), source };
    fs::create_dir_all(directory(path)).map_err(failed)?;
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(failed)?;
    let deadline = Instant::now() + LOCKED;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() >= deadline => {
                let why = "another agent has it all the time: is one stopped?";
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            Err((again, Errno::EWOULDBLOCK | Errno::EINTR)) => file = again,
            Err((_, error)) => return Err(failed(error.into())),
        }
        sleep(ATTEMPTS);
    }
}

/// The new file is complete on disk before it takes the old one's place.
fn write(path: &Path, holders: &Holders) -> io::Result<()> {
    let services = holders.iter().map(|(name, held)| (name.to_string(), Entry::of(held))).collect();
    let text = serde_saphyr::to_string(&Document { version: VERSION, services }).map_err(io::Error::other)?;
    let file = durable::write_beside(path, text.as_bytes())?;
    if path.exists() {
        fs::copy(path, beside(path, ".old"))?;
    }
    durable::put(file, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixture::again_while, model::request::Scope};

    fn name(text: &str) -> ServiceName {
        ServiceName { namespace: "shop".to_owned(), name: text.to_owned() }
    }

    fn holding(address: u8, scope: Option<Scope>) -> Held {
        let key = |scope| SharingKey { dialect: "vipmux".to_owned(), key: "web: \"x\"".to_owned(), scope };
        let ports = ["80/TCP", "53/UDP"].map(|port| port.parse().unwrap()).into();
        let key = scope.map(key);
        let sharing = Sharing { by_address: by_address_with(key.as_ref()), key };
        let terms = Terms { ports, sharing, ..Terms::default() };
        Held { addresses: [Vip([192, 0, 2, address].into())].into(), terms: Some(terms) }
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/assignments.yaml");
        (directory, path)
    }

    fn set(path: &Path, holders: &Holders) {
        update(path, |_| (holders.clone(), ())).unwrap();
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (_directory, path) = file();
        assert!(load(&path).unwrap().is_none());
        let namespaces = Scope::Namespaces(["a".to_owned(), "b".to_owned()].into());
        let parse = |text: &str| Vip(text.parse().unwrap());
        let unknown = Held { addresses: [parse("2001:db8::1")].into(), terms: None };
        let all = Terms {
            sharing: Sharing { by_address: ByAddress::Explicit, ..Sharing::default() },
            pool: Some("lan".to_owned()),
            additional: [parse("192.0.2.7")].into(),
            alike: [("spec.loadBalancerIP".to_owned(), "192.0.2.6".to_owned())].into(),
            label: Some("shop".to_owned()),
            ..holding(6, None).terms.unwrap()
        };
        let holders: Holders = [
            (name("a"), holding(1, None)),
            (name("b"), holding(2, Some(Scope::default()))),
            (name("c"), holding(3, Some(Scope::Cluster))),
            (name("d"), holding(4, Some(namespaces))),
            (name("e"), unknown),
            // Colons at either end, as YAML has them for mappings.
            (name("f"), Held { addresses: ["2001:db8:0:0:1::", "::1:2", "192.0.2.5"].map(parse).into(), terms: None }),
            (name("g"), Held { terms: Some(all), ..holding(6, None) }),
            // None of its ports is exposed, and that is known.
            (
                name("h"),
                Held { terms: Some(Terms { sharing: Sharing::default(), ..Terms::default() }), ..holding(7, None) },
            ),
        ]
        .into();
        set(&path, &holders);
        assert_eq!(load(&path).unwrap(), Some(holders));
    }

    #[test]
    fn the_documented_format_is_the_format() {
        let (_directory, path) = file();
        fs::create_dir_all(directory(&path)).unwrap();
        let documented = include_str!("assignments.rs").lines().skip_while(|line| *line != "//! ```yaml").skip(1);
        let text: String =
            documented.take_while(|line| *line != "//! ```").map(|line| line[4..].to_owned() + "\n").collect();
        fs::write(&path, text).unwrap();
        let held = load(&path).unwrap().unwrap()[&name("web")].clone();
        let terms = held.terms.unwrap();
        assert_eq!((held.addresses.len(), terms.ports.len()), (2, 2));
        assert_eq!(terms.sharing.by_address, ByAddress::Explicit);
        assert_eq!(terms.sharing.key.unwrap().scope, Scope::Cluster);
        assert_eq!((terms.pool.as_deref(), terms.label.as_deref()), (Some("lan"), Some("shop")));
        assert_eq!((terms.additional.len(), terms.alike.len()), (1, 1));
    }

    #[test]
    fn a_file_that_says_less_is_read_as_before() {
        let (_directory, path) = file();
        fs::create_dir_all(directory(&path)).unwrap();
        let text = "version: 1\nservices:\n  shop/a:\n    addresses: [192.0.2.1]\n    ports: [80/TCP, 53/UDP]\n    \
                    sharing: {dialect: vipmux, key: 'web: \"x\"', scope: cluster}\n  \
                    shop/b: {addresses: [192.0.2.2], ports: [80/TCP, 53/UDP]}\n  shop/c: {addresses: [192.0.2.3]}\n";
        fs::write(&path, text).unwrap();
        let unknown = Held { terms: None, ..holding(3, None) };
        let holders =
            [(name("a"), holding(1, Some(Scope::Cluster))), (name("b"), holding(2, None)), (name("c"), unknown)];
        assert_eq!(load(&path).unwrap(), Some(holders.into()));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed_and_the_version_before_is_kept() {
        let (_directory, path) = file();
        let first: Holders = [(name("a"), holding(1, None))].into();
        set(&path, &first);
        let inode = || fs::metadata(&path).unwrap().ino();
        let before = inode();
        set(&path, &first);
        assert_eq!(inode(), before);
        set(&path, &Holders::new());
        assert_eq!(load(&beside(&path, ".old")).unwrap(), Some(first));
        assert_eq!(load(&path).unwrap(), Some(Holders::new()));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_stays_as_it_is() {
        let (_directory, path) = file();
        fs::create_dir_all(directory(&path)).unwrap();
        for text in [
            "",
            "version: 1",
            "version: 1\nservices: {shop/a: {addresses: [nonsense]}}",
            "version: 1\nservices: {shop/a: {addresses: []}}",
            "version: 1\nservices: {shop/a: {addresses: [127.0.0.1]}}",
            "version: 1\nservices: {a: {addresses: [192.0.2.1]}}",
            "version: 1\nservices: {shop/a: {addresses: [192.0.2.1], ports: [80]}}",
            "version: 1\nservices: {shop/a: {addresses: [192.0.2.1], prots: [80/TCP]}}",
            "version: 1\nservices: {shop/a: &a {addresses: [192.0.2.1]}, shop/b: *a}",
            "version: 1\nservices: {\0",
        ] {
            fs::write(&path, text).unwrap();
            let result = update(&path, |_| (Holders::new(), ()));
            assert!(matches!(result, Err(AssignmentsError::Damaged { .. })), "{text}: {result:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(matches!(load(&path), Err(AssignmentsError::Damaged { .. })));
    }

    #[test]
    fn a_file_of_another_version_is_told_as_such() {
        let (_directory, path) = file();
        fs::create_dir_all(directory(&path)).unwrap();
        fs::write(&path, "version: 2\nservices: {shop/a: {leases: []}}").unwrap();
        assert!(matches!(load(&path), Err(AssignmentsError::Version { found: 2, .. })));
    }

    #[test]
    fn only_the_file_that_was_seen_is_replaced() {
        let (_directory, path) = file();
        let holders = |address| -> Holders { [(name("a"), holding(address, None))].into() };
        let first = replace(&path, None, &holders(1)).unwrap();
        assert_eq!((first, first.is_some()), (stamp(&path), true));
        assert_eq!(replace(&path, None, &holders(2)).unwrap(), None, "there is one by now");
        let second = replace(&path, first, &holders(3)).unwrap();
        assert_eq!(replace(&path, first, &holders(4)).unwrap(), None);
        assert_eq!((stamp(&path), load(&path).unwrap()), (second, Some(holders(3))));
    }

    #[test]
    fn writers_take_turns_and_lose_nothing() {
        let (_directory, path) = file();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for i in 0..8 {
                        let add = |present: &Holders| {
                            let mut holders = present.clone();
                            holders.insert(name(&format!("s{writer}-{i}")), holding(writer, None));
                            (holders, ())
                        };
                        // The lock may go to others all the while that one waits for it.
                        let is_late = |result: &Result<(), AssignmentsError>| match result {
                            Err(AssignmentsError::Lock { source, .. }) => source.kind() == io::ErrorKind::TimedOut,
                            _ => false,
                        };
                        again_while(Duration::from_mins(2), is_late, || update(path, add)).unwrap();
                    }
                });
            }
        });
        assert_eq!(load(&path).unwrap().unwrap().len(), 64);
    }
}
