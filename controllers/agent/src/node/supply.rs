//! Decides what the node's object says, and is told, about pools and single addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cilia_crds::CiliumNode;
use cilia_crds::ciliumnode::ipam::{
    AllocationIp, IpamPoolAllocation, IpamPoolDemand, IpamPoolRequest, IpamPools, IpamSpec,
};
use cilia_ipam::{Allocation, Request, Wish, answers};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// The ranges that the object lists of a pool.
pub(super) fn of_pools(own: Option<&CiliumNode>, pool: &str) -> Vec<String> {
    let pools = allocated(own);
    pools.into_iter().filter(|one| one.pool == pool).flat_map(|one| one.cidrs).collect()
}

/// What the object lists of pools.
pub(super) fn allocated(own: Option<&CiliumNode>) -> Vec<Allocation> {
    let pools = ipam(own).and_then(|ipam| ipam.pools.as_ref());
    let all = pools.into_iter().flat_map(|pools| &pools.allocated);
    all.map(|one| Allocation { pool: one.pool.clone(), cidrs: one.cidrs.clone() }).collect()
}

/// The object's version.
pub(super) fn version(own: &CiliumNode) -> &str {
    own.metadata.resource_version.as_deref().unwrap_or_default()
}

/// What the object asks for.
pub(super) fn requested(own: Option<&CiliumNode>) -> Vec<Request> {
    let pools = ipam(own).and_then(|ipam| ipam.pools.as_ref());
    let all = pools.into_iter().flat_map(|pools| &pools.requested);
    let request = |one: &IpamPoolRequest| {
        let needed = one.needed.unwrap_or_default();
        Request {
            pool: one.pool.clone(),
            v4: needed.ipv4_addrs.unwrap_or_default(),
            v6: needed.ipv6_addrs.unwrap_or_default(),
        }
    };
    all.map(request).collect()
}

/// What a new object says.
pub(super) fn pools(wish: &Wish) -> IpamPools {
    IpamPools {
        requested: wish.requested.iter().map(request).collect(),
        allocated: wish.allocated.iter().flatten().map(allocation).collect(),
    }
}

/// What to change about `spec.ipam.pools`; nothing if it is as wished.
pub(super) fn changed(present: &CiliumNode, wish: &Wish) -> Option<Value> {
    let mut pools = Map::new();
    if requested(Some(present)) != wish.requested {
        let wanted: Vec<_> = wish.requested.iter().map(request).collect();
        pools.insert("requested".to_owned(), json!(wanted));
    }
    if let Some(wanted) = wish.allocated.as_ref().filter(|one| **one != allocated(Some(present))) {
        let wanted: Vec<_> = wanted.iter().map(allocation).collect();
        pools.insert("allocated".to_owned(), json!(wanted));
    }
    (!pools.is_empty()).then_some(Value::Object(pools))
}

/// The addresses that the object lists and that pods may get (mode crd).
pub(super) fn offered(own: Option<&CiliumNode>) -> Vec<IpNet> {
    let Some(spec) = ipam(own) else { return Vec::new() };
    let status = own.and_then(|own| own.status.as_ref()).and_then(|status| status.ipam.as_ref());
    let none = BTreeMap::new();
    let (v4, v6) = status.map_or((&none, &none), |ipam| (&ipam.release_ips, &ipam.release_ipv6s));
    let mut offered = cilia_ipam::offered(spec.pool.keys(), v4);
    offered.extend(cilia_ipam::offered(spec.ipv6_pool.keys(), v6));
    offered
}

