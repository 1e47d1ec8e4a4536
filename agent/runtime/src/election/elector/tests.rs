//! Tests the event loop's side of the election.

use imbl::OrdMap;

use std::path::Path;

use super::*;
use vipmux_cluster::store::{DirectoryStore, StoreError, Survey};
use vipmux_datapath::bpf::apply::Unclaimed;

use vipmux_datapath::fixture;
use vipmux_election::{ElectionSettings, membership::sealing::SealingKeys, placement::Candidate};
use vipmux_testing::{
    PATIENCE,
    names::{node_name, vip4},
};

fn elector(state: &Path) -> (Elector, mpsc::Receiver<StoreReport>) {
    let election = Election::new(node_name("here"), ElectionSettings::default(), boottime().unwrap());
    let gossip = vipmux_gossip::GossipSettings {
        local: node_name("here"),
        port: vipmux_gossip::DEFAULT_PORT,
        keys: watch::channel(SealingKeys::generate([7; 32])).1,
    };
    Elector::start(
        election,
        ElectionSettings::default().lease,
        gossip,
        ConfiguredStore::Directory(DirectoryStore::new(state)),
        1,
        None,
        &Supervisor::default(),
    )
    .unwrap()
}

/// The election gets no answer of the LAN here. So it keeps probing, and never leads the VIP.
#[tokio::test]
async fn a_vip_whose_lease_cannot_be_read_stays_this_nodes_own() {
    let Some(pins) = fixture::mounted() else { return };
    let (mut kernel, _) = Kernel::open(pins, 64, Unclaimed::Reject).unwrap();
    let state = tempfile::tempdir().unwrap();
    let (mut elector, mut reports) = elector(state.path());
    let vip = vip4(1);
    // No address of this machine: nothing is bound.
    elector.set_nodes(&[(node_name("here"), vec![[192, 0, 2, 2].into()])].into()).unwrap();
    let candidate = Candidate { node: node_name("here"), weight: 1, score: 0, excluded: false, cordoned: false };
    let wanted = Arc::new([(vip, [candidate].into_iter().collect())].into());
    let is_held = |elector: &Elector| elector.own_vips().any(|(held, role)| held == vip && role != Role::Leading);
    let taking = async {
        while !is_held(&elector) {
            elector.handle(&mut kernel, Input::Wanted(Arc::clone(&wanted))).unwrap();
            elector.heartbeat(&mut kernel, true).unwrap();
            if let Ok(Some(report)) = timeout(Duration::from_millis(10), reports.recv()).await {
                elector.store_report(&mut kernel, report).unwrap();
            }
        }
    };
    timeout(PATIENCE, taking).await.unwrap();
    let fault = StoreError::Malformed { lease: "its Lease".to_owned(), message: "it is empty".to_owned() };
    let survey = Survey { leases: OrdMap::new(), faults: [(vip, Arc::new(fault))].into_iter().collect() };
    let (operation, asked) = (StoreOperation::Survey, boottime().unwrap());
    let result = Ok(store::StoreOutcome::Surveyed(survey));
    elector.store_report(&mut kernel, StoreReport { operation, asked, result }).unwrap();
    assert!(is_held(&elector));
}

#[test]
fn an_announcement_is_by_all_peers_with_its_macs_or_by_none_that_is_known() {
    let mac = |last| Mac::new([2, 0, 0, 0, 0, last]);
    let names = |names: &[&str]| names.iter().copied().map(node_name).collect::<BTreeSet<_>>();
    let owners = [(mac(1), names(&["a"])), (mac(2), names(&["a", "b"]))].into();
    for (macs, by) in [(&[1][..], &["a"][..]), (&[2], &["a", "b"]), (&[1, 2], &["a", "b"]), (&[1, 3], &[]), (&[], &[])]
    {
        let macs = macs.iter().map(|last| mac(*last)).collect();
        let heard = HeardAnnouncement { macs, at: Duration::from_secs(1), yielded: true };
        assert_eq!(announcement(vip4(1), &heard, &owners).by, names(by), "{heard:?}");
    }
}
