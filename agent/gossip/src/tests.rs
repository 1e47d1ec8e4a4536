//! Tests gossip between agents on loopback.

use std::{fs, os::unix::fs::symlink, path::PathBuf, process};

use tokio::time::{sleep, timeout};

use super::{key_file::follow_each, *};
use vipmux_election::membership::sealing::{LONGEST_DATAGRAM, Unopened};
use vipmux_testing::names::node_name;

const PORT: u16 = DEFAULT_PORT;

/// A loopback address that no other test has, nor another process that runs these.
fn loopback(test: u8, node: u8) -> IpAddr {
    let process = process::id().to_be_bytes();
    IpAddr::from([127, process[2], process[3], test << 3 | node])
}

fn addresses(nodes: &[(&str, &[IpAddr])]) -> Addresses {
    nodes.iter().map(|(node, addresses)| (node_name(node), addresses.to_vec())).collect()
}

struct Agent {
    gossip: Gossip,
    incoming: mpsc::Receiver<Incoming>,
    nodes: watch::Sender<Addresses>,
}

impl Agent {
    fn start(local: &str, nodes: &Addresses, port: u16, key: u8) -> Self {
        let (_, keys) = watch::channel(SealingKeys::generate([key; 32]));
        Self::start_with(local, nodes, port, keys)
    }

    fn start_with(local: &str, nodes: &Addresses, port: u16, keys: watch::Receiver<SealingKeys>) -> Self {
        let (sender, receiver) = watch::channel(nodes.clone());
        let settings = GossipSettings { local: node_name(local), port, keys };
        let (gossip, incoming) = Gossip::start(settings, receiver, &Supervisor::default()).unwrap();
        Self { gossip, incoming, nodes: sender }
    }

    fn count(&self, count: GossipCount) -> u64 {
        self.gossip.counters().get(count)
    }

    /// Sends a payload until it is received: the first ones may be lost before the session is
    /// admitted, or before the other agent listens.
    async fn tell(&self, other: &mut Self, to: &str, what: &[u8]) -> NodeName {
        for _ in 0..1_000 {
            self.gossip.send(vec![(node_name(to), what.to_vec())]);
            if let Ok(Some(received)) = timeout(Duration::from_millis(10), other.incoming.recv()).await
                && received.bytes == what
            {
                return received.node;
            }
        }
        panic!("{what:?} is not received: {:?} and {:?}", self.gossip.counters(), other.gossip.counters());
    }

