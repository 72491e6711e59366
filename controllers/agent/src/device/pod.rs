//! Decides what a pod's device, addresses, neighbours and routes are, on both of its ends.
//!
//! A pod has its addresses alone, with no network around them: everything goes to the router's
//! address, which is at the other end of its own cable and needs no resolving.

use std::net::IpAddr;
use std::os::fd::AsFd as _;

use ipnet::IpNet;
use netlink_packet_route::address::AddressScope;

use super::name::Mac;
use super::netlink::End;
use super::netns::Netns;
use super::{Error, Netlink, Route, Sysctl};

/// What a pod is to be connected with.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The node's end.
    pub host_device: String,
    /// The pod's end.
    pub ifname: String,
    /// The MTU of both devices.
    pub mtu: u32,
    /// The MTU of the pod's routes: less, where packets travel in a tunnel.
    pub route_mtu: u32,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The router's address of each family that the pod has.
    pub routers: Vec<IpAddr>,
}

/// What the kernel made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The number of the node's end.
    pub ifindex: u32,
    /// The pod's link-layer address.
    pub mac: Mac,
    /// That of the node's end.
    pub node_mac: Mac,
}

/// Connects a pod. A device left over from a former attempt is replaced.
pub async fn attach(
    netlink: &Netlink,
    sysctl: &Sysctl,
    netns: &Netns,
    pod: &Attachment,
) -> Result<Attached, Error> {
    netlink.remove_link(&pod.host_device).await?;
    let ifname = pod.ifname.clone();
    netns.run(|inside| async move { inside.remove_link(&ifname).await }).await?;
    let (node_mac, mac) = (Mac::random(), Mac::random());
    let near = End { name: &pod.host_device, mac: node_mac, netns: None };
    let far = End { name: &pod.ifname, mac, netns: Some(netns.file().as_fd()) };
    netlink.add_veth(near, far, pod.mtu).await?;
    let (inside, settings) = (pod.clone(), sysctl.clone());
    netns
        .run(move |netlink| async move {
            configure_inside(&netlink, &settings, &inside, node_mac).await
        })
        .await?;
    let ifindex = configure_node_end(netlink, sysctl, pod, mac).await?;
    Ok(Attached { ifindex, mac, node_mac })
}

/// Removes the node's end, and with it the pod's, its routes and its neighbours.
pub async fn detach(netlink: &Netlink, host_device: &str) -> Result<(), Error> {
    netlink.remove_link(host_device).await
}

/// Makes the node's end of an existing pair right, and returns its number.
pub async fn configure_node_end(
    netlink: &Netlink,
    sysctl: &Sysctl,
    pod: &Attachment,
    mac: Mac,
) -> Result<u32, Error> {
    let link = netlink.need_link(&pod.host_device).await?;
    sysctl.set(&["net", "ipv4", "conf", &link.name, "rp_filter"], "0")?;
    // A pod is no router: the node takes no routes and no addresses from it, before it can speak.
    sysctl.set_if_there(&["net", "ipv6", "conf", &link.name, "accept_ra"], "0")?;
    netlink.set_up(&link, pod.mtu, true).await?;
    for address in &pod.addresses {
        let router = pod.routers.iter().find(|router| router.is_ipv4() == address.is_ipv4());
        netlink.set_neighbour(&link, *address, mac).await?;
        netlink
            .set_route(&Route::direct(IpNet::from(*address), link.index).from(router.copied()))
            .await?;
    }
    Ok(link.index)
}

async fn configure_inside(
    netlink: &Netlink,
    sysctl: &Sysctl,
    pod: &Attachment,
    router: Mac,
) -> Result<(), Error> {
    if pod.addresses.iter().any(IpAddr::is_ipv6) {
        for device in ["all", "default", &pod.ifname] {
            sysctl.set(&["net", "ipv6", "conf", device, "disable_ipv6"], "0")?;
        }
    }
    let link = netlink.need_link(&pod.ifname).await?;
    for address in &pod.addresses {
        netlink.add_address(&link, IpNet::from(*address), AddressScope::Universe).await?;
    }
    netlink.set_up(&link, pod.mtu, true).await?;
    for address in &pod.routers {
        netlink.set_neighbour(&link, *address, router).await?;
    }
    for route in routes(pod, link.index) {
        netlink.set_route(&route).await?;
    }
    Ok(())
}

/// The pod's routes, in the order in which the kernel accepts them.
pub fn routes(pod: &Attachment, device: u32) -> Vec<Route> {
    let of_router = |router: &IpAddr| {
        let on_link = Route::direct(IpNet::from(*router), device).mtu(pod.route_mtu);
        let default = Route::direct(any(*router), device).via(*router).mtu(pod.route_mtu);
        [on_link, default]
    };
    pod.routers.iter().flat_map(of_router).collect()
}

/// Everything, in the family of `address`.
pub fn any(address: IpAddr) -> IpNet {
    IpNet::from(address).supernet_of_all()
}

/// The prefix of length 0 of a family.
trait SupernetOfAll {
    fn supernet_of_all(self) -> IpNet;
}

impl SupernetOfAll for IpNet {
    fn supernet_of_all(self) -> IpNet {
        match self {
            IpNet::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpNet::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        }
    }
}

/// What is wrong with a pod's device inside its namespace; empty when nothing is.
pub async fn faults(netns: &Netns, pod: &Attachment) -> Result<Vec<String>, Error> {
    let pod = pod.clone();
    netns
        .run(move |netlink| async move {
            let Some(link) = netlink.link(&pod.ifname).await? else {
                return Ok(vec![format!("device {} is missing", pod.ifname)]);
            };
            let mut faults = Vec::new();
            if !link.up {
                faults.push(format!("device {} is down", pod.ifname));
            }
            let addresses = netlink.addresses(&link).await?;
            let missing = pod
                .addresses
                .iter()
                .filter(|want| !addresses.iter().any(|have| have.addr() == **want));
            faults.extend(
                missing.map(|address| format!("device {} lacks address {address}", pod.ifname)),
            );
            let present = netlink.routes().await?;
            let leads = |want: &Route| {
                present.iter().any(|have| {
                    (have.destination, have.gateway, have.device)
                        == (want.destination, want.gateway, want.device)
                })
            };
            let missing = routes(&pod, link.index).into_iter().filter(|want| !leads(want));
            faults.extend(missing.map(|route| format!("route to {route} is missing")));
            Ok(faults)
        })
        .await
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
