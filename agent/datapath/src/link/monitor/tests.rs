use std::time::Duration;

use nix::net::if_::if_nametoindex;
use tokio::time::timeout;

use super::{
    super::{Ethtool, tests::until},
    *,
};
use vipmux_supervisor::Supervisor;
use vipmux_testing::netns::Namespace;

#[test]
fn a_driver_that_comes_to_take_vlan_tags_out_of_frames_is_seen_and_others_are_not_asked() {
    let Some([node, peer]) = Namespace::new() else { return };
    node.veth("eth0", &peer, "lan0");
    let (ethtool, eth0) = node.enter(|| (Ethtool::open().unwrap(), if_nametoindex("eth0").unwrap()));
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let await_strips = async |expected| {
            until(monitor.links(), |links| links.strips_tags(eth0) == expected).await;
        };
        await_strips(false).await;
        monitor.follow_tags([eth0].into());
        await_strips(true).await;
        for strip in [false, true, false] {
            ethtool.strip_tags("eth0", strip).unwrap();
            await_strips(strip).await;
        }
        monitor.stop().await;
    });
}

#[test]
fn readers_wake_up_if_vlan_tags_are_taken_out_again_right_after_a_repair() {
    let Some([node, peer]) = Namespace::new() else { return };
    node.veth("eth0", &peer, "lan0");
    let (ethtool, eth0) = node.enter(|| (Ethtool::open().unwrap(), if_nametoindex("eth0").unwrap()));
    node.run(async |_| {
        let monitor = Monitor::start(&Supervisor::default()).await.unwrap();
        let mut links = monitor.links();
        monitor.follow_tags([eth0].into());
        until(monitor.links(), |links| links.strips_tags(eth0)).await;
        for _ in 0..3 {
            links.mark_unchanged();
            // The monitor's task cannot run in between.
            ethtool.strip_tags("eth0", false).unwrap();
            ethtool.strip_tags("eth0", true).unwrap();
            timeout(Duration::from_secs(20), links.changed()).await.expect("no reader wakes up").unwrap();
        }
        monitor.stop().await;
    });
}
