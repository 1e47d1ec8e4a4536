//! Tests Leases in a directory.

use std::{
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicU64, Ordering},
    thread::{ScopedJoinHandle, scope},
};

use tempfile::TempDir;

use super::*;
use crate::store::RecordState;
use vipmux_testing::{
    PATIENCE, again_while,
    names::{node_name, vip},
};

/// Returns a store like another agent's.
fn store(state: &TempDir) -> Arc<Folder> {
    let DirectoryStore(folder) = DirectoryStore::new(state.path());
    folder.prepare().unwrap();
    folder
}

fn state() -> (TempDir, Arc<Folder>) {
    let state = tempfile::tempdir().unwrap();
    let folder = store(&state);
    (state, folder)
}

fn try_swap(
    folder: &Folder,
    vip: Vip,
    expected: Option<&Version>,
    holder: &str,
    epoch: u64,
) -> Result<Swapped, StoreError> {
    folder.swap(vip, expected, &node_name(holder), epoch, Instant::now() + PATIENCE)
}

fn swap(folder: &Folder, vip: Vip, expected: Option<&Version>, holder: &str, epoch: u64) -> Version {
    match swap_at_last(folder, vip, expected, holder, epoch) {
        Swapped::Done(version) => version,
        Swapped::Conflict => panic!("a conflict at {vip}, epoch {epoch}"),
    }
}

fn swap_at_last(folder: &Folder, vip: Vip, expected: Option<&Version>, holder: &str, epoch: u64) -> Swapped {
    at_last(|| try_swap(folder, vip, expected, holder, epoch))
}

/// Repeats an attempt that was too late. With many threads and a slow disk, the others can have the
/// lock until all of them have written.
fn at_last<T>(attempt: impl FnMut() -> Result<T, StoreError>) -> T {
    let is_late = |result: &Result<T, StoreError>| match result {
        Err(StoreError::Unavailable { source, .. }) => source.kind() == io::ErrorKind::TimedOut,
        _ => false,
    };
    again_while(2 * PATIENCE, is_late, attempt).unwrap()
}

fn is_unavailable<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable { .. }))
}

#[test]
fn a_swapped_lease_is_read_and_surveyed() {
    let (state, folder) = state();
    let (first, second) = (vip("192.0.2.1"), vip("2001:db8::1"));
    assert_eq!(folder.read(first).unwrap(), None);
    assert!(folder.survey().unwrap().leases.is_empty());
    let version = swap(&folder, first, None, "n1", 1);
    let version = swap(&folder, first, Some(&version), "n2.example.org", 2);
    let expected = Lease { holder: node_name("n2.example.org"), epoch: 2, version };
    let other = swap(&folder, second, None, "n1", 7);
    let leases: imbl::OrdMap<_, _> =
        [(first, expected.clone()), (second, Lease { holder: node_name("n1"), epoch: 7, version: other })]
            .into_iter()
            .collect();
    for folder in [folder, store(&state)] {
        assert_eq!(folder.read(first).unwrap().as_ref(), Some(&expected));
        let survey = folder.survey().unwrap();
        assert_eq!((survey.leases, survey.faults.len()), (leases.clone(), 0));
    }
}

#[test]
fn only_the_expected_version_is_swapped_or_deleted() {
    let (_state, folder) = state();
    let vip = vip("192.0.2.1");
    let first = swap(&folder, vip, None, "n1", 1);
    let second = swap(&folder, vip, Some(&first), "n2", 2);
    for expected in [None, Some(&first)] {
        assert_eq!(try_swap(&folder, vip, expected, "n3", 3).unwrap(), Swapped::Conflict);
    }
    assert_eq!(folder.delete(vip, &first).unwrap(), Deleted::Conflict);
    assert_eq!(folder.read(vip).unwrap().map(|lease| lease.epoch), Some(2));
    assert_eq!(at_last(|| folder.delete(vip, &second)), Deleted::Done);
    assert_eq!(folder.read(vip).unwrap(), None);
    assert_eq!(folder.delete(vip, &second).unwrap(), Deleted::Done, "there is none");
    assert_eq!(try_swap(&folder, vip, Some(&second), "n1", 3).unwrap(), Swapped::Conflict, "there is none");
    let again = swap(&folder, vip, None, "n1", 1);
    assert!(![first, second].contains(&again), "a version is never given again");
}

