use std::collections::BTreeSet;

use tempfile::TempDir;

use super::*;

/// For a lock that is refused.
const SOON: Duration = Duration::from_millis(20);
/// For a lock that is free: one that was dropped may live on for a while, in a process that another test is starting.
const PATIENCE: Duration = Duration::from_secs(20);

fn vip(text: &str) -> Vip {
    Vip(text.parse().unwrap())
}

fn ledger() -> (TempDir, Ledger) {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::of(folder.path());
    ledger.create().unwrap();
    (folder, ledger)
}

fn lock(ledger: &Ledger, address: &str) -> Record {
    ledger.lock(vip(address), Instant::now() + PATIENCE).unwrap()
}

fn refused(ledger: &Ledger, address: &str) -> io::ErrorKind {
    ledger.lock(vip(address), Instant::now() + SOON).unwrap_err().kind()
}

#[test]
fn neighbouring_addresses_have_different_records() {
    for network in ["192.0.2.", "2001:db8::1:"] {
        let records: BTreeSet<_> = (0..=255).map(|last| record(vip(&format!("{network}{last}")))).collect();
        assert_eq!(records.len(), 256, "{network}");
        assert!(records.iter().all(|record| *record < RECORDS));
    }
}

#[test]
fn a_locked_record_keeps_out_its_own_vips_only() {
    let (_folder, ledger) = ledger();
    let held = lock(&ledger, "192.0.2.1");
    assert_eq!(refused(&ledger, "198.51.98.1"), io::ErrorKind::TimedOut, "the same twelve bits");
    lock(&ledger, "192.0.2.0");
    lock(&ledger, "192.0.2.2");
    drop(held);
    lock(&ledger, "192.0.2.1");
}

#[test]
fn a_number_vouches_only_for_what_nobody_wrote_or_writes() {
    let (_folder, ledger) = ledger();
    let (ours, other) = (vip("192.0.2.1"), vip("192.0.2.2"));
    let first = ledger.numbers().unwrap();
    assert!(first.vouch(&first, ours) && first.all_settled());
    let record = lock(&ledger, "192.0.2.1");
    let next = record.begin(0).unwrap();
    let during = ledger.numbers().unwrap();
    assert!(!during.vouch(&first, ours) && !during.vouch(&during, ours) && !during.all_settled());
    assert!(during.vouch(&first, other));
    record.end(next).unwrap();
    let after = ledger.numbers().unwrap();
    assert!(!after.vouch(&first, ours) && !after.vouch(&during, ours));
    assert!(after.vouch(&after, ours) && after.all_settled() && after.vouch(&first, other));
}

#[test]
fn a_writer_that_died_leaves_a_number_that_vouches_for_nothing_until_the_next_one_comes() {
    let (_folder, ledger) = ledger();
    let lost = lock(&ledger, "192.0.2.1").begin(0).unwrap();
    let during = ledger.numbers().unwrap();
    assert!(!during.vouch(&during, vip("192.0.2.1")));
    let record = lock(&ledger, "192.0.2.1");
    let next = record.begin(0).unwrap();
    assert!(next > lost);
    record.end(next).unwrap();
    assert!(ledger.numbers().unwrap().all_settled());
}

#[test]
fn numbers_are_even_and_greater_than_all_before() {
    let (_folder, ledger) = ledger();
    let mut before = 0;
    for above in [0, 0, u64::MAX >> 5, 0, 7, MAX_NUMBER / 2] {
        let record = lock(&ledger, "192.0.2.1");
        let next = record.begin(above).unwrap();
        assert!(next > before && next > above && next.is_multiple_of(2), "{before} {above} {next}");
        record.end(next).unwrap();
        before = next;
    }
}

#[test]
fn a_ledger_that_is_made_anew_gives_none_of_the_numbers_of_the_one_before() {
    let (_folder, ledger) = ledger();
    let number = || {
        let record = lock(&ledger, "192.0.2.1");
        let next = record.begin(0).unwrap();
        record.end(next).unwrap();
        next
    };
    let before = number().max(number());
    for damage in [None, Some(""), Some("nonsense\n\n\n"), Some("zzzzzzzzzzzzzzz\n")] {
        match damage {
            None => fs::remove_file(ledger.path()).unwrap(),
            Some(text) => fs::write(ledger.path(), text.repeat(usize::from(RECORDS))).unwrap(),
        }
        let numbers = ledger.numbers().unwrap();
        assert!(!numbers.vouch(&numbers, vip("192.0.2.1")) && !numbers.all_settled(), "{damage:?}");
        assert!(number() > before, "{damage:?}");
    }
}

#[test]
fn a_lock_on_a_file_that_went_keeps_nobody_out_and_is_not_taken() {
    let (_folder, ledger) = ledger();
    let stale = lock(&ledger, "192.0.2.1");
    fs::remove_file(ledger.path()).unwrap();
    let fresh = lock(&ledger, "192.0.2.1");
    drop(stale);
    assert_eq!(refused(&ledger, "192.0.2.1"), io::ErrorKind::TimedOut);
    drop(fresh);
}

#[test]
fn a_number_half_written_vouches_for_nothing() {
    for before in [0xef, 0xfff, 0x12_3fff, 0x10, 0x1f] {
        for after in [before + 1, before + 2] {
            let (old, new) = (line(before), line(after));
            for cut in 0..old.len() {
                for torn in [format!("{}{}", &old[..cut], &new[cut..]), format!("{}{}", &new[..cut], &old[cut..])] {
                    let harmless = torn == old || torn == new || !is_settled(torn.as_bytes());
                    assert!(harmless || number(torn.as_bytes()) < Some(before), "{before:x} {after:x} {torn}");
                }
            }
        }
    }
}
