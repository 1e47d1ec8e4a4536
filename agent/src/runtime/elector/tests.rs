use super::*;
use crate::{election::Settings, membership::sealing::Keys};

/// Longer than anything takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(60);

fn elector(state: &Path) -> Elector {
    let local = NodeName("here".to_owned());
    let election = Election::new(local.clone(), Settings::default(), boottime().unwrap());
    let gossip = gossip::Settings { local, port: gossip::DEFAULT_PORT, keys: Keys::generate([7; 32]) };
    Elector::start(election, Settings::default().lease, gossip, state, 1).unwrap().0
}

#[tokio::test]
async fn an_agent_that_cannot_hear_its_peers_any_more_is_told_so() {
    let state = tempfile::tempdir().unwrap();
    let mut elector = elector(state.path());
    elector.voice.abort();
    let happened = timeout(PATIENCE, elector.happened()).await;
    assert!(happened.is_ok_and(|happened| happened.is_err()));
}
