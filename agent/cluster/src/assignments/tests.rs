//! Tests the file of assignments.

use super::*;
use vipmux_model::request::Scope;
use vipmux_testing::{
    again_while,
    names::{service_name, vip, vip4},
};

fn holding(address: u8, scope: Option<Scope>) -> PreviousAssignment {
    let key = |scope| SharingKey { dialect: "vipmux".to_owned(), key: "web: \"x\"".to_owned(), scope };
    let ports = ["80/TCP", "53/UDP"].map(|port| port.parse().unwrap()).into();
    let key = scope.map(key);
    let sharing = Sharing { by_address: by_address_with(key.as_ref()), key };
    let snapshot = RequestSnapshot { ports, sharing, ..RequestSnapshot::default() };
    PreviousAssignment { addresses: [vip4(address)].into(), snapshot: Some(snapshot) }
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/assignments.yaml");
    (directory, path)
}

fn set(path: &Path, holders: &PreviousAssignments) {
    update(path, |_| (holders.clone(), ())).unwrap();
}

#[test]
fn written_assignments_are_read_again() {
    let (_directory, path) = file();
    assert!(load(&path).unwrap().is_none());
    let namespaces = Scope::Namespaces(["a".to_owned(), "b".to_owned()].into());
    let unknown = PreviousAssignment { addresses: [vip("2001:db8::1")].into(), snapshot: None };
    let all = RequestSnapshot {
        sharing: Sharing { by_address: ByAddress::Explicit, ..Sharing::default() },
        pool: Some("lan".to_owned()),
        additional: [vip("192.0.2.7")].into(),
        alike: [("spec.loadBalancerIP".to_owned(), "192.0.2.6".to_owned())].into(),
        label: Some("shop".to_owned()),
        spill: true,
        ..holding(6, None).snapshot.unwrap()
    };
    let holders: PreviousAssignments = [
        (service_name("a"), holding(1, None)),
        (service_name("b"), holding(2, Some(Scope::default()))),
        (service_name("c"), holding(3, Some(Scope::Cluster))),
        (service_name("d"), holding(4, Some(namespaces))),
        (service_name("e"), unknown),
        // Colons at either end, as YAML has them for mappings.
        (
            service_name("f"),
            PreviousAssignment {
                addresses: ["2001:db8:0:0:1::", "::1:2", "192.0.2.5"].map(vip).into(),
                snapshot: None,
            },
        ),
        (service_name("g"), PreviousAssignment { snapshot: Some(all), ..holding(6, None) }),
        // None of its ports is exposed, and that is known.
        (
            service_name("h"),
            PreviousAssignment {
                snapshot: Some(RequestSnapshot { sharing: Sharing::default(), ..RequestSnapshot::default() }),
                ..holding(7, None)
            },
        ),
    ]
    .into();
    set(&path, &holders);
    assert_eq!(load(&path).unwrap(), Some(holders));
}

#[test]
fn the_documented_format_is_the_format() {
    let (_directory, path) = file();
    fs::create_dir_all(parent_directory(&path)).unwrap();
    let documented = include_str!("../assignments.rs").lines().skip_while(|line| *line != "//! ```yaml").skip(1);
    let text: String =
        documented.take_while(|line| *line != "//! ```").map(|line| line[4..].to_owned() + "\n").collect();
    fs::write(&path, text).unwrap();
    let held = load(&path).unwrap().unwrap()[&service_name("web")].clone();
    let snapshot = held.snapshot.unwrap();
    assert_eq!((held.addresses.len(), snapshot.ports.len()), (2, 2));
    assert_eq!(snapshot.sharing.by_address, ByAddress::Explicit);
    assert_eq!(snapshot.sharing.key.unwrap().scope, Scope::Cluster);
    assert_eq!((snapshot.pool.as_deref(), snapshot.label.as_deref()), (Some("lan"), Some("shop")));
    assert_eq!((snapshot.additional.len(), snapshot.alike.len()), (1, 1));
}

