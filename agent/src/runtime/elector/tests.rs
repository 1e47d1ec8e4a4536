use imbl::OrdMap;

use std::path::Path;

use super::*;
use crate::{
    datapath::{apply::Unclaimed, maps::fixture},
    election::{Settings, placement::Contender},
    membership::sealing::Keys,
    store::{Directory, StoreError, Survey},
};

/// Longer than anything takes that comes at all.
const PATIENCE: Duration = Duration::from_mins(1);

fn here() -> NodeName {
    NodeName("here".to_owned())
}

fn elector(state: &Path) -> (Elector, mpsc::Receiver<Report>) {
    let election = Election::new(here(), Settings::default(), boottime().unwrap());
    let gossip =
        gossip::Settings { local: here(), port: gossip::DEFAULT_PORT, keys: watch::channel(Keys::generate([7; 32])).1 };
    Elector::start(election, Settings::default().lease, gossip, Place::Directory(Directory::new(state)), 1).unwrap()
}

#[tokio::test]
async fn an_agent_that_cannot_hear_its_peers_any_more_is_told_so() {
    let state = tempfile::tempdir().unwrap();
    let (mut elector, _reports) = elector(state.path());
    elector.voice.abort();
    let happened = timeout(PATIENCE, elector.happened()).await;
    assert!(happened.is_ok_and(|happened| happened.is_err()));
}

/// Nobody says what the LAN answers, so it goes on asking who has the address, and never leads it.
#[tokio::test]
async fn an_address_whose_lease_cannot_be_read_stays_this_nodes() {
    let Some(pins) = fixture::mounted() else { return };
    let mut kernel = Kernel::open(pins, 64, Unclaimed::Reject).unwrap();
    let state = tempfile::tempdir().unwrap();
    let (mut elector, mut reports) = elector(state.path());
    let vip = Vip([192, 0, 2, 1].into());
    // No address of this machine: nothing is bound.
    elector.know(&[(here(), vec![[192, 0, 2, 2].into()])].into()).unwrap();
    let contender = Contender { node: here(), weight: 1, excluded: false, cordoned: false };
    let wanted = Arc::new([(vip, [contender].into_iter().collect())].into());
    let is_held = |elector: &Elector| elector.held().any(|(held, role)| held == vip && role != Role::Leading);
    let taking = async {
        while !is_held(&elector) {
            elector.give(&mut kernel, Input::Wanted(Arc::clone(&wanted))).unwrap();
            elector.beat(&mut kernel, true).unwrap();
            if let Ok(Some(report)) = timeout(Duration::from_millis(10), reports.recv()).await {
                elector.report(&mut kernel, report).unwrap();
            }
        }
    };
    timeout(PATIENCE, taking).await.unwrap();
    let fault = StoreError::Malformed { lease: "its Lease".to_owned(), message: "it is empty".to_owned() };
    let survey = Survey { leases: OrdMap::new(), faults: [(vip, Arc::new(fault))].into_iter().collect() };
    let (operation, asked) = (Operation::Survey, boottime().unwrap());
    let result = Ok(store::Outcome::Surveyed(survey));
    elector.report(&mut kernel, Report { operation, asked, result }).unwrap();
    assert!(is_held(&elector));
}