#[test]
fn the_documented_format_is_the_format() {
    let documented = include_str!("../directory.rs").lines().skip_while(|line| *line != "//! ```yaml").skip(1);
    let text: String =
        documented.take_while(|line| *line != "//! ```").map(|line| line[4..].to_owned() + "\n").collect();
    let convert = |object| lease_object::from_object(vip("192.0.2.10"), object);
    let lease = parse(text.clone().into_bytes(), convert).unwrap();
    let version = Version::new("1795102800000002");
    assert_eq!(lease, Lease { holder: node_name("n1"), epoch: 1, version: version.clone() });
    let time = "2026-11-20T15:30:00Z".parse().unwrap();
    let object = lease_object::to_object(vip("192.0.2.10"), Some(version), &node_name("n1"), 1, time).unwrap();
    let without_comments: String =
        text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end().to_owned() + "\n").collect();
    assert_eq!(serde_saphyr::to_string(&object).unwrap(), without_comments);
}

#[test]
fn agents_that_share_a_folder_have_one_id_and_others_have_another() {
    let (state, folder) = state();
    let (same, (_kept, other)) = (store(&state), self::state());
    assert!(folder.id.get().is_some());
    assert_eq!(folder.id, same.id);
    assert_ne!(folder.id, other.id);
}

#[test]
fn an_id_that_is_damaged_is_an_error() {
    let (state, folder) = state();
    fs::write(folder.path.join(".id"), "\n").unwrap();
    let result = DirectoryStore::new(state.path()).0.prepare();
    assert!(is_unavailable(&result), "{result:?}");
}

#[test]
fn a_nodes_record_is_compared_and_swapped() {
    let (state, folder) = state();
    let node = node_name("n1");
    let content = |state| RecordContent { state, promise: Duration::from_millis(300) };
    let swap = |folder: &Folder, expected: Option<&Version>, state| {
        let content = content(state);
        at_last(|| folder.swap_record(&node, expected, &content, Instant::now() + OPERATION_TIMEOUT))
    };
    let Swapped::Done(first) = swap(&folder, None, RecordState::Confirmed) else { panic!("there is none") };
    assert_eq!(swap(&folder, None, RecordState::Confirmed), Swapped::Conflict);
    let by = RecordState::Challenged(node_name("n2"));
    let Swapped::Done(second) = swap(&store(&state), Some(&first), by.clone()) else { panic!("another agent's swap") };
    assert_eq!(swap(&folder, Some(&first), RecordState::Confirmed), Swapped::Conflict);
    let record = NodeRecord { content: content(by), version: second };
    assert_eq!(folder.read_record(&node).unwrap(), Some(record));
    assert_eq!(folder.read_record(&node_name("n2")).unwrap(), None);
    assert!(folder.survey().unwrap().leases.is_empty(), "it is no VIP's Lease");
    fs::write(folder.record_file(&node), "kind: Lease").unwrap();
    assert!(matches!(folder.read_record(&node), Err(StoreError::Malformed { .. })));
}

