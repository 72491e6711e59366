//! The cluster's nodes as this one knows them, and what it says about itself.

mod config;
mod error;
mod keeper;
mod own;
mod plumbing;
mod supply;
#[cfg(test)]
pub(crate) mod testing {
    pub(crate) use super::own::tests::config;
}

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use cilia_crds::CiliumNode;
use ipnet::IpNet;
use tokio::sync::watch;

pub use config::{Config, IpamMode};
pub use error::Error;
pub use keeper::Keeper;
pub(crate) use keeper::boot_id;
pub use plumbing::Plumbing;

const INTERNAL_IP: &str = "InternalIP";
const CILIUM_INTERNAL_IP: &str = "CiliumInternalIP";

/// A node of the cluster. About 300 bytes, beside its labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// The IPv4 address that other nodes send to.
    pub internal_ipv4: Option<Ipv4Addr>,
    /// The IPv6 address that other nodes send to.
    pub internal_ipv6: Option<Ipv6Addr>,
    /// Its router's IPv4 address.
    pub cilium_internal_ipv4: Option<Ipv4Addr>,
    /// Its router's IPv6 address.
    pub cilium_internal_ipv6: Option<Ipv6Addr>,
    /// Every address of it, those above included.
    pub addresses: Vec<IpAddr>,
    /// The ranges of its pods.
    pub pod_cidrs: Vec<IpNet>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// This node, once it has the ranges of its pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// The ranges of its pods, of the families that are on.
    pub pod_cidrs: Vec<IpNet>,
    /// The router's address in each range's family.
    pub routers: Vec<IpAddr>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// All nodes; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Nodes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    view: RwLock<View>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct View {
    local: Option<Arc<LocalNode>>,
    nodes: BTreeMap<String, Arc<NodeInfo>>,
}

impl Nodes {
    /// This node; nothing before the ranges of its pods are known.
    pub fn local(&self) -> Option<Arc<LocalNode>> {
        self.read().local.clone()
    }

    /// This node, waited for.
    pub async fn wait_local(&self) -> Arc<LocalNode> {
        let mut version = self.subscribe();
        loop {
            if let Some(local) = self.local() {
                return local;
            }
            if version.changed().await.is_err() {
                // The sender lives as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Every node that has a `CiliumNode`, this one included, by name.
    pub fn list(&self) -> Vec<Arc<NodeInfo>> {
        self.read().nodes.values().cloned().collect()
    }

    /// Changes whenever a node does.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Says what this node is, for tests of other parts.
    #[cfg(test)]
    pub fn set_local_for_test(&self, local: LocalNode) {
        self.set_local(local);
    }

    fn set_local(&self, local: LocalNode) {
        self.change(|view| {
            let news = view.local.as_deref() != Some(&local);
            view.local = Some(Arc::new(local));
            news
        });
    }

    /// A node is there, or has changed; one of another cluster is named `cluster/node`.
    pub fn applied(&self, node: NodeInfo) {
        self.change(|view| {
            let news = view.nodes.get(&node.name).is_none_or(|present| **present != node);
            view.nodes.insert(node.name.clone(), Arc::new(node));
            news
        });
    }

    /// A node is gone.
    pub fn deleted(&self, name: &str) {
        self.change(|view| view.nodes.remove(name).is_some());
    }

    fn change(&self, change: impl FnOnce(&mut View) -> bool) {
        let news = change(&mut self.0.view.write().unwrap_or_else(PoisonError::into_inner));
        if news {
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, View> {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalNode {
    /// The address that other nodes send to.
    pub fn address(&self) -> Option<IpAddr> {
        self.addresses().next()
    }

    /// The node's addresses, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// The router's IPv4 address.
    pub fn router_v4(&self) -> Option<Ipv4Addr> {
        self.routers.iter().find_map(|router| match router {
            IpAddr::V4(router) => Some(*router),
            IpAddr::V6(_) => None,
        })
    }

    /// The router's IPv6 address.
    pub fn router_v6(&self) -> Option<Ipv6Addr> {
        self.routers.iter().find_map(|router| match router {
            IpAddr::V6(router) => Some(*router),
            IpAddr::V4(_) => None,
        })
    }
}

impl From<&CiliumNode> for NodeInfo {
    fn from(node: &CiliumNode) -> Self {
        let mut info = Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
            ..Self::default()
        };
        for address in &node.spec.addresses {
            let Some(ip) = address.ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
                continue;
            };
            info.addresses.push(ip);
            // The first of a kind counts.
            match (address.address_type.as_deref(), ip) {
                (Some(INTERNAL_IP), IpAddr::V4(ip)) => _ = info.internal_ipv4.get_or_insert(ip),
                (Some(INTERNAL_IP), IpAddr::V6(ip)) => _ = info.internal_ipv6.get_or_insert(ip),
                (Some(CILIUM_INTERNAL_IP), IpAddr::V4(ip)) => {
                    _ = info.cilium_internal_ipv4.get_or_insert(ip);
                }
                (Some(CILIUM_INTERNAL_IP), IpAddr::V6(ip)) => {
                    _ = info.cilium_internal_ipv6.get_or_insert(ip);
                }
                _ => {}
            }
        }
        info.pod_cidrs = node.spec.ipam.as_ref().map(supply::all).unwrap_or_default();
        info
    }
}
