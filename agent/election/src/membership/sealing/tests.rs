//! Agents that seal for each other, on a LAN where anybody may record and repeat.

mod bounds;
mod properties;
mod sessions;

use super::{challenge::REPLIES, *};
use vipmux_testing::names::node_name;

const NOW: Duration = Duration::from_secs(1_000);
const A: &str = "a";
const B: &str = "b";

/// Node `a` is at 192.0.2.97, and so on; those with longer names are at 2001:db8::1.
fn address(node: &str) -> IpAddr {
    match node.as_bytes() {
        [letter] => IpAddr::from([192, 0, 2, *letter]),
        _ => "2001:db8::1".parse().unwrap(),
    }
}

fn origin(node: &NodeName, from: IpAddr) -> Result<(), Unopened> {
    match node.as_str() {
        "mallory" => Err(Unopened::Stranger),
        known if address(known) == from => Ok(()),
        _ => Err(Unopened::WrongAddress),
    }
}

fn keys(text: &[u8]) -> SealingKeys {
    let lines: String = text.iter().map(|byte| format!("{byte:02x}").repeat(32) + "\n").collect();
    SealingKeys::parse(&lines).unwrap()
}

/// The agent on `node`, in its `run`th run.
fn agent(node: &str, run: u8) -> Sealer {
    agent_with(&keys(&[1]), node, run)
}

fn agent_with(keys: &SealingKeys, node: &str, run: u8) -> Sealer {
    let mut session = [run; 16];
    session[0] = node.as_bytes()[0];
    Sealer::new(keys, node_name(node), session, [run ^ session[0]; 32])
}

fn open(to: &mut Sealer, from: &str, datagram: &[u8], now: Duration) -> Opened {
    to.open(datagram, address(from), origin, now)
}

fn reply(opened: Opened) -> Vec<u8> {
    let Opened::Reply(datagram) = opened else { panic!("{opened:?}") };
    datagram
}

fn reason(opened: &Opened) -> Unopened {
    let Opened::Nothing { reason, .. } = opened else { panic!("{opened:?}") };
    *reason
}

/// Sealed for the other one of the two that most tests have.
fn say(from: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let to = if from.local.as_str() == B { A } else { B };
    from.seal(&node_name(to), bytes).unwrap()
}

fn payload(node: &str, bytes: &[u8]) -> Opened {
    Opened::Payload { node: node_name(node), bytes: bytes.to_vec(), reply: None }
}

/// Has `b` admit the session of `a` by an exchange at `now`; gives all that `a` sealed for it.
fn admit(a: &mut Sealer, b: &mut Sealer, now: Duration) -> [Vec<u8>; 2] {
    let (from, to) = (a.local.as_str().to_owned(), b.local.as_str().to_owned());
    let first = say(a, b"lost");
    let challenge = reply(open(b, &from, &first, now));
    let response = reply(open(a, &to, &challenge, now));
    match open(b, &from, &response, now) {
        Opened::Reply(last) => assert_eq!(open(a, &to, &last, now), Opened::Admitted),
        opened => assert_eq!(opened, Opened::Admitted),
    }
    [first, response]
}

/// Two agents that have admitted each other's first run.
fn pair() -> (Sealer, Sealer) {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    admit(&mut a, &mut b, NOW);
    (a, b)
}
