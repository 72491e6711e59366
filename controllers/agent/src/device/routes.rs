//! Decides the node's routes to pods: those of other nodes by `cilium_host`, and none to addresses
//! of its own range that no pod has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Error, Netlink, Route};

/// The metric by which Cilia knows its own "unreachable" routes; every pod's route comes before.
const UNREACHABLE_METRIC: u32 = 0x00c1_11a0;

/// What the node has to know about pods' addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The number of `cilium_host`.
    pub device: u32,
    /// The router's addresses.
    pub routers: Vec<IpAddr>,
    /// The MTU of routes to other nodes.
    pub mtu: u32,
    /// The pod ranges of other nodes.
    pub remote: BTreeSet<IpNet>,
    /// The pod ranges of this node.
    pub local: BTreeSet<IpNet>,
}

impl Plan {
    /// The routes that ought to be.
    pub fn routes(&self) -> BTreeSet<Route> {
        let router = |net: &IpNet| {
            self.routers.iter().find(|router| router.is_ipv4() == net.addr().is_ipv4())
        };
        let remote = self.remote.iter().filter(|net| !self.local.contains(net)).filter_map(|net| {
            let source = *router(net)?;
            Some(Route::direct(net.trunc(), self.device).from(Some(source)).mtu(self.mtu))
        });
        let local =
            self.local.iter().map(|net| Route::unreachable(net.trunc(), UNREACHABLE_METRIC));
        remote.chain(local).collect()
    }

    /// Whether a route is one of those that this plan decides about.
    fn decides(&self, route: &Route) -> bool {
        match route.device {
            // What the kernel itself makes of the router's address, and of multicast, is not ours.
            Some(device) => {
                device == self.device
                    && route.source.is_some()
                    && !self.routers.contains(&route.destination.addr())
            }
            None => route.metric == Some(UNREACHABLE_METRIC),
        }
    }

    /// What to add and what to remove, given what is there.
    pub fn changes(&self, present: &[Route]) -> (Vec<Route>, Vec<Route>) {
        let wanted = self.routes();
        let present: BTreeSet<Route> =
            present.iter().copied().filter(|route| self.decides(route)).collect();
        let missing: Vec<Route> = wanted.difference(&present).copied().collect();
        // Adding a route replaces one to the same place, which must then not be removed after it.
        let replaced: BTreeSet<(IpNet, Option<u32>)> =
            missing.iter().map(|route| (route.destination, route.metric)).collect();
        let surplus = present.difference(&wanted).copied();
        let surplus = surplus
            .filter(|route| !replaced.contains(&(route.destination, route.metric)))
            .collect();
        (missing, surplus)
    }
}

/// Makes the node's routes those of the plan; additions first.
pub async fn ensure(netlink: &Netlink, plan: &Plan) -> Result<(), Error> {
    let (missing, surplus) = plan.changes(&netlink.routes().await?);
    for route in &missing {
        netlink.set_route(route).await?;
    }
    for route in &surplus {
        netlink.remove_route(route).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use ipnet::IpNet;

    use super::{Plan, Route};

    fn plan(remote: &[&str]) -> Plan {
        let nets = |texts: &[&str]| {
            texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<IpNet>>()
        };
        Plan {
            device: 7,
            routers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            mtu: 1450,
            remote: nets(remote),
            local: nets(&["10.0.0.0/24", "fd00::/120"]),
        }
    }

    #[test]
    fn changes_are_the_smallest() {
        let before: Vec<Route> =
            plan(&["10.0.1.0/24", "fd00::100/120"]).routes().into_iter().collect();
        assert_eq!(before.len(), 4);
        let after = plan(&["10.0.1.0/24", "10.0.2.0/24"]);
        let (missing, surplus) = after.changes(&before);
        let nets = |routes: &[Route]| {
            routes.iter().map(|route| route.destination.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            (nets(&missing), nets(&surplus)),
            (vec!["10.0.2.0/24".into()], vec!["fd00::100/120".into()])
        );
        assert_eq!(
            after.changes(&after.routes().into_iter().collect::<Vec<_>>()),
            (vec![], vec![])
        );
    }

    #[test]
    fn a_changed_route_is_replaced_and_others_are_left_alone() {
        let now = plan(&["10.0.1.0/24"]);
        let mut old = plan(&["10.0.1.0/24"]);
        old.mtu = 1400;
        let foreign = Route::direct("10.9.0.0/16".parse().unwrap(), 3)
            .from(Some("10.9.0.1".parse::<IpAddr>().unwrap()));
        let own = Route::direct("fd00::1/128".parse().unwrap(), 7);
        let present: Vec<Route> = old.routes().into_iter().chain([foreign, own]).collect();
        let (missing, surplus) = now.changes(&present);
        assert_eq!((missing.len(), surplus), (1, vec![]));
        assert_eq!(missing[0].mtu, Some(1450));
    }

    #[test]
    fn a_node_that_claims_our_range_gets_no_route() {
        let routes = plan(&["10.0.0.0/24"]).routes();
        assert!(routes.iter().all(|route| route.device.is_none()));
    }
}