#[test]
fn a_file_that_is_no_lease_is_an_error_and_stays_and_disturbs_no_other() {
    let (_state, folder) = state();
    let (bad, good) = (vip("192.0.2.1"), vip("192.0.2.2"));
    swap(&folder, good, None, "n1", 1);
    let version = swap(&folder, bad, None, "n1", 1);
    let path = folder.file(bad);
    let text = fs::read_to_string(&path).unwrap();
    let long = format!("holderIdentity: {}", "a".repeat(254));
    let damaged = [
        String::new(),
        "\0".to_owned(),
        "[".repeat(10_000),
        text.replace("kind: Lease", "kind: Service"),
        text.replace("vip-c0000201", "vip-c0000202"),
        text.replace("leaseTransitions: 1", "leaseTransitions: -1"),
        text.replace("leaseTransitions: 1", "leaseTransitions: 2147483647"),
        text.replace("leaseTransitions: 1", "other: 1"),
        text.replace("holderIdentity: n1", "holderIdentity: n/1"),
        text.replace("holderIdentity: n1", &long),
        text.replace(version.as_str(), &"1".repeat(65)),
        text.replace("holderIdentity: n1", &format!("holderIdentity: n1 # {}", "x".repeat(1 << 14))),
    ];
    for text in damaged {
        fs::write(&path, &text).unwrap();
        let shown = path.display().to_string();
        let is_malformed = |error: &StoreError| matches!(error, StoreError::Malformed { lease, .. } if *lease == shown);
        assert!(folder.read(bad).is_err_and(|error| is_malformed(&error)), "{text}");
        for expected in [None, Some(&version)] {
            assert!(try_swap(&folder, bad, expected, "n2", 2).is_err_and(|error| is_malformed(&error)), "{text}");
        }
        assert!(folder.delete(bad, &version).is_err_and(|error| is_malformed(&error)), "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        // A fresh store, since this one need not read a file that no agent wrote.
        let DirectoryStore(fresh) = DirectoryStore::new(folder.path.parent().unwrap());
        for _ in 0..2 {
            let survey = fresh.survey().unwrap();
            assert_eq!(survey.leases.keys().collect::<Vec<_>>(), [&good]);
            assert!(survey.faults.get(&bad).is_some_and(|error| is_malformed(error)), "{text}");
        }
        fs::write(&path, self::text(bad, &version)).unwrap();
        assert_eq!(fresh.survey().unwrap().leases.len(), 2, "it was repaired");
    }
    fs::write(&path, [0xff]).unwrap();
    assert!(matches!(folder.read(bad), Err(StoreError::Malformed { .. })));
}

fn text(vip: Vip, version: &Version) -> String {
    let object =
        lease_object::to_object(vip, Some(version.clone()), &node_name("n1"), 1, Timestamp::UNIX_EPOCH).unwrap();
    serde_saphyr::to_string(&object).unwrap()
}

#[test]
fn other_files_are_no_leases() {
    let (_state, folder) = state();
    swap(&folder, vip("192.0.2.1"), None, "n1", 1);
    for name in ["vip-c0000202", "vip-c00002.yaml", "README", "vip-c0000202.yaml.old", ".vip-c0000202.yaml.new"] {
        fs::write(folder.path.join(name), "text").unwrap();
    }
    let survey = folder.survey().unwrap();
    assert_eq!((survey.leases.len(), survey.faults.len()), (1, 0));
}

/// Locks the Lease, as an agent does that is about to write it.
fn lock(folder: &Folder, vip: Vip, version: &Version) -> File {
    at_last(|| folder.lock(&folder.file(vip), version, version_of(vip))).expect("the version")
}

#[test]
fn a_writer_that_died_before_the_new_file_was_in_place_leaves_the_old_one() {
    let (state, folder) = state();
    let vip = vip("192.0.2.1");
    let version = swap(&folder, vip, None, "n1", 1);
    let before = folder.survey().unwrap();
    let lock = lock(&folder, vip, &version);
    let half = atomic_file::write_temporary(&folder.file(vip), b"half").unwrap().into_temp_path();
    // As if the process was killed: its file stays.
    std::mem::forget(half);
    drop(lock);
    assert_eq!(folder.survey().unwrap().leases, before.leases);
    let next = swap(&store(&state), vip, Some(&version), "n2", 2);
    assert_eq!(folder.survey().unwrap().leases.get(&vip).map(|lease| &lease.version), Some(&next));
    let names = fs::read_dir(&folder.path).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name != ".id").count(), 1, "nothing is left of what was half done");
}

