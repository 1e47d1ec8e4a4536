//! Tests the executor with a kernel that only counts, and a store that may refuse.

use std::convert::Infallible;

use super::*;
use crate::{ElectionSettings, LEASE, LeaseOutcome, RecordOutcome, membership::MembershipSettings};
use vipmux_testing::names::{node_name, vip4};

const T: Duration = Duration::from_secs(100);

#[derive(Default)]
struct Io {
    begun: Vec<(StoreOperation, Duration)>,
    refuses: bool,
}

impl NodeIo for Io {
    type Error = Infallible;

    fn lead(&mut self, _: Vip, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn follow(&mut self, _: Vip) -> Result<(), Infallible> {
        Ok(())
    }

    fn assure(&mut self, _: Vip, _: bool) -> Result<(), Infallible> {
        Ok(())
    }

    fn extend(&mut self, _: Duration) -> Result<(), Infallible> {
        Ok(())
    }

    fn begin(&mut self, operation: StoreOperation, asked: Duration) -> bool {
        self.begun.push((operation, asked));
        !self.refuses
    }

    fn note_full(&mut self, full: Full) {
        panic!("{full}");
    }
}

struct Bench {
    executor: Executor,
    membership: Membership,
    io: Io,
}

impl Bench {
    fn new() -> Self {
        let here = node_name("here");
        let mut executor = Executor::new(Election::new(here.clone(), ElectionSettings::default(), T));
        executor.now = T;
        let membership = Membership::new(here, 1, MembershipSettings::for_lease(LEASE), T);
        Self { executor, membership, io: Io::default() }
    }

    /// Executes the commands of these operations. Returns the operations that began.
    fn execute(&mut self, operations: impl IntoIterator<Item = StoreOperation>) -> Vec<(StoreOperation, Duration)> {
        self.executor.commands.extend(operations.into_iter().map(Command::Store));
        while let Ok(Some(_)) = self.executor.execute_next(&mut self.membership, &mut self.io) {}
        std::mem::take(&mut self.io.begun)
    }

    fn inputs(&mut self) -> Vec<String> {
        self.executor.inputs.drain(..).map(|input| format!("{input:?}")).collect()
    }
}

#[test]
fn only_the_latest_operation_on_a_lease_counts() {
    let mut bench = Bench::new();
    let swap = StoreOperation::Swap { vip: vip4(1), expected: None, holder: node_name("here"), epoch: 1 };
    let begun = bench.execute([StoreOperation::Read(vip4(1)), swap, StoreOperation::Read(vip4(2))]);
    let [read, swap, other] = begun.iter().map(|(_, asked)| *asked).collect::<Vec<_>>().try_into().unwrap();
    assert!(T < read && read < swap && swap < other && other < T + Duration::from_micros(1));
    let conflict = |vip| Input::Stored { vip, outcome: LeaseOutcome::Conflict };
    for (asked, vip, counts) in [(read, 1, false), (swap, 1, true), (swap, 1, false), (other, 2, true)] {
        bench.executor.push_report(asked, conflict(vip4(vip)));
        assert_eq!(bench.inputs().len(), usize::from(counts), "{asked:?}");
    }
}

#[test]
fn an_operation_that_cannot_begin_has_failed() {
    let mut bench = Bench::new();
    bench.io.refuses = true;
    let delete = StoreOperation::Delete { vip: vip4(1), version: crate::lease::Version::new("1") };
    let read = StoreOperation::ReadRecord { node: node_name("there"), urgent: false };
    let begun = bench.execute([StoreOperation::Read(vip4(1)), read, StoreOperation::Survey, delete]);
    let recorded = Input::Recorded { node: node_name("there"), asked: T, outcome: RecordOutcome::Unavailable };
    let failed = [
        Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Unavailable },
        recorded,
        Input::Surveyed { asked: T, leases: None },
    ];
    assert_eq!(bench.inputs(), failed.map(|input| format!("{input:?}")));
    bench.executor.push_report(begun[0].1, Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Conflict });
    assert!(bench.executor.next_input().is_none(), "it has ended");
}

#[test]
fn a_heartbeat_follows_what_the_kernel_heard_before_it() {
    let mut bench = Bench::new();
    let heard = PeerAnnouncement { vip: vip4(1), by: [].into(), at: T, yielded: true };
    bench.executor.push_heartbeat(vec![heard], true);
    let [heard, tick] = bench.inputs().try_into().unwrap();
    assert!(heard.starts_with("PeerAnnounced") && tick.starts_with("Tick"), "{heard}, {tick}");
}