    async fn until(&self, what: GossipCount, at_least: u64) {
        for _ in 0..1_000 {
            if self.count(what) >= at_least {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{what:?} stays below {at_least}: {:?}", self.gossip.counters());
    }
}

#[tokio::test]
async fn agents_hear_each_other_and_one_that_starts_again() {
    let nodes = addresses(&[("a", &[loopback(0, 1)]), ("b", &[loopback(0, 2)])]);
    let mut a = Agent::start("a", &nodes, PORT, 1);
    let mut b = Agent::start("b", &nodes, PORT, 1);
    assert_eq!(a.tell(&mut b, "b", b"one").await, node_name("a"));
    assert_eq!(b.tell(&mut a, "a", b"two").await, node_name("b"));
    drop(a);
    let mut again = Agent::start("a", &nodes, PORT, 1);
    assert_eq!(again.tell(&mut b, "b", b"three").await, node_name("a"));
    assert_eq!(b.tell(&mut again, "a", b"four").await, node_name("b"));
}

#[tokio::test]
async fn an_address_that_comes_later_is_bound_then_and_another_one_in_its_place() {
    // Not of this machine, by RFC 5737.
    let elsewhere = IpAddr::from([192, 0, 2, 1]);
    let mut b = Agent::start("b", &Addresses::new(), PORT, 1);
    let mut a = Agent::start("a", &addresses(&[("a", &[elsewhere])]), PORT, 1);
    for first in [1, 3] {
        let nodes = addresses(&[("a", &[loopback(1, first)]), ("b", &[loopback(1, first + 1)])]);
        a.nodes.send_replace(nodes.clone());
        b.nodes.send_replace(nodes);
        let payload = first.to_be_bytes();
        assert_eq!(a.tell(&mut b, "b", &payload).await, node_name("a"));
        assert_eq!(b.tell(&mut a, "a", &payload).await, node_name("b"));
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_tried_again() {
    let nodes = addresses(&[("a", &[loopback(2, 1)]), ("b", &[loopback(2, 2)])]);
    let taken = std::net::UdpSocket::bind((loopback(2, 1), PORT)).unwrap();
    let a = Agent::start("a", &nodes, PORT, 1);
    let mut b = Agent::start("b", &nodes, PORT, 1);
    a.gossip.send(vec![(node_name("b"), vec![1])]);
    a.until(GossipCount::Unsent, 1).await;
    drop(taken);
    a.tell(&mut b, "b", b"here").await;
}

#[tokio::test]
async fn if_one_family_fails_the_other_one_is_used() {
    let (v6, port) = (IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), free_port());
    // The kernel refuses a broadcast address; and it is the first one.
    let refused = IpAddr::from([255, 255, 255, 255]);
    let nodes = addresses(&[("a", &[loopback(3, 1), v6]), ("b", &[refused, v6])]);
    // Both on the one IPv6 loopback address: what a says comes back to it, from where b is.
    let a = Agent::start("a", &nodes, port, 1);
    for _ in 0..3 {
        a.gossip.send(vec![(node_name("b"), vec![1])]);
    }
    a.until(GossipCount::Sent, 3).await;
    a.until(GossipCount::Unopened(Unopened::Echoed), 3).await;
}

#[tokio::test]
async fn unexpected_datagrams_are_counted_and_do_not_stop_the_others() {
    let nodes = addresses(&[("a", &[loopback(4, 1)]), ("b", &[loopback(4, 2)])]);
    let mut b = Agent::start("b", &nodes, PORT, 1);
    let strange = addresses(&[("c", &[loopback(4, 3)]), ("b", &[loopback(4, 2)])]);
    let unknown = Agent::start("c", &strange, PORT, 1);
    let elsewhere = addresses(&[("a", &[loopback(4, 4)]), ("b", &[loopback(4, 2)])]);
    let impostor = Agent::start("a", &elsewhere, PORT, 1);
    let foreign = addresses(&[("a", &[loopback(4, 5)]), ("b", &[loopback(4, 2)])]);
    let other_key = Agent::start("a", &foreign, PORT, 2);
    for (agent, reason) in
        [(&unknown, Unopened::Stranger), (&impostor, Unopened::WrongAddress), (&other_key, Unopened::OtherKey)]
    {
        for _ in 0..20 {
            agent.gossip.send(vec![(node_name("b"), vec![1])]);
        }
        b.until(GossipCount::Unopened(reason), 1).await;
    }
    assert!(b.gossip.other_keys().borrow().is_empty(), "it came from no Node's address");
    let noise = std::net::UdpSocket::bind((loopback(4, 6), 0)).unwrap();
    for (length, version) in [(1, 1), (40, 0), (LONGEST_DATAGRAM + 1, 2), (9_000, 7)] {
        noise.send_to(&vec![version; length], (loopback(4, 2), PORT)).unwrap();
    }
    b.until(GossipCount::Unopened(Unopened::Malformed), 1).await;
    b.until(GossipCount::Unopened(Unopened::OtherVersion), 3).await;
    assert_eq!((b.count(GossipCount::Taken), b.incoming.try_recv().is_err()), (0, true));
    let a = Agent::start("a", &nodes, PORT, 1);
    a.tell(&mut b, "b", b"here").await;
}

#[tokio::test]
async fn a_flood_from_addresses_of_no_node_is_not_opened_and_nodes_are_heard() {
    let nodes = addresses(&[("a", &[loopback(9, 1)]), ("b", &[loopback(9, 2)])]);
    let mut b = Agent::start("b", &nodes, PORT, 1);
    let strange = addresses(&[("c", &[loopback(9, 3)]), ("b", &[loopback(9, 2)])]);
    let stranger = Agent::start("c", &strange, PORT, 1);
    while b.count(GossipCount::Stray) < 500 {
        stranger.gossip.send((0..50).map(|_| (node_name("b"), vec![7; 1_000])).collect());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(b.count(GossipCount::Unopened(Unopened::Stranger)) > 0, "a few are opened, to say what they are");
    let a = Agent::start("a", &nodes, PORT, 1);
    a.tell(&mut b, "b", b"here").await;
}

#[tokio::test]
async fn payloads_that_are_not_read_are_lost_and_counted() {
    let nodes = addresses(&[("a", &[loopback(5, 1)]), ("b", &[loopback(5, 2)])]);
    let a = Agent::start("a", &nodes, PORT, 1);
    let mut b = Agent::start("b", &nodes, PORT, 1);
    a.tell(&mut b, "b", b"first").await;
    // More than wait for their turn, and then more than wait to be sent.
    while b.count(GossipCount::Overflowed) == 0 {
        a.gossip.send((0..50).map(|_| (node_name("b"), vec![7; 100])).collect());
        sleep(Duration::from_millis(1)).await;
    }
    let before = a.count(GossipCount::Unsent);
    for _ in 0..OUTGOING + 2 {
        a.gossip.send(vec![(node_name("b"), vec![1])]);
    }
    assert!(a.count(GossipCount::Unsent) >= before + 2, "this runtime has one thread, which was here");
    while b.incoming.try_recv().is_ok() {}
    a.tell(&mut b, "b", b"last").await;
}

/// A directory like a mounted Secret's: the file is a link through another one, `..data`, which is
/// replaced.
struct Secret {
    directory: tempfile::TempDir,
    version: u32,
}

impl Secret {
    fn new(text: &str) -> Self {
        let mut secret = Self { directory: tempfile::tempdir().unwrap(), version: 0 };
        secret.replace(text);
        symlink("..data/gossip.key", secret.path()).unwrap();
        secret
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("gossip.key")
    }

    fn replace(&mut self, text: &str) {
        self.version += 1;
        let (directory, version) = (self.directory.path(), format!("..{}", self.version));
        fs::create_dir(directory.join(&version)).unwrap();
        fs::write(directory.join(&version).join("gossip.key"), text).unwrap();
        symlink(version, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    }

    fn follow(&self) -> watch::Receiver<SealingKeys> {
        follow_each(Duration::from_millis(5), self.path(), load(&self.path()).unwrap(), &Supervisor::default())
    }
}

#[tokio::test]
async fn keys_are_replaced_while_agents_run() {
    let nodes = addresses(&[("a", &[loopback(7, 1)]), ("b", &[loopback(7, 2)])]);
    let [old, new] = [1, 2].map(|byte| SealingKeys::generate([byte; 32]).file());
    let mut secret = Secret::new(&old);
    let mut a = Agent::start_with("a", &nodes, PORT, secret.follow());
    let mut b = Agent::start_with("b", &nodes, PORT, secret.follow());
    a.tell(&mut b, "b", b"the old one").await;
    let mut watched = secret.follow();
    for text in [format!("{old}{new}"), format!("{new}{old}"), new] {
        secret.replace(&text);
        watched.changed().await.unwrap();
        assert_eq!(*watched.borrow_and_update(), SealingKeys::parse(&text).unwrap());
        a.tell(&mut b, "b", text.as_bytes()).await;
        b.tell(&mut a, "a", text.as_bytes()).await;
    }
    let third = addresses(&[("a", &[loopback(7, 3)]), ("b", &[loopback(7, 2)])]);
    drop(a);
    b.nodes.send_replace(third.clone());
    let mut only_new = Agent::start("a", &third, PORT, 2);
    only_new.tell(&mut b, "b", b"the new one").await;
    b.tell(&mut only_new, "a", b"is received").await;
}

#[tokio::test]
async fn the_task_ends_when_its_receiver_is_dropped() {
    let nodes = addresses(&[("a", &[loopback(6, 1)])]);
    let Agent { gossip, incoming, nodes } = Agent::start("a", &nodes, PORT, 1);
    drop((incoming, nodes));
    while !gossip.task.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
}

fn free_port() -> u16 {
    let socket = std::net::UdpSocket::bind("[::1]:0").unwrap();
    socket.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_node_with_another_key_is_noted_until_it_is_no_node_any_more() {
    let nodes = addresses(&[("a", &[loopback(8, 1)]), ("b", &[loopback(8, 2)])]);
    let (a, b) = (Agent::start("a", &nodes, PORT, 1), Agent::start("b", &nodes, PORT, 2));
    let mut heard = b.gossip.other_keys();
    let noted = async {
        while heard.borrow_and_update().is_empty() {
            a.gossip.send(vec![(node_name("b"), vec![1])]);
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), noted).await.unwrap();
    b.nodes.send_replace(addresses(&[("b", &[loopback(8, 2)])]));
    timeout(Duration::from_secs(10), heard.wait_for(OtherKeys::is_empty)).await.unwrap().unwrap();
}