/// What to change about the object's status so that it says which addresses are in use, and answers to
/// what is wanted back; and whether somebody waits for that. Nothing if it is right.
pub(super) fn status(own: &CiliumNode, used: &[(IpAddr, String)]) -> Option<(Value, bool)> {
    let present = own.status.as_ref().and_then(|status| status.ipam.clone()).unwrap_or_default();
    let in_use = |address: IpAddr| used.iter().any(|(one, _)| *one == address);
    let mut ipam = Map::new();
    let mut urgent = false;
    for (ipv4, used_field, release_field, used_now, releases) in [
        (true, "used", "release-ips", &present.used, &present.release_ips),
        (false, "ipv6-used", "release-ipv6s", &present.ipv6_used, &present.release_ipv6s),
    ] {
        let of_family = used.iter().filter(|(address, _)| address.is_ipv4() == ipv4);
        let wanted: BTreeMap<String, AllocationIp> = of_family
            .map(|(address, owner)| {
                let owner = Some(pod_of(owner).to_owned());
                (address.to_string(), AllocationIp { owner, resource: None })
            })
            .collect();
        if wanted != *used_now {
            let gone = used_now.keys().filter(|address| !wanted.contains_key(*address));
            let mut field: Map<String, Value> =
                gone.map(|address| (address.clone(), Value::Null)).collect();
            let news = wanted.iter().filter(|(address, who)| used_now.get(*address) != Some(*who));
            field.extend(news.map(|(address, who)| (address.clone(), json!(who))));
            ipam.insert(used_field.to_owned(), Value::Object(field));
        }
        let answers = answers(releases, in_use);
        if !answers.is_empty() {
            urgent = true;
            ipam.insert(release_field.to_owned(), json!(answers));
        }
    }
    (!ipam.is_empty()).then(|| (json!({ "ipam": ipam }), urgent))
}

/// The pod of an owner (`namespace/name (container:interface)`).
fn pod_of(owner: &str) -> &str {
    owner.split_once(' ').map_or(owner, |(pod, _)| pod)
}

/// The router's address of each family that has ranges: the one it has, else the one it had, else the
/// first that nobody has.
pub(super) fn routers(
    ranges: &[IpNet],
    present: &[IpAddr],
    published: &[IpAddr],
    owner: impl Fn(IpAddr) -> Option<String>,
) -> Vec<IpAddr> {
    let of = |ipv4: bool| {
        let ranges = || ranges.iter().filter(move |range| range.addr().is_ipv4() == ipv4);
        ranges().next()?;
        let free = |address: &IpAddr| owner(*address).is_none_or(|who| who == crate::ipam::ROUTER);
        let has = present.iter().find(|address| address.is_ipv4() == ipv4).copied();
        let had = || {
            let listed = |address: &IpAddr| ranges().any(|range| range.contains(address));
            published.iter().copied().find(|address| listed(address) && free(address))
        };
        let first = || ranges().flat_map(usable).find(free);
        has.or_else(had).or_else(first)
    };
    [true, false].into_iter().filter_map(of).collect()
}

/// The addresses of a range that are not its own or its broadcast address.
fn usable(range: &IpNet) -> impl Iterator<Item = IpAddr> + use<> {
    let range = *range;
    let whole = range.prefix_len() >= range.max_prefix_len() - 1;
    range.hosts().filter(move |host| whole || *host != range.network())
}

/// Every range of a node's object, whatever the mode; single addresses are joined where that is possible.
pub(super) fn all(ipam: &IpamSpec) -> Vec<IpNet> {
    let pools = ipam.pools.iter().flat_map(|pools| &pools.allocated).flat_map(|one| &one.cidrs);
    let ranges = ipam.pod_cidrs.iter().chain(pools);
    let mut ranges: Vec<IpNet> =
        ranges.filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.trunc()).collect();
    let single = ipam.pool.keys().chain(ipam.ipv6_pool.keys());
    let single: Vec<IpNet> =
        single.filter_map(|text| text.parse::<IpAddr>().ok()).map(IpNet::from).collect();
    ranges.extend(IpNet::aggregate(&single));
    ranges
}

fn ipam(own: Option<&CiliumNode>) -> Option<&IpamSpec> {
    own?.spec.ipam.as_ref()
}

