//! By which interfaces replies leave, and whether they are translated there.

use super::{Finding, Seen, list};

/// What was observed of the routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// The interfaces that routes of the main table lead to a gateway by, whatever they are.
    pub exits: Vec<Exit>,
    /// Other interfaces with a subnet, and that subnet.
    pub others: Vec<(String, String)>,
    /// Tables that rules name beside those of every machine.
    pub tables: Vec<u32>,
}

/// An interface that a route leads out of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its name.
    pub name: String,
    /// How replies fare there.
    pub way: Way,
}

/// How replies fare at an interface that a route leads out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// VIPs are announced there, or at its ports.
    Announced,
    /// The agent attaches the egress program there.
    Outlet,
    /// It is no Ethernet, or a dummy: no program is attached.
    NoEthernet,
    /// It is taken for a link to a pod, since the node has no address of a subnet on it.
    ToPod,
}

/// What there is to say about the routes.
pub(super) fn assess(routes: &Seen<Routes>) -> Vec<Finding> {
    match routes {
        Ok(routes) => [Some(exits(routes)), tables(routes)].into_iter().flatten().collect(),
        Err(unseen) => vec![Finding::unseen("routes", unseen)],
    }
}

fn exits(routes: &Routes) -> Finding {
    const CHECK: &str = "routes";
    if routes.exits.is_empty() {
        let found = "no route with a gateway: clients beyond this segment get no reply";
        return Finding::warn(CHECK, found, "add a default route, unless all clients are on the segment");
    }
    let lost: Vec<_> = routes.exits.iter().filter(|exit| matches!(exit.way, Way::NoEthernet | Way::ToPod)).collect();
    if lost.is_empty() {
        let aside = if routes.others.is_empty() {
            String::new()
        } else {
            let subnets = routes.others.iter().map(|(name, subnet)| format!("{subnet} on {name}"));
            format!("; not for clients of {}: for those name the interface by --interface too", list(subnets))
        };
        let names = list(routes.exits.iter().map(|exit| &exit.name));
        return Finding::pass(CHECK, format!("replies leave by {names}, where they are translated{aside}"));
    }
    let why = list(lost.iter().map(|exit| match exit.way {
        Way::ToPod => format!("{} (a pair without a subnet, so taken for a pod's link)", exit.name),
        _ => format!("{} (no Ethernet)", exit.name),
    }));
    Finding::fail(
        CHECK,
        format!("routes lead out by {why}: replies to clients there leave with the pod's address"),
        "route clients by an Ethernet interface; give a pair an address of its subnet, or name it by --interface",
    )
}

fn tables(routes: &Routes) -> Option<Finding> {
    const CHECK: &str = "routing-rules";
    (!routes.tables.is_empty()).then(|| {
        Finding::warn(
            CHECK,
            format!("rules name other tables ({}), whose routes the agent does not look at", list(&routes.tables)),
            "if replies to clients leave by them, name those interfaces by --interface too",
        )
    })
}
