//! Asks the LAN who answers for addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use vipmux_common::abi::Mac;
use vipmux_datapath::{
    announce::query::{self, Question},
    link::{Interface, LinkError, Links},
};
use vipmux_model::Vip;

/// What is known about an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanAnswer {
    /// These MACs answered; none: nobody.
    Macs(BTreeSet<Mac>),
    /// This machine has the address on this interface.
    Here(String),
    /// It was not asked, since this machine is not on its segment.
    Elsewhere,
    /// It could not be asked.
    Failed(String),
}

/// Asks for each address who answers, on `interface` or on the interfaces whose subnets contain the
/// addresses. It takes a second, and 30 ms more for each address.
pub async fn ask(addresses: &BTreeSet<Vip>, interface: Option<&str>) -> Result<BTreeMap<Vip, LanAnswer>, LinkError> {
    let links = Links::read().await?;
    let owners = links.owners();
    let mut found = BTreeMap::new();
    let mut questions = Vec::new();
    for vip in addresses {
        let place = match owners.get(&vip.address()) {
            Some(owner) => Err(LanAnswer::Here(owner.name.clone())),
            None => question(*vip, &links, interface),
        };
        match place {
            Ok(question) => questions.push(question),
            Err(answer) => drop(found.insert(*vip, answer)),
        }
    }
    if questions.is_empty() {
        return Ok(found);
    }
    match query::ask(&questions) {
        Ok(answers) => found.extend(answers.into_iter().map(|(vip, macs)| (vip, LanAnswer::Macs(macs)))),
        Err(error) => {
            let failed = || LanAnswer::Failed(error.to_string());
            found.extend(questions.iter().map(|question| (question.vip, failed())));
        }
    }
    Ok(found)
}

fn question(vip: Vip, links: &Links, interface: Option<&str>) -> Result<Question, LanAnswer> {
    let place = match interface {
        Some(name) => links.named(name).map_err(|error| LanAnswer::Failed(error.to_string()))?,
        None => nearest(vip.address(), links).ok_or(LanAnswer::Elsewhere)?,
    };
    let source = source(place, vip.address()).ok_or(LanAnswer::Elsewhere)?;
    let mac = place.mac.ok_or(LanAnswer::Elsewhere)?;
    Ok(Question { vip, ifindex: place.ifindex, mac, source })
}

/// Returns the interface whose subnet contains the address; the longest prefix wins.
fn nearest(address: IpAddr, links: &Links) -> Option<&Interface> {
    let real = links.iter().filter(|interface| !interface.is_dummy() && interface.mac.is_some());
    let containing = real.filter_map(|interface| Some((interface.subnet(address)?, interface)));
    containing.max_by_key(|(prefix, interface)| (*prefix, std::cmp::Reverse(interface.ifindex))).map(|(_, it)| it)
}

/// Returns an address of the interface to ask from: of the same family, one of the same subnet first.
fn source(interface: &Interface, address: IpAddr) -> Option<IpAddr> {
    let own = interface.addresses.iter().filter(|(own, _)| own.is_ipv4() == address.is_ipv4());
    let alone = |own: IpAddr, prefix| Interface { addresses: [(own, prefix)].into(), ..interface.clone() };
    own.max_by_key(|(own, prefix)| alone(*own, *prefix).subnet(address)).map(|(own, _)| *own)
}
