//! The node's own devices, in a real network namespace.

use std::net::IpAddr;

use super::{Config, ensure, left_behind, remove};
use crate::device::testing::in_new_netns;
use crate::device::{Netlink, Sysctl, routes};

fn config(routers: &[&str]) -> Config {
    let routers = routers.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect();
    Config { mtu: 1500, tunnel_port: Some(8472), routers }
}

#[test]
fn devices_are_made_once_and_follow_their_addresses() {
    in_new_netns(|| async {
        let (netlink, sysctl) = (Netlink::connect().unwrap(), Sysctl::new("/proc"));
        let first = ensure(&netlink, &sysctl, &config(&["10.0.0.1", "fd00::1"])).await.unwrap();
        let again = ensure(&netlink, &sysctl, &config(&["10.0.0.1", "fd00::1"])).await.unwrap();
        assert_eq!(first, again, "what is right is left alone");
        let overlay = first.overlay.unwrap();
        assert!(first.host.up && first.host.noarp && overlay.up);
        assert_eq!(overlay.external_vxlan_port, Some(8472));

        let moved = ensure(&netlink, &sysctl, &config(&["10.0.7.1"])).await.unwrap();
        assert_eq!(moved.host.index, again.host.index);
        let addresses = netlink.addresses(&moved.host).await.unwrap();
        assert_eq!(addresses, ["10.0.7.1/32".parse().unwrap()]);

        assert_eq!(left_behind().await, ["10.0.7.1".parse::<IpAddr>().unwrap()]);

        let mut other = config(&["10.0.7.1"]);
        other.tunnel_port = Some(4789);
        let other = ensure(&netlink, &sysctl, &other).await.unwrap();
        assert_eq!(other.overlay.unwrap().external_vxlan_port, Some(4789));
        remove(&netlink).await.unwrap();
        assert_eq!(netlink.links().await.unwrap().len(), 1, "only the loopback device is left");
        assert_eq!(left_behind().await, [] as [IpAddr; 0]);
    });
}

#[test]
fn routes_settle() {
    in_new_netns(|| async {
        let (netlink, sysctl) = (Netlink::connect().unwrap(), Sysctl::new("/proc"));
        let config = config(&["10.0.0.1", "fd00::1"]);
        let devices = ensure(&netlink, &sysctl, &config).await.unwrap();
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut plan = routes::Plan {
            device: devices.host.index,
            routers: config.routers,
            mtu: 1450,
            remote: nets(&["10.0.1.0/24", "fd00::100/120"]),
            local: nets(&["10.0.0.0/24", "fd00::/120"]),
        };
        for (remote, mtu) in [
            (vec!["10.0.1.0/24", "fd00::100/120"], 1450),
            (vec!["10.0.1.0/24"], 1400),
            (vec![], 1400),
        ] {
            (plan.remote, plan.mtu) = (nets(&remote), mtu);
            routes::ensure(&netlink, &plan).await.unwrap();
            let present = netlink.routes().await.unwrap();
            assert_eq!(plan.changes(&present), (vec![], vec![]), "{present:?}");
            let known = present.iter().filter(|route| route.mtu.is_some()).count();
            assert_eq!(known, remote.len());
        }
    });
}

#[test]
fn many_may_list_at_once() {
    in_new_netns(|| async {
        let netlink = Netlink::connect().unwrap();
        let lists = (0..50).map(async |_| {
            let (links, routes, addresses) =
                tokio::join!(netlink.links(), netlink.routes(), netlink.own_addresses());
            links.is_ok() && routes.is_ok() && addresses.is_ok()
        });
        assert!(futures::future::join_all(lists).await.into_iter().all(|listed| listed));
    });
}