fn request(one: &Request) -> IpamPoolRequest {
    let some = |number: u32| Some(number).filter(|number| *number > 0);
    let needed = IpamPoolDemand { ipv4_addrs: some(one.v4), ipv6_addrs: some(one.v6) };
    IpamPoolRequest { pool: one.pool.clone(), needed: Some(needed) }
}

fn allocation(one: &Allocation) -> IpamPoolAllocation {
    IpamPoolAllocation { pool: one.pool.clone(), cidrs: one.cidrs.clone() }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use cilia_crds::CiliumNode;
    use ipnet::IpNet;
    use serde_json::json;

    use super::{all, offered, routers, status};

    fn node(mut value: serde_json::Value) -> CiliumNode {
        value["metadata"] = json!({"name": "n1"});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_used_is_published_and_what_is_wanted_back_is_answered() {
        let own = node(json!({
            "spec": {"ipam": {
                "pool": {"10.0.0.1": {}, "10.0.0.2": {}, "10.0.0.3": {}},
                "ipv6-pool": {"fd00::1": {}},
            }},
            "status": {"ipam": {
                "used": {"10.0.0.9": {"owner": "n/gone"}, "10.0.0.1": {"owner": "router"}},
                "release-ips": {"10.0.0.2": "marked-for-release", "10.0.0.3": "marked-for-release"},
            }},
        }));
        let texts: Vec<String> = offered(Some(&own)).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.1/32", "fd00::1/128"]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let used =
            [(ip("10.0.0.1"), "router".to_owned()), (ip("10.0.0.2"), "n/p (c:eth0)".to_owned())];
        let (patch, urgent) = status(&own, &used).unwrap();
        let want = json!({"ipam": {
            "used": {"10.0.0.9": null, "10.0.0.2": {"owner": "n/p"}},
            "release-ips": {"10.0.0.2": "do-not-release", "10.0.0.3": "ready-for-release"},
        }});
        assert_eq!((patch, urgent), (want, true));
        let (_, urgent) = status(&node(json!({"spec": {}})), &used).unwrap();
        assert!(!urgent, "nobody waits for what is used");
    }

    #[test]
    fn the_router_keeps_its_address() {
        let nets =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|t| t.parse().unwrap()).collect() };
        let ips =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|t| t.parse().unwrap()).collect() };
        let ranges = nets(&["10.0.0.0/30", "10.1.0.5/32", "fd00::/126"]);
        let of_pod =
            |address: IpAddr| (address.to_string() == "10.0.0.1").then(|| "n/p".to_owned());
        let first = ips(&["10.0.0.2", "fd00::1"]);
        assert_eq!(routers(&ranges, &[], &[], of_pod), first);
        assert_eq!(routers(&ranges, &[], &ips(&["10.1.0.5"]), of_pod)[0], ips(&["10.1.0.5"])[0]);
        assert_eq!(routers(&ranges, &[], &ips(&["10.0.0.1"]), of_pod), first, "a pod has it");
        assert_eq!(
            routers(&ranges, &[], &ips(&["10.9.0.1"]), of_pod),
            first,
            "not its own any more"
        );
        let kept = routers(&ranges, &ips(&["10.9.0.1"]), &[], of_pod);
        assert_eq!(kept, ips(&["10.9.0.1", "fd00::1"]), "pods have routes by it");
    }

    #[test]
    fn single_addresses_are_joined() {
        let own = node(json!({"spec": {"ipam": {
            "podCIDRs": ["10.2.0.0/24"],
            "pools": {"allocated": [{"pool": "red", "cidrs": ["10.1.0.0/24", "nonsense"]}]},
            "pool": {"10.0.0.0": {}, "10.0.0.1": {}, "10.0.0.3": {}},
        }}}));
        let texts: Vec<String> =
            all(&own.spec.ipam.unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.2.0.0/24", "10.1.0.0/24", "10.0.0.0/31", "10.0.0.3/32"]);
    }
}
