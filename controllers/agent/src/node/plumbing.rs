//! Keeps the node's devices, routes and masquerading as its own and the other nodes' ranges ask for.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cilia_loader::{Datapath, NodeConfig};
use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Config, Error, LocalNode, Nodes};
use crate::device::host::{self, Devices};
use crate::device::mtu::Mtu;
use crate::device::name::Mac;
use crate::device::{Netlink, Sysctl, masquerade, routes};
use crate::endpoint::EndpointMap;

/// How often what others may have changed is looked at.
const REPAIR: Duration = Duration::from_mins(1);

/// Makes the kernel what the nodes ask for.
#[derive(Debug)]
pub struct Plumbing {
    config: Config,
    nodes: Nodes,
    netlink: Netlink,
    sysctl: Sysctl,
    /// The rules that were loaded last: loading is a process, and not worth one for nothing.
    masqueraded: Mutex<Option<masquerade::Plan>>,
    lanes: Lanes<()>,
}

impl Plumbing {
    /// Will keep the devices of this node.
    pub fn new(
        config: Config,
        nodes: Nodes,
        netlink: Netlink,
        sysctl: Sysctl,
        workqueues: &Workqueues,
    ) -> Self {
        let lanes = Lanes::new(vec![Lane::new("plumbing")], Retry::default(), None, workqueues);
        Self { config, nodes, netlink, sysctl, masqueraded: Mutex::default(), lanes }
    }

    /// The MTUs of this node.
    pub async fn mtu(&self, local: &LocalNode) -> Result<Mtu, Error> {
        let tunnel = self.config.tunnel_port.is_some();
        let address = local.address().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        Ok(Mtu::detect(&self.netlink, self.config.mtu, address, tunnel).await?)
    }

    /// Makes devices, routes and masquerading right, and describes the devices.
    pub async fn ensure(&self) -> Result<Devices, Error> {
        let local = self.nodes.wait_local().await;
        let mtu = self.mtu(&local).await?;
        let (tunnel_port, routers) = (self.config.tunnel_port, local.routers.clone());
        let devices = host::Config { mtu: mtu.device, tunnel_port, routers: routers.clone() };
        let devices = host::ensure(&self.netlink, &self.sysctl, &devices).await?;
        let others = self.nodes.list();
        let others = others.iter().filter(|node| node.name != local.name);
        let remote = match tunnel_port {
            Some(_) => others.flat_map(|node| node.pod_cidrs.iter().copied()).collect(),
            // Without a tunnel, the network knows the way.
            None => std::collections::BTreeSet::new(),
        };
        let local_nets = local.pod_cidrs.iter().copied().collect();
        let plan = routes::Plan {
            device: devices.host.index,
            routers,
            mtu: mtu.route,
            remote,
            local: local_nets,
        };
        routes::ensure(&self.netlink, &plan).await?;
        self.masquerade(&local).await?;
        Ok(devices)
    }

    async fn masquerade(&self, local: &LocalNode) -> Result<(), Error> {
        let config = &self.config;
        let on = |net: &&ipnet::IpNet| {
            if net.addr().is_ipv4() { config.masquerade_ipv4 } else { config.masquerade_ipv6 }
        };
        let plan = masquerade::Plan {
            sources: local.pod_cidrs.iter().filter(on).copied().collect(),
            routers: local.routers.clone(),
            native: config.native_cidrs.clone(),
            interfaces: config.masquerade_interfaces.clone(),
        };
        let loaded =
            self.masqueraded.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(&plan);
        if !loaded {
            masquerade::ensure(&plan).await?;
            *self.masqueraded.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        }
        Ok(())
    }

    /// What the datapath has to know of the devices.
    pub fn node_config(devices: &Devices, local: &LocalNode, base: &NodeConfig) -> NodeConfig {
        NodeConfig {
            host_ifindex: devices.host.index,
            net_ifindex: devices.net.index,
            overlay_ifindex: devices.overlay.as_ref().map_or(0, |link| link.index),
            router_v4: local.router_v4(),
            router_v6: local.router_v6(),
            ..base.clone()
        }
    }

    /// Tells the datapath which addresses are the node's own.
    pub async fn ensure_hosts(&self, map: &EndpointMap, devices: &Devices) -> Result<(), Error> {
        let mut own = self.netlink.own_addresses().await?;
        if let Some(local) = self.nodes.local() {
            own.extend(local.addresses().chain(local.routers.iter().copied()));
        }
        map.set_hosts(own, devices.host.index).map_err(|cause| Error::Datapath(cause.to_string()))
    }

    /// The devices by which the node is reached: those that the patterns name, or those that have
    /// its addresses.
    async fn guarded(&self, patterns: &[String]) -> Result<Vec<(u32, String)>, Error> {
        let mut found = std::collections::BTreeMap::new();
        if patterns.is_empty() {
            for address in self.nodes.wait_local().await.addresses() {
                let link = self.netlink.link_with(address).await?;
                found.extend(link.map(|link| (link.index, link)));
            }
        } else {
            let named = |name: &str| {
                let is = |pattern: &String| match pattern.strip_suffix('+') {
                    Some(start) => name.starts_with(start),
                    None => name == pattern,
                };
                patterns.iter().any(is)
            };
            let links = self.netlink.links().await?.into_iter().filter(|link| named(&link.name));
            found.extend(links.map(|link| (link.index, link)));
        }
        // Loopback is nobody's, and what has no link-layer address has no Ethernet head either.
        let ethernet = found.into_values().filter(|link| link.mac != Mac::default());
        Ok(ethernet.map(|link| (link.index, link.name)).collect())
    }

    /// Follows the nodes until the token is cancelled. `base` are the datapath's settings that
    /// have nothing to do with devices; `guarded` are the devices on which the node's policy counts.
    pub async fn run(
        &self,
        datapath: Arc<Datapath>,
        map: EndpointMap,
        mut base: watch::Receiver<NodeConfig>,
        guarded: &[String],
        token: CancellationToken,
    ) {
        let mut changes = self.nodes.subscribe();
        let settings = base.clone();
        let follow = async {
            self.lanes.add(0, ());
            loop {
                tokio::select! {
                    Ok(()) = changes.changed() => {}
                    // Without a sender the settings stay.
                    Ok(()) = base.changed() => {}
                    else => break,
                }
                self.lanes.add(0, ());
            }
        };
        let told: Mutex<Option<NodeConfig>> = Mutex::default();
        let work = self.lanes.run(1, &token, async |_| {
            let devices = self.ensure().await?;
            self.ensure_hosts(&map, &devices).await?;
            let local = self.nodes.wait_local().await;
            let wanted = Self::node_config(&devices, &local, &settings.borrow());
            let known =
                told.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(&wanted);
            if !known {
                datapath.set_node(&wanted).map_err(|cause| Error::Datapath(cause.to_string()))?;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(wanted.clone());
            }
            let devices = match wanted.host_endpoint {
                Some(_) => self.guarded(guarded).await?,
                None => Vec::new(),
            };
            datapath.guard_devices(&devices).map_err(|cause| Error::Datapath(cause.to_string()))?;
            Ok::<_, Error>(Next::After(REPAIR))
        });
        tokio::select! {
            () = token.cancelled() => {}
            () = follow => {}
            () = work => {}
        }
    }
}

#[cfg(test)]
#[path = "plumbing_tests.rs"]
mod tests;