#[test]
fn a_lock_on_a_file_that_was_replaced_is_not_taken_and_blocks_nobody() {
    let (_state, folder) = state();
    let vip = vip("192.0.2.1");
    let path = folder.file(vip);
    let first = swap(&folder, vip, None, "n1", 1);
    let stale = lock(&folder, vip, &first);
    assert!(is_at(&stale, &path).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(!is_at(&stale, &path).unwrap());
    let second = swap(&folder, vip, None, "n2", 2);
    assert!(!is_at(&stale, &path).unwrap());
    swap(&folder, vip, Some(&second), "n2", 3);
}

#[test]
fn a_lock_that_another_has_is_given_up_on_in_time_and_read_past() {
    let (state, folder) = state();
    let (held, free) = (vip("192.0.2.1"), vip("192.0.2.2"));
    let version = swap(&folder, held, None, "n1", 1);
    let stopped = store(&state);
    let lock = lock(&stopped, held, &version);
    let begun = Instant::now();
    assert!(is_unavailable(&try_swap(&folder, held, Some(&version), "n2", 2)));
    assert!(is_unavailable(&folder.delete(held, &version)));
    assert!(begun.elapsed() >= 2 * LOCK_TIMEOUT);
    assert_eq!(folder.read(held).unwrap().map(|lease| lease.epoch), Some(1));
    assert_eq!(folder.survey().unwrap().leases.len(), 1);
    swap(&folder, free, None, "n2", 1);
    drop(lock);
    swap(&folder, held, Some(&version), "n2", 2);
}

#[test]
fn a_swap_that_was_given_up_is_not_written() {
    let (_state, folder) = state();
    let vip = vip("192.0.2.1");
    let result = folder.swap(vip, None, &node_name("n1"), 1, Instant::now());
    assert!(is_unavailable(&result), "{result:?}");
    assert_eq!(folder.read(vip).unwrap(), None);
}

#[test]
fn a_folder_that_went_is_an_error_and_its_return_is_noticed() {
    let (state, folder) = state();
    let vip = vip("192.0.2.1");
    let version = swap(&folder, vip, None, "n1", 1);
    let expected = folder.survey().unwrap().leases;
    let aside = state.path().join("aside");
    let all_fail = |why: &str| {
        assert!(is_unavailable(&folder.read(vip)), "{why}");
        assert!(is_unavailable(&try_swap(&folder, vip, Some(&version), "n2", 2)), "{why}");
        assert!(is_unavailable(&try_swap(&folder, vip, None, "n2", 2)), "{why}");
        assert!(is_unavailable(&folder.delete(vip, &version)), "{why}");
        assert!(is_unavailable(&folder.survey()), "{why}");
    };
    fs::rename(&folder.path, &aside).unwrap();
    all_fail("it is away");
    fs::write(&folder.path, "a file").unwrap();
    all_fail("a file is in its place");
    fs::remove_file(&folder.path).unwrap();
    fs::rename(&aside, &folder.path).unwrap();
    assert_eq!(folder.survey().unwrap().leases, expected);
    swap(&folder, vip, Some(&version), "n2", 2);
}

#[test]
fn a_folder_that_was_created_again_has_other_versions() {
    let (state, folder) = state();
    let vip = vip("192.0.2.1");
    let version = swap(&folder, vip, None, "n1", 1);
    folder.survey().unwrap();
    fs::remove_dir_all(&folder.path).unwrap();
    let another = store(&state);
    assert!(folder.survey().unwrap().leases.is_empty());
    assert_ne!(swap(&another, vip, None, "n2", 1), version);
    assert_eq!(folder.survey().unwrap().leases[&vip].holder, node_name("n2"));
    assert_eq!(try_swap(&folder, vip, Some(&version), "n1", 2).unwrap(), Swapped::Conflict);
}

/// Root may write anywhere, so a folder in the place of the temporary file makes the write fail.
#[test]
fn a_folder_that_takes_no_file_is_an_error_and_the_lease_stays() {
    let (_state, folder) = state();
    let vip = vip("192.0.2.1");
    let version = swap(&folder, vip, None, "n1", 1);
    let obstacle = folder.path.join(format!(".{}.yaml.new", lease_object::lease_name(vip)));
    fs::create_dir(&obstacle).unwrap();
    assert!(is_unavailable(&try_swap(&folder, vip, Some(&version), "n2", 2)));
    assert_eq!(folder.read(vip).unwrap().map(|lease| lease.epoch), Some(1));
    assert_eq!(folder.survey().unwrap().leases[&vip].epoch, 1);
    fs::remove_dir(&obstacle).unwrap();
    swap(&folder, vip, Some(&version), "n2", 2);
}

#[test]
fn files_are_readable_for_all_and_their_folder_needs_no_second_look() {
    let (_state, folder) = state();
    let vip = vip("192.0.2.1");
    swap(&folder, vip, None, "n1", 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o444;
    assert_eq!((mode(&folder.file(vip)), mode(&folder.path.join(".id"))), (0o444, 0o444));
    let survey = || {
        let survey = folder.survey().unwrap();
        (folder.last_survey.lock().unwrap().folder.is_some_and(|folder| folder.settled), survey)
    };
    let (_, first) = again_while(STAMP_SETTLE + PATIENCE, |(settled, _)| !settled, survey);
    // A change in place does not change the folder.
    fs::write(folder.file(vip), "nonsense").unwrap();
    let second = folder.survey().unwrap();
    assert!(first.leases.ptr_eq(&second.leases) && second.faults.is_empty());
}

/// Two changes within a tick of the clock, of which the second one gets the inode of the first one, leave one stamp.
#[test]
fn what_was_read_soon_after_a_change_is_read_again() {
    let (_state, folder) = state();
    let stamp = |path: &Path| FileStamp::from(&fs::metadata(path).unwrap());
    let (one, other) = (stamp(&folder.path), stamp(&folder.path.join(".id")));
    let first = StampAge::new(one, None, Instant::now());
    let later = |age: Duration| StampAge::new(one, Some(&first), first.since + age);
    let (soon, settled) = (later(STAMP_SETTLE / 2), later(STAMP_SETTLE));
    assert!(!soon.is_unchanged_since(Some(&first)) && !settled.is_unchanged_since(Some(&soon)));
    let after = StampAge::new(one, Some(&settled), settled.since);
    assert!(after.is_unchanged_since(Some(&settled)) && !after.is_unchanged_since(None));
    let changed = StampAge::new(other, Some(&settled), Instant::now());
    assert!(!changed.is_unchanged_since(Some(&settled)) && !changed.settled);
}

/// Threads, each with a store of its own, race for each version: as many processes would.
#[test]
fn each_version_has_one_successor_and_no_epoch_comes_twice() {
    const AGENTS: u64 = 6;
    const EPOCHS: u64 = 20;
    let (state, folder) = state();
    let vips = [vip("192.0.2.1"), vip("192.0.18.1"), vip("2001:db8::1")];
    let wins: Mutex<Vec<(Vip, u64, u64)>> = Mutex::default();
    scope(|scope| {
        for agent in 0..AGENTS {
            let (state, wins) = (&state, &wins);
            scope.spawn(move || {
                let folder = store(state);
                let holder = format!("n{agent}");
                for vip in vips {
                    loop {
                        let lease = folder.read(vip).unwrap();
                        let epoch = lease.as_ref().map_or(1, |lease| lease.epoch + 1);
                        if epoch > EPOCHS {
                            break;
                        }
                        let version = lease.map(|lease| lease.version);
                        if let Swapped::Done(_) = swap_at_last(&folder, vip, version.as_ref(), &holder, epoch) {
                            wins.lock().unwrap().push((vip, epoch, agent));
                        }
                    }
                }
            });
        }
    });
    let mut wins = wins.into_inner().unwrap();
    wins.sort_unstable();
    let epochs: Vec<_> = wins.iter().map(|(vip, epoch, _)| (*vip, *epoch)).collect();
    let mut expected: Vec<_> = vips.iter().flat_map(|vip| (1..=EPOCHS).map(|epoch| (*vip, epoch))).collect();
    expected.sort_unstable();
    assert_eq!(epochs, expected);
    for (vip, epoch, agent) in wins.into_iter().filter(|(_, epoch, _)| *epoch == EPOCHS) {
        let lease = folder.read(vip).unwrap().unwrap();
        assert_eq!((lease.epoch, lease.holder), (epoch, node_name(format!("n{agent}"))));
    }
}

#[test]
fn a_survey_misses_nothing_that_was_done_before_it() {
    const EPOCHS: u64 = 60;
    let (state, folder) = state();
    let vips = ["192.0.2.1", "192.0.2.2", "2001:db8::3", "192.0.18.1"].map(vip);
    let done: [AtomicU64; 4] = Default::default();
    let look = || {
        let before = done.each_ref().map(|done| done.load(Ordering::SeqCst));
        let survey = folder.survey().unwrap();
        assert!(survey.faults.is_empty());
        for (vip, before) in vips.iter().zip(before) {
            let found = survey.leases.get(vip).map_or(0, |lease| lease.epoch);
            assert!(found >= before, "{vip}: {found} after {before}");
        }
        before
    };
    scope(|scope| {
        let writer = |(vip, done): (Vip, _)| {
            let folder = store(&state);
            let done: &AtomicU64 = done;
            scope.spawn(move || {
                let mut version = None;
                for epoch in 1..=EPOCHS {
                    match swap_at_last(&folder, vip, version.as_ref(), "n1", epoch) {
                        Swapped::Done(next) => version = Some(next),
                        Swapped::Conflict => panic!("nobody else writes {vip}"),
                    }
                    done.store(epoch, Ordering::SeqCst);
                }
            })
        };
        let writers: Vec<_> = vips.into_iter().zip(&done).map(writer).collect();
        while !writers.iter().all(ScopedJoinHandle::is_finished) {
            look();
        }
    });
    assert_eq!(look(), [EPOCHS; 4]);
}
