//! Checks by which interfaces replies leave, and whether they are translated there.

use super::{Finding, Seen, list};

/// The observations of the routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// The interfaces of routes with a gateway in the main table.
    pub exits: Vec<RouteInterface>,
    /// Other interfaces with a subnet, and the subnet.
    pub others: Vec<(String, String)>,
    /// Routing tables that rules name, except those of every machine.
    pub tables: Vec<u32>,
}

/// The interface of a route with a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInterface {
    /// Its name.
    pub name: String,
    /// The path of replies there.
    pub path: ReplyPath,
}

/// The path of replies at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPath {
    /// VIPs are announced there or on its ports, so replies are translated.
    Announced,
    /// The agent attaches the egress program there.
    Outlet,
    /// It is not Ethernet, or a dummy: no program is attached.
    NoEthernet,
    /// It counts as a link to a pod, because the node has no address with a subnet on it.
    ToPod,
}

/// Returns the findings about the routes.
pub(super) fn assess(routes: &Seen<Routes>) -> Vec<Finding> {
    match routes {
        Ok(routes) => [Some(exits(routes)), tables(routes)].into_iter().flatten().collect(),
        Err(unseen) => vec![Finding::unseen("routes", unseen)],
    }
}

fn exits(routes: &Routes) -> Finding {
    const CHECK: &str = "routes";
    if routes.exits.is_empty() {
        let found = "no route with a gateway: clients outside this segment get no reply";
        return Finding::warn(CHECK, found, "add a default route, unless all clients are on the segment");
    }
    let lost: Vec<_> =
        routes.exits.iter().filter(|exit| matches!(exit.path, ReplyPath::NoEthernet | ReplyPath::ToPod)).collect();
    if lost.is_empty() {
        let aside = if routes.others.is_empty() {
            String::new()
        } else {
            let subnets = routes.others.iter().map(|(name, subnet)| format!("{subnet} on {name}"));
            format!("; not for clients of {}: for them name the interface by --interface too", list(subnets))
        };
        let names = list(routes.exits.iter().map(|exit| &exit.name));
        return Finding::pass(CHECK, format!("replies leave by {names}, where they are translated{aside}"));
    }
    let why = list(lost.iter().map(|exit| match exit.path {
        ReplyPath::ToPod => format!("{} (a veth without a subnet, so it counts as a pod's link)", exit.name),
        _ => format!("{} (not Ethernet)", exit.name),
    }));
    Finding::fail(
        CHECK,
        format!("routes use {why}: replies to clients there leave with the pod's address"),
        "route clients by an Ethernet interface; give a veth an address with a subnet, or name it by --interface",
    )
}

fn tables(routes: &Routes) -> Option<Finding> {
    const CHECK: &str = "routing-rules";
    (!routes.tables.is_empty()).then(|| {
        Finding::warn(
            CHECK,
            format!("routing rules use other tables ({}); the agent ignores their routes", list(&routes.tables)),
            "if replies to clients leave by these routes, name their interfaces by --interface too",
        )
    })
}
