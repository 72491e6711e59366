//! Decides what the node's own devices are: `cilium_host`, `cilium_net` and the tunnel.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::AddressScope;

use super::name::{HOST, Mac, NET, VXLAN};
use super::netlink::End;
use super::{Error, Link, Netlink, Sysctl};

/// What the node is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The MTU of all devices.
    pub mtu: u32,
    /// The UDP port of the tunnel; `None` is no tunnel.
    pub tunnel_port: Option<u16>,
    /// The router's addresses.
    pub routers: Vec<IpAddr>,
}

/// The devices of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// `cilium_host`.
    pub host: Link,
    /// `cilium_net`.
    pub net: Link,
    /// `cilium_vxlan`.
    pub overlay: Option<Link>,
}

/// Makes the node's devices, addresses and settings right, and describes them.
pub async fn ensure(netlink: &Netlink, sysctl: &Sysctl, config: &Config) -> Result<Devices, Error> {
    ensure_pair(netlink, config.mtu).await?;
    ensure_tunnel(netlink, config).await?;
    let mut names = vec![HOST, NET];
    names.extend(config.tunnel_port.map(|_| VXLAN));
    for name in &names {
        let link = netlink.need_link(name).await?;
        sysctl.set(&["net", "ipv4", "conf", name, "rp_filter"], "0")?;
        // Without ARP the kernel takes the device's own address for every neighbour's: packets
        // leave at once, and the program on the device sends them where they belong.
        netlink.set_up(&link, config.mtu, *name == VXLAN).await?;
    }
    ensure_forwarding(sysctl, &config.routers)?;
    ensure_addresses(netlink, &config.routers).await?;
    let overlay =
        if config.tunnel_port.is_some() { Some(netlink.need_link(VXLAN).await?) } else { None };
    Ok(Devices {
        host: netlink.need_link(HOST).await?,
        net: netlink.need_link(NET).await?,
        overlay,
    })
}

/// The addresses of `cilium_host` as a former agent left it; none if it is not there or cannot be asked.
pub async fn left_behind() -> Vec<IpAddr> {
    let ask = async {
        let netlink = Netlink::connect()?;
        match netlink.link(HOST).await? {
            Some(host) => netlink.addresses(&host).await,
            None => Ok(Vec::new()),
        }
    };
    let left: Result<Vec<IpNet>, Error> = ask.await;
    match left {
        Ok(addresses) => addresses.into_iter().map(|address| address.addr()).collect(),
        Err(error) => {
            tracing::debug!(%error, "the addresses of a former agent's device are not known");
            Vec::new()
        }
    }
}

/// Removes everything that [`ensure`] made.
#[cfg(test)]
pub(super) async fn remove(netlink: &Netlink) -> Result<(), Error> {
    netlink.remove_link(HOST).await?;
    netlink.remove_link(VXLAN).await
}

async fn ensure_pair(netlink: &Netlink, mtu: u32) -> Result<(), Error> {
    let (host, net) = (netlink.link(HOST).await?, netlink.link(NET).await?);
    if let (Some(host), Some(net)) = (&host, &net)
        && host.peer == Some(net.index)
    {
        return Ok(());
    }
    netlink.remove_link(HOST).await?;
    netlink.remove_link(NET).await?;
    let end = |name| End { name, mac: Mac::random(), netns: None };
    netlink.add_veth(end(HOST), end(NET), mtu).await
}

async fn ensure_tunnel(netlink: &Netlink, config: &Config) -> Result<(), Error> {
    let present = netlink.link(VXLAN).await?;
    match (present, config.tunnel_port) {
        (Some(link), Some(port)) if link.external_vxlan_port == Some(port) => Ok(()),
        (_, wanted) => {
            netlink.remove_link(VXLAN).await?;
            match wanted {
                Some(port) => netlink.add_vxlan(VXLAN, port, config.mtu).await,
                None => Ok(()),
            }
        }
    }
}

/// Packets are routed between devices, and come back another way than they would go.
fn ensure_forwarding(sysctl: &Sysctl, routers: &[IpAddr]) -> Result<(), Error> {
    if routers.iter().any(IpAddr::is_ipv4) {
        sysctl.set(&["net", "ipv4", "ip_forward"], "1")?;
        sysctl.set(&["net", "ipv4", "conf", "all", "rp_filter"], "0")?;
    }
    if routers.iter().any(IpAddr::is_ipv6) {
        for device in ["all", HOST, NET] {
            sysctl.set(&["net", "ipv6", "conf", device, "disable_ipv6"], "0")?;
        }
        sysctl.set(&["net", "ipv6", "conf", "all", "forwarding"], "1")?;
    }
    Ok(())
}

async fn ensure_addresses(netlink: &Netlink, routers: &[IpAddr]) -> Result<(), Error> {
    let host = netlink.need_link(HOST).await?;
    let present = netlink.addresses(&host).await?;
    let wanted: Vec<IpNet> = routers.iter().copied().map(IpNet::from).collect();
    for address in wanted.iter().filter(|address| !present.contains(address)) {
        // The scope keeps the node from sending to the world from it.
        let scope =
            if address.addr().is_ipv4() { AddressScope::Link } else { AddressScope::Universe };
        netlink.add_address(&host, *address, scope).await?;
    }
    for address in present.iter().filter(|address| !wanted.contains(address)) {
        netlink.remove_address(&host, *address).await?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
