//! Tests the operations on Leases.

use std::{collections::BTreeSet, future::pending, time::Instant};

use tokio::sync::mpsc::Receiver;

use super::*;
use crate::store::{DirectoryStore, Version};
use vipmux_testing::names::{node_name, vip, vip4};

const NOW: Duration = Duration::from_secs(100);
const SHORT: Duration = Duration::from_millis(50);
/// Far beyond what a slow disk takes; only a failing test waits for it.
const LONG: Duration = Duration::from_mins(1);

/// Answers surveys, reads of IPv6 addresses and urgent operations, panics at deletions, and answers nothing else.
struct UnresponsiveStore;

impl LeaseStore for UnresponsiveStore {
    async fn run(&self, operation: StoreOperation) -> Result<StoreOutcome, StoreError> {
        match operation {
            StoreOperation::Read(vip) if vip.address().is_ipv6() => Ok(StoreOutcome::Read(None)),
            StoreOperation::ReadRecord { urgent: true, .. } => Ok(StoreOutcome::Record(None)),
            StoreOperation::SwapRecord { urgent: true, .. } => Ok(StoreOutcome::Swapped(Swapped::Conflict)),
            StoreOperation::Read(_)
            | StoreOperation::Swap { .. }
            | StoreOperation::ReadRecord { .. }
            | StoreOperation::SwapRecord { .. } => pending().await,
            StoreOperation::Delete { .. } => panic!("a fault of the store"),
            StoreOperation::Survey => Ok(StoreOutcome::Surveyed(Survey::default())),
        }
    }
}

/// Answers nothing, not even surveys.
struct BlockedStore;

impl LeaseStore for BlockedStore {
    async fn run(&self, _: StoreOperation) -> Result<StoreOutcome, StoreError> {
        pending().await
    }
}

fn impatient<S: LeaseStore>(store: S) -> (StoreOperations<S>, Receiver<StoreReport>) {
    let (operations, reports) = StoreOperations::new(store);
    (StoreOperations { operation_timeout: SHORT, queue_timeout: SHORT, ..operations }, reports)
}

fn is_late(report: &StoreReport) -> bool {
    matches!(&report.result, Err(StoreError::Unavailable { source, .. }) if source.kind() == io::ErrorKind::TimedOut)
}

