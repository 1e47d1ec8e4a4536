//! Counters of a driver (`ethtool -S`): those of frames that it lost after a program's verdict.

use std::collections::BTreeMap;

use super::{Ethtool, EthtoolError};

/// `ETHTOOL_GSSET_INFO`.
const GET_COUNTS: u32 = 0x37;
/// `ETHTOOL_GSTATS`.
const GET_COUNTERS: u32 = 0x1d;
/// `ETH_SS_STATS`: the set of the counters' names.
const COUNTERS: u32 = 1;
/// The most counters that are read. A driver has tens for each queue.
const MOST: u32 = 16_384;
/// Counters that there is room for: twice as many, since queues may come in between two requests.
const ROOM: usize = 2 * MOST as usize;

/// `struct ethtool_sset_info`, for one set.
#[repr(C)]
struct Counts {
    command: u32,
    reserved: u32,
    sets: u64,
    count: u32,
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Names {
    command: u32,
    set: u32,
    count: u32,
    texts: [[u8; 32]; ROOM],
}

/// `struct ethtool_stats`.
#[repr(C)]
struct Counters {
    command: u32,
    count: u32,
    values: [u64; ROOM],
}

impl Ethtool {
    /// Returns how many frames the driver of `interface` lost after an XDP program's verdict to send them, by
    /// the counter's name without the numbers of queues: `tx_queue_xdp_xmit_errors`. Counters of zero are left
    /// out. They count since the driver was loaded, for the programs of all owners. Empty: the driver counts no
    /// such frames, or has more than 16,384 counters.
    pub fn lost_by_xdp(&self, interface: &str) -> Result<BTreeMap<String, u64>, EthtoolError> {
        let count = self.count(interface)?;
        if count == 0 || count > MOST {
            return Ok(BTreeMap::new());
        }
        let mut names = boxed::<Names>();
        (names.command, names.set, names.count) = (super::GET_STRINGS, COUNTERS, count);
        // SAFETY: ETHTOOL_GSTRINGS writes as many names as the driver has. There is room for twice as many as it had.
        unsafe { self.ask("ask for the counters' names", interface, &mut *names) }?;
        let mut values = boxed::<Counters>();
        (values.command, values.count) = (GET_COUNTERS, count);
        // SAFETY: ETHTOOL_GSTATS writes as many counters as the driver has, see above.
        unsafe { self.ask("ask for the counters", interface, &mut *values) }?;
        let mut lost = BTreeMap::new();
        // Queues may have come in between: then names do not fit to values.
        if [names.count, values.count] == [count; 2] {
            for (text, value) in names.texts.iter().zip(&values.values).take(count as usize).filter(|it| *it.1 != 0) {
                let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                if let Some(name) = loss(&String::from_utf8_lossy(text)) {
                    *lost.entry(name).or_default() += value;
                }
            }
        }
        Ok(lost)
    }

    /// Returns the number of a driver's counters; zero: it has none.
    fn count(&self, interface: &str) -> Result<u32, EthtoolError> {
        let mut counts = Counts { command: GET_COUNTS, reserved: 0, sets: 1 << COUNTERS, count: 0 };
        // SAFETY: ETHTOOL_GSSET_INFO writes one word for each set that is asked for.
        unsafe { self.ask("ask for the number of counters", interface, &mut counts) }?;
        Ok(if counts.sets == 0 { 0 } else { counts.count })
    }
}

/// Returns zeroed memory for a structure of numbers that is too large for a stack.
fn boxed<T>() -> Box<T> {
    // SAFETY: `T` is `Names` or `Counters`: all their fields are numbers.
    unsafe { Box::new_zeroed().assume_init() }
}

/// Returns a counter's name without numbers of queues, if it counts frames that a program sent and the driver
/// lost. `rx_xdp_drops` are frames that the program itself dropped. Examples are in drivers/net: veth.c,
/// virtio_net.c, ethernet/mellanox/mlx5/core/en_stats.c, ethernet/freescale/enetc/enetc_ethtool.c.
fn loss(name: &str) -> Option<String> {
    const SENDING: [&str; 3] = ["tx", "xmit", "redirect"];
    const LOST: [&str; 4] = ["err", "full", "fail", "drop"];
    let lower = name.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if !lower.contains("xdp") || !has(&SENDING) || !has(&LOST) {
        return None;
    }
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit())).filter(|word| !word.is_empty());
    Some(words.collect::<Vec<_>>().join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_losses_lose_the_numbers_of_queues() {
        for (name, expected) in [
            ("rx_queue_0_xdp_tx_errors", Some("rx_queue_xdp_tx_errors")),
            ("tx_queue_11_xdp_xmit_errors", Some("tx_queue_xdp_xmit_errors")),
            ("tx3_xdp_tx_drops", Some("tx_xdp_tx_drops")),
            ("tx7_xdp_full", Some("tx_xdp_full")),
            ("rx_xdp_tx_err", Some("rx_xdp_tx_err")),
            ("Rx ring  2 XDP redirect failures", Some("rx_ring_xdp_redirect_failures")),
            ("rx_queue_0_xdp_drops", None),
            ("rx0_xdp_redirects", None),
            ("tx_errors", None),
        ] {
            assert_eq!(loss(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn interfaces_without_such_counters_have_no_losses() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.lost_by_xdp("lo").unwrap(), BTreeMap::new());
        assert!(ethtool.lost_by_xdp("no-such-card").is_err());
    }
}