#[test]
fn a_file_with_fewer_fields_is_read_as_before() {
    let (_directory, path) = file();
    fs::create_dir_all(parent_directory(&path)).unwrap();
    let text = "version: 1\nservices:\n  shop/a:\n    addresses: [192.0.2.1]\n    ports: [80/TCP, 53/UDP]\n    \
                sharing: {dialect: vipmux, key: 'web: \"x\"', scope: cluster}\n  \
                shop/b: {addresses: [192.0.2.2], ports: [80/TCP, 53/UDP]}\n  shop/c: {addresses: [192.0.2.3]}\n";
    fs::write(&path, text).unwrap();
    let unknown = PreviousAssignment { snapshot: None, ..holding(3, None) };
    let holders = [
        (service_name("a"), holding(1, Some(Scope::Cluster))),
        (service_name("b"), holding(2, None)),
        (service_name("c"), unknown),
    ];
    assert_eq!(load(&path).unwrap(), Some(holders.into()));
}

#[test]
fn nothing_is_written_when_nothing_changed_and_the_version_before_is_kept() {
    let (_directory, path) = file();
    let first: PreviousAssignments = [(service_name("a"), holding(1, None))].into();
    set(&path, &first);
    let inode = || fs::metadata(&path).unwrap().ino();
    let before = inode();
    set(&path, &first);
    assert_eq!(inode(), before);
    set(&path, &PreviousAssignments::new());
    assert_eq!(load(&beside(&path, ".old")).unwrap(), Some(first));
    assert_eq!(load(&path).unwrap(), Some(PreviousAssignments::new()));
}

#[test]
fn a_damaged_file_is_an_error_and_stays_as_it_is() {
    let (_directory, path) = file();
    fs::create_dir_all(parent_directory(&path)).unwrap();
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
        let result = update(&path, |_| (PreviousAssignments::new(), ()));
        assert!(matches!(result, Err(AssignmentsError::Damaged { .. })), "{text}: {result:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, [0xff]).unwrap();
    assert!(matches!(load(&path), Err(AssignmentsError::Damaged { .. })));
}

#[test]
fn a_file_of_another_version_has_an_error_of_its_own() {
    let (_directory, path) = file();
    fs::create_dir_all(parent_directory(&path)).unwrap();
    fs::write(&path, "version: 2\nservices: {shop/a: {leases: []}}").unwrap();
    assert!(matches!(load(&path), Err(AssignmentsError::Version { found: 2, .. })));
}

#[test]
fn only_the_file_that_was_seen_is_replaced() {
    let (_directory, path) = file();
    let holders = |address| -> PreviousAssignments { [(service_name("a"), holding(address, None))].into() };
    let first = replace(&path, None, &holders(1)).unwrap();
    assert_eq!((first, first.is_some()), (file_version(&path), true));
    assert_eq!(replace(&path, None, &holders(2)).unwrap(), None, "there is one by now");
    let second = replace(&path, first, &holders(3)).unwrap();
    assert_eq!(replace(&path, first, &holders(4)).unwrap(), None);
    assert_eq!((file_version(&path), load(&path).unwrap()), (second, Some(holders(3))));
}

#[test]
fn writers_take_turns_and_lose_nothing() {
    let (_directory, path) = file();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for i in 0..8 {
                    let add = |present: &PreviousAssignments| {
                        let mut holders = present.clone();
                        holders.insert(service_name(format!("s{writer}-{i}")), holding(writer, None));
                        (holders, ())
                    };
                    // All others may get the lock first.
                    let is_late = |result: &Result<(), AssignmentsError>| match result {
                        Err(AssignmentsError::File { operation: "lock", source, .. }) => {
                            source.kind() == io::ErrorKind::TimedOut
                        }
                        _ => false,
                    };
                    again_while(Duration::from_mins(2), is_late, || update(path, add)).unwrap();
                }
            });
        }
    });
    assert_eq!(load(&path).unwrap().unwrap().len(), 64);
}
