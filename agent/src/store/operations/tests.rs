use std::{collections::BTreeSet, future::pending, time::Instant};

use tokio::sync::mpsc::Receiver;

use super::*;
use crate::store::Directory;

const NOW: Duration = Duration::from_secs(100);
const SHORT: Duration = Duration::from_millis(50);
/// Far beyond what a slow disk takes; only a failing test waits for it.
const LONG: Duration = Duration::from_mins(1);

/// Answers surveys and reads of IPv6 addresses; for others there never is an answer.
struct Silent;

impl Store for Silent {
    async fn read(&self, vip: Vip) -> Result<Option<Lease>, StoreError> {
        if vip.0.is_ipv4() { pending().await } else { Ok(None) }
    }

    async fn swap(&self, _: Vip, _: Option<&Version>, _: &NodeName, _: u64) -> Result<Swapped, StoreError> {
        pending().await
    }

    async fn delete(&self, _: Vip, _: &Version) -> Result<Deleted, StoreError> {
        panic!("a fault of the store")
    }

    async fn survey(&self) -> Result<Survey, StoreError> {
        Ok(Survey::default())
    }
}

/// Not even surveys.
struct Mute;

impl Store for Mute {
    async fn read(&self, _: Vip) -> Result<Option<Lease>, StoreError> {
        pending().await
    }

    async fn swap(&self, _: Vip, _: Option<&Version>, _: &NodeName, _: u64) -> Result<Swapped, StoreError> {
        pending().await
    }

    async fn delete(&self, _: Vip, _: &Version) -> Result<Deleted, StoreError> {
        pending().await
    }

    async fn survey(&self) -> Result<Survey, StoreError> {
        pending().await
    }
}

fn vip(last: u8) -> Vip {
    Vip([192, 0, 2, last].into())
}

fn impatient<S: Store>(store: S) -> (Operations<S>, Receiver<Report>) {
    let (operations, reports) = Operations::new(store);
    (Operations { limit: SHORT, patience: SHORT, ..operations }, reports)
}

fn is_late(report: &Report) -> bool {
    matches!(&report.result, Err(StoreError::Unavailable { source, .. }) if source.kind() == io::ErrorKind::TimedOut)
}

/// The report on this when the store was in time: the folder has a limit of its own, and a disk may be slow.
async fn done(
    operations: &Operations<impl Store>,
    reports: &mut Receiver<Report>,
    operation: impl Fn() -> Operation,
) -> Report {
    let begun = Instant::now();
    loop {
        assert!(operations.begin(operation(), NOW));
        let report = reports.recv().await.unwrap();
        if !is_late(&report) || begun.elapsed() >= LONG {
            return report;
        }
    }
}

#[tokio::test]
async fn each_operation_is_reported_with_what_was_asked_and_when() {
    let state = tempfile::tempdir().unwrap();
    let (operations, mut reports) = Operations::new(Directory::new(state.path()));
    let operations = Operations { limit: LONG, ..operations };
    let swap = |expected| Operation::Swap { vip: vip(1), expected, holder: NodeName("n1".to_owned()), epoch: 1 };
    let report = done(&operations, &mut reports, || swap(None)).await;
    assert_eq!((&report.operation, report.asked), (&swap(None), NOW));
    let Ok(Outcome::Swapped(Swapped::Done(version))) = report.result else { panic!("{report:?}") };
    let result = done(&operations, &mut reports, || Operation::Read(vip(1))).await.result;
    assert!(matches!(&result, Ok(Outcome::Read(Some(lease))) if lease.version == version), "{result:?}");
    let result = done(&operations, &mut reports, || Operation::Survey).await.result;
    assert!(matches!(&result, Ok(Outcome::Surveyed(survey)) if survey.leases.len() == 1), "{result:?}");
    let delete = || Operation::Delete { vip: vip(1), version: version.clone() };
    let result = done(&operations, &mut reports, delete).await.result;
    assert!(matches!(result, Ok(Outcome::Deleted(Deleted::Done))), "{result:?}");
}

#[tokio::test]
async fn what_is_not_answered_is_given_up_and_holds_its_turn() {
    let (operations, mut reports) = impatient(Silent);
    let count = u8::try_from(AT_ONCE).unwrap() + 1;
    for last in 0..count {
        assert!(operations.begin(Operation::Read(vip(last)), NOW));
    }
    let mut given_up = BTreeSet::new();
    for _ in 0..count {
        let report = reports.recv().await.unwrap();
        assert!(is_late(&report), "{report:?}");
        let Operation::Read(vip) = report.operation else { panic!("{report:?}") };
        given_up.insert(vip);
    }
    assert_eq!(given_up.len(), usize::from(count));
    assert_eq!(operations.turns.available_permits(), 0);
    let answered = Vip("2001:db8::1".parse().unwrap());
    assert!(operations.begin(Operation::Read(answered), NOW));
    assert!(is_late(&reports.recv().await.unwrap()), "no turn comes");
    assert!(operations.begin(Operation::Survey, NOW));
    let result = reports.recv().await.unwrap().result;
    assert!(matches!(result, Ok(Outcome::Surveyed(_))), "surveys wait for nobody: {result:?}");
}

#[tokio::test]
async fn one_survey_is_under_way_at_a_time() {
    let (operations, mut reports) = impatient(Mute);
    assert!(operations.begin(Operation::Survey, NOW));
    assert!(!operations.begin(Operation::Survey, NOW));
    assert!(is_late(&reports.recv().await.unwrap()));
    assert!(!operations.begin(Operation::Survey, NOW), "it still occupies the store");
}

#[tokio::test]
async fn the_number_of_outstanding_operations_is_bounded() {
    let (operations, reports) = impatient(Mute);
    for _ in 0..OUTSTANDING {
        assert!(operations.begin(Operation::Read(vip(1)), NOW));
    }
    assert!(!operations.begin(Operation::Read(vip(1)), NOW));
    assert!(operations.begin(Operation::Survey, NOW));
    drop(reports);
}

#[tokio::test]
async fn a_store_that_fails_is_reported() {
    let (operations, mut reports) = Operations::new(Silent);
    assert!(operations.begin(Operation::Delete { vip: vip(1), version: Version("1".to_owned()) }, NOW));
    let report = reports.recv().await.unwrap();
    assert!(matches!(report.result, Err(StoreError::Unavailable { .. })) && !is_late(&report), "{report:?}");
    assert_eq!(operations.turns.available_permits(), AT_ONCE);
}
