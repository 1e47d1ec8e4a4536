//! Tests how the program shows the agent that it runs on a port.

use anyhow::Result;
use vipmux_common::abi::{INTERFACE_BACKUP, Interface};
use vipmux_tests::{
    frames::Arp,
    program::{Hook, IFINDEX},
};

use crate::{
    arp::{backup, broadcast},
    demux::syn,
    fixture::{CLIENT_MAC, FLOWS, HTTP, NEIGHBOR, VIP, from_client, state},
    pool::load,
};

#[test]
fn any_frame_shows_that_the_program_runs_on_its_port() -> Result<()> {
    let state = state();
    let bit = state.interfaces[IFINDEX].bit;
    let mut program = load(&state, FLOWS)?;
    let other = broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, NEIGHBOR));
    for frame in [from_client().ipv4(&syn(HTTP)), other, vec![0; 60]] {
        assert_eq!(program.take_activity()?, 0);
        program.run(Hook::Ingress, &frame)?;
        program.run(Hook::Ingress, &frame)?;
        assert_eq!(program.take_activity()?, bit);
    }
    Ok(())
}

#[test]
fn a_card_that_its_bond_does_not_use_shows_nothing_about_the_others() -> Result<()> {
    let mut state = state();
    backup(&mut state);
    let mut program = load(&state, FLOWS)?;
    let request = broadcast(CLIENT_MAC).arp(&Arp::request(CLIENT_MAC, NEIGHBOR, VIP));
    program.run(Hook::Ingress, &request)?;
    assert_eq!(program.take_activity()?, 0);
    state.interfaces[IFINDEX].flags &= !INTERFACE_BACKUP;
    program.install(&state)?;
    program.run(Hook::Ingress, &request)?;
    assert_eq!(program.take_activity()?, state.interfaces[IFINDEX].bit);
    state.interfaces.fill(Interface::default());
    program.install(&state)?;
    program.run(Hook::Ingress, &request)?;
    assert_eq!(program.take_activity()?, 0, "not attached");
    Ok(())
}
