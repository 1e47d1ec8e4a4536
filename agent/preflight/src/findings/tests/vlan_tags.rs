//! Tests what is found about VLAN tags.

use super::*;

fn set_tags(observed: &mut Observations, tagged: bool, tags: TagHandling) {
    let port = port(observed);
    (port.tagged, port.tags) = (tagged, Ok(tags));
}

#[test]
fn each_handling_of_vlan_tags_has_its_finding() {
    expect(&[
        ("vlan-tags", Pass, "rx-vlan-offload is off", "", |o| set_tags(o, true, TagHandling::Kept)),
        ("vlan-tags", Pass, "the agent turns", "", |o| set_tags(o, true, TagHandling::Stripped)),
        ("vlan-tags", Fail, "cannot be turned off", "untagged", |o| set_tags(o, true, TagHandling::AlwaysStripped)),
        ("vlan-tags", Warn, "cannot be turned off", "the switch", |o| {
            set_tags(o, false, TagHandling::AlwaysStripped);
        }),
        ("vlan-tags", Fail, "turned on again", "NetworkManager", |o| {
            set_tags(o, true, TagHandling::Stripped);
            port(o).attached = vec![AttachedProgram { ours: true, ..foreign(None) }];
        }),
        ("vlan-tags", Warn, "turned on again", "NetworkManager", |o| {
            set_tags(o, false, TagHandling::Stripped);
            port(o).attached = vec![AttachedProgram { ours: true, ..foreign(None) }];
        }),
    ]);
}
