//! What a test needs that not every kernel has.

use std::{
    io::{self, Write as _},
    thread,
};

use anyhow::{Context as _, Result};

use crate::{cleanup, lan::Uplink, netns::Namespace};

/// Whether the kernel has this kind of interface. Where not, the running test is reported as skipped, by its name; that
/// is no failure with `CI=true` either, since nothing that the machine's owner could install would change it.
pub fn has(uplink: Uplink) -> Result<bool> {
    let option = match uplink {
        Uplink::Card | Uplink::Bridge => return Ok(true),
        Uplink::Vlan(_) => "CONFIG_VLAN_8021Q",
        Uplink::Bond => "CONFIG_BONDING",
    };
    let namespace = Namespace::new(&format!("{}-probe", cleanup::number()))?;
    let made = namespace.links(|links| {
        if uplink == Uplink::Bond {
            return links.add_bond("bond1");
        }
        links.add_bridge("br0")?;
        links.add_vlan("vlan1", "br0", 1)
    });
    match made {
        Ok(()) => Ok(true),
        Err(error) if is_unknown(&error) => {
            // The test harness names its threads after the tests.
            let thread = thread::current();
            let test = thread.name().unwrap_or("a network test");
            // Not by `eprintln`, whose text the test harness keeps to itself where a test passes.
            writeln!(
                io::stderr(),
                "skipped: {test}: this kernel is built without {option}, run it on one that has it"
            )?;
            Ok(false)
        }
        Err(error) => Err(error).context("cannot tell what the kernel has"),
    }
}

fn is_unknown(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(rtnetlink::Error::NetlinkError(error)) => Some(error.raw_code()),
        _ => None,
    });
    code == Some(-libc::EOPNOTSUPP)
}
