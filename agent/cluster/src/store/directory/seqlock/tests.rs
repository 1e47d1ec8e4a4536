//! Tests the sequence lock of the directory.

use std::collections::BTreeSet;

use tempfile::TempDir;

use super::*;
use vipmux_testing::{PATIENCE, names::vip};

/// For a lock that is refused.
const SOON: Duration = Duration::from_millis(20);

fn version_file() -> (TempDir, VersionFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = VersionFile::of(folder.path());
    file.create().unwrap();
    (folder, file)
}

fn lock(file: &VersionFile, address: &str) -> RecordLock {
    file.lock(vip(address).into(), Instant::now() + PATIENCE).unwrap()
}

fn refused(file: &VersionFile, address: &str) -> io::ErrorKind {
    file.lock(vip(address).into(), Instant::now() + SOON).unwrap_err().kind()
}

#[test]
fn neighboring_addresses_have_different_records() {
    for network in ["192.0.2.", "2001:db8::1:"] {
        let records: BTreeSet<_> =
            (0..=255).map(|last| RecordIndex::from(vip(&format!("{network}{last}"))).0).collect();
        assert_eq!(records.len(), 256, "{network}");
        assert!(records.iter().all(|record| *record < RECORD_COUNT));
    }
}

#[test]
fn a_locked_record_keeps_out_its_own_vips_only() {
    let (_folder, file) = version_file();
    let held = lock(&file, "192.0.2.1");
    assert_eq!(refused(&file, "198.51.98.1"), io::ErrorKind::TimedOut, "the same twelve bits");
    lock(&file, "192.0.2.0");
    lock(&file, "192.0.2.2");
    drop(held);
    lock(&file, "192.0.2.1");
}

#[test]
fn a_number_is_unchanged_only_if_nobody_wrote_or_writes() {
    let (_folder, file) = version_file();
    let (ours, other) = (vip("192.0.2.1"), vip("192.0.2.2"));
    let first = file.numbers().unwrap();
    assert!(first.unchanged_since(&first, ours) && first.all_even());
    let record = lock(&file, "192.0.2.1");
    let next = record.begin(0).unwrap();
    let during = file.numbers().unwrap();
    assert!(!during.unchanged_since(&first, ours) && !during.unchanged_since(&during, ours) && !during.all_even());
    assert!(during.unchanged_since(&first, other));
    record.end(next).unwrap();
    let after = file.numbers().unwrap();
    assert!(!after.unchanged_since(&first, ours) && !after.unchanged_since(&during, ours));
    assert!(after.unchanged_since(&after, ours) && after.all_even() && after.unchanged_since(&first, other));
}

#[test]
fn a_writer_that_died_leaves_an_odd_number_until_the_next_one_comes() {
    let (_folder, file) = version_file();
    let lost = lock(&file, "192.0.2.1").begin(0).unwrap();
    let during = file.numbers().unwrap();
    assert!(!during.unchanged_since(&during, vip("192.0.2.1")));
    let record = lock(&file, "192.0.2.1");
    let next = record.begin(0).unwrap();
    assert!(next > lost);
    record.end(next).unwrap();
    assert!(file.numbers().unwrap().all_even());
}

#[test]
fn numbers_are_even_and_greater_than_all_before() {
    let (_folder, file) = version_file();
    let mut before = 0;
    for above in [0, 0, u64::MAX >> 5, 0, 7, MAX_NUMBER / 2] {
        let record = lock(&file, "192.0.2.1");
        let next = record.begin(above).unwrap();
        assert!(next > before && next > above && next.is_multiple_of(2), "{before} {above} {next}");
        record.end(next).unwrap();
        before = next;
    }
}

#[test]
fn a_file_that_is_created_again_gives_none_of_the_numbers_of_the_one_before() {
    let (_folder, file) = version_file();
    let number = || {
        let record = lock(&file, "192.0.2.1");
        let next = record.begin(0).unwrap();
        record.end(next).unwrap();
        next
    };
    let before = number().max(number());
    for damage in [None, Some(""), Some("nonsense\n\n\n"), Some("zzzzzzzzzzzzzzz\n")] {
        match damage {
            None => fs::remove_file(file.path()).unwrap(),
            Some(text) => fs::write(file.path(), text.repeat(usize::from(RECORD_COUNT))).unwrap(),
        }
        let numbers = file.numbers().unwrap();
        assert!(!numbers.unchanged_since(&numbers, vip("192.0.2.1")) && !numbers.all_even(), "{damage:?}");
        assert!(number() > before, "{damage:?}");
    }
}

#[test]
fn a_lock_on_a_deleted_file_blocks_nobody_and_is_not_taken() {
    let (_folder, file) = version_file();
    let stale = lock(&file, "192.0.2.1");
    fs::remove_file(file.path()).unwrap();
    let fresh = lock(&file, "192.0.2.1");
    drop(stale);
    assert_eq!(refused(&file, "192.0.2.1"), io::ErrorKind::TimedOut);
    drop(fresh);
}

#[test]
fn a_half_written_number_does_no_harm() {
    for before in [0xef, 0xfff, 0x12_3fff, 0x10, 0x1f] {
        for after in [before + 1, before + 2] {
            let (old, new) = (line(before), line(after));
            for cut in 0..old.len() {
                for torn in [format!("{}{}", &old[..cut], &new[cut..]), format!("{}{}", &new[..cut], &old[cut..])] {
                    let harmless = torn == old || torn == new || !is_even(torn.as_bytes());
                    assert!(harmless || number(torn.as_bytes()) < Some(before), "{before:x} {after:x} {torn}");
                }
            }
        }
    }
}