/// Repeats the operation until the store is in time: the folder has a limit of its own, and a disk
/// may be slow.
async fn done(
    operations: &StoreOperations<impl LeaseStore>,
    reports: &mut Receiver<StoreReport>,
    operation: impl Fn() -> StoreOperation,
) -> StoreReport {
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
async fn each_operation_is_reported_with_its_request_and_time() {
    let state = tempfile::tempdir().unwrap();
    let (operations, mut reports) = StoreOperations::new(DirectoryStore::new(state.path()));
    let operations = StoreOperations { operation_timeout: LONG, ..operations };
    let swap = |expected| StoreOperation::Swap { vip: vip4(1), expected, holder: node_name("n1"), epoch: 1 };
    let report = done(&operations, &mut reports, || swap(None)).await;
    assert_eq!((&report.operation, report.asked), (&swap(None), NOW));
    let Ok(StoreOutcome::Swapped(Swapped::Done(version))) = report.result else { panic!("{report:?}") };
    let result = done(&operations, &mut reports, || StoreOperation::Read(vip4(1))).await.result;
    assert!(matches!(&result, Ok(StoreOutcome::Read(Some(lease))) if lease.version == version), "{result:?}");
    let result = done(&operations, &mut reports, || StoreOperation::Survey).await.result;
    assert!(matches!(&result, Ok(StoreOutcome::Surveyed(survey)) if survey.leases.len() == 1), "{result:?}");
    let delete = || StoreOperation::Delete { vip: vip4(1), version: version.clone() };
    let result = done(&operations, &mut reports, delete).await.result;
    assert!(matches!(result, Ok(StoreOutcome::Deleted(Deleted::Done))), "{result:?}");
}

#[tokio::test]
async fn an_operation_without_an_answer_is_given_up_and_keeps_its_slot() {
    let (operations, mut reports) = impatient(UnresponsiveStore);
    let count = u8::try_from(MAX_LEASE_OPERATIONS).unwrap() + 1;
    for last in 0..count {
        assert!(operations.begin(StoreOperation::Read(vip4(last)), NOW));
    }
    let mut given_up = BTreeSet::new();
    for _ in 0..count {
        let report = reports.recv().await.unwrap();
        assert!(is_late(&report), "{report:?}");
        let StoreOperation::Read(vip) = report.operation else { panic!("{report:?}") };
        given_up.insert(vip);
    }
    assert_eq!(given_up.len(), usize::from(count));
    assert_eq!(operations.slots.available_permits(), 0);
    let answered = vip("2001:db8::1");
    assert!(operations.begin(StoreOperation::Read(answered), NOW));
    assert!(is_late(&reports.recv().await.unwrap()), "no turn comes");
    assert!(operations.begin(StoreOperation::Survey, NOW));
    let result = reports.recv().await.unwrap().result;
    assert!(matches!(result, Ok(StoreOutcome::Surveyed(_))), "surveys wait for nobody: {result:?}");
}

fn read_record(urgent: bool) -> StoreOperation {
    StoreOperation::ReadRecord { node: node_name("n1"), urgent }
}

/// Without it, the node would stop to answer for its VIPs.
#[tokio::test]
async fn an_urgent_operation_waits_behind_no_other() {
    let (operations, mut reports) = StoreOperations::new(UnresponsiveStore);
    // Records of other nodes occupy all slots, and thousands of operations wait for one.
    for _ in 0..MAX_OUTSTANDING / 2 {
        assert!(operations.begin(read_record(false), NOW));
        assert!(operations.begin(StoreOperation::Read(vip4(1)), NOW));
    }
    assert!(!operations.begin(read_record(false), NOW));
    for _ in 0..3 * MAX_RECORD_OPERATIONS {
        assert!(operations.begin(read_record(true), NOW));
        let report = loop {
            let report = reports.recv().await.unwrap();
            if report.operation.is_urgent() {
                break report;
            }
        };
        assert!(matches!(report.result, Ok(StoreOutcome::Record(None))), "{report:?}");
    }
}

#[tokio::test]
async fn urgent_operations_that_are_not_answered_are_bounded() {
    let (operations, mut reports) = impatient(BlockedStore);
    for _ in 0..MAX_RECORD_OPERATIONS {
        assert!(operations.begin(read_record(true), NOW));
        assert!(is_late(&reports.recv().await.unwrap()));
    }
    assert!(!operations.begin(read_record(true), NOW), "they may still occupy threads");
}

#[tokio::test]
async fn one_survey_runs_at_a_time() {
    let (operations, mut reports) = impatient(BlockedStore);
    assert!(operations.begin(StoreOperation::Survey, NOW));
    assert!(!operations.begin(StoreOperation::Survey, NOW));
    assert!(is_late(&reports.recv().await.unwrap()));
    assert!(!operations.begin(StoreOperation::Survey, NOW), "it still occupies the store");
}

#[tokio::test]
async fn the_number_of_outstanding_operations_is_bounded() {
    let (operations, reports) = impatient(BlockedStore);
    for _ in 0..MAX_OUTSTANDING {
        assert!(operations.begin(StoreOperation::Read(vip4(1)), NOW));
    }
    assert!(!operations.begin(StoreOperation::Read(vip4(1)), NOW));
    assert!(operations.begin(StoreOperation::Survey, NOW));
    drop(reports);
}

#[tokio::test]
async fn a_store_that_fails_is_reported() {
    let (operations, mut reports) = StoreOperations::new(UnresponsiveStore);
    assert!(operations.begin(StoreOperation::Delete { vip: vip4(1), version: Version::new("1") }, NOW));
    let report = reports.recv().await.unwrap();
    assert!(matches!(report.result, Err(StoreError::Unavailable { .. })) && !is_late(&report), "{report:?}");
    assert_eq!(operations.slots.available_permits(), MAX_LEASE_OPERATIONS);
}
