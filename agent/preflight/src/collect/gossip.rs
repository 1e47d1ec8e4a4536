//! Observes the gossip port and key.

use std::fs;

use super::{CheckOptions, kernel::error_chain, others};
use crate::findings::gossip::{GossipKeyObservation, GossipObservation, Holder};
use vipmux_gossip::{KeyFileError, is_exposed};

/// Observes port and key. `agent`: an agent runs on this node.
pub(super) fn observe(options: &CheckOptions, agent: bool) -> GossipObservation {
    GossipObservation { port: options.gossip_port, holder: holder(options.gossip_port, agent), key: key(options) }
}

fn key(options: &CheckOptions) -> GossipKeyObservation {
    let made = options.state_dir.join("gossip.key");
    let path = options.gossip_key.as_ref().unwrap_or(&made);
    let shown = path.display().to_string();
    match is_exposed(path) {
        Ok(false) => GossipKeyObservation::Good { path: shown },
        Ok(true) => GossipKeyObservation::Exposed { path: shown },
        Err(KeyFileError::Missing { .. }) if options.gossip_key.is_none() && options.manifests.is_some() => {
            GossipKeyObservation::Made { path: shown }
        }
        Err(KeyFileError::Missing { .. }) if options.gossip_key.is_none() => GossipKeyObservation::Unnamed,
        Err(KeyFileError::Missing { .. }) if options.manifests.is_none() => {
            GossipKeyObservation::Awaited { path: shown }
        }
        Err(error) => GossipKeyObservation::Bad(error_chain(&error)),
    }
}

fn holder(port: u16, agent: bool) -> Holder {
    let mut inodes = Vec::new();
    for table in ["udp", "udp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
            Ok(text) => inodes.extend(sockets(&text, port)),
            // Without IPv6 this table does not exist.
            Err(_) if table == "udp6" => {}
            Err(error) => return Holder::Unknown(error.to_string()),
        }
    }
    if inodes.is_empty() {
        return Holder::Nobody;
    }
    match others::owner(&inodes) {
        Some(process) if process.name == "vipmux" => Holder::Agent,
        Some(process) => Holder::Other(format!("{} (pid {})", process.name, process.pid)),
        None if agent => Holder::Agent,
        None => Holder::Hidden,
    }
}

/// Returns the inodes of sockets that are bound to the port (`/proc/net/udp`, proc(5)).
fn sockets(table: &str, port: u16) -> Vec<u64> {
    let ending = format!(":{port:04X}");
    let socket = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        fields.get(1).filter(|local| local.ends_with(&ending))?;
        fields.get(9)?.parse().ok()
    };
    table.lines().skip(1).filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use vipmux_testing::netns::Namespace;

    #[test]
    fn the_process_that_uses_the_port_is_found() {
        let Some([node]) = Namespace::new() else { return };
        node.enter(|| {
            assert_eq!(holder(7944, false), Holder::Nobody);
            let _socket = UdpSocket::bind("127.0.0.1:7944").unwrap();
            let Holder::Other(who) = holder(7944, false) else { panic!("it is this process's") };
            assert!(who.contains(&std::process::id().to_string()), "{who}");
            assert_eq!(holder(7945, false), Holder::Nobody);
        });
    }

    #[test]
    fn sockets_are_found_by_their_own_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n \
            1: 0B0200C0:1F08 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n \
            2: 0B0200C0:1F07 0B0200C0:1F08 01 00000000:00000000 00:00000000 00000000     0        0 4712 2 0 0\n";
        assert_eq!(sockets(table, 7944), [4711]);
        assert!(sockets("", 7944).is_empty());
    }
}
