//! What every step of an endpoint's life works with, from its attachment to its end.

use std::sync::Arc;

use cilia_identity::Filter;
use cilia_loader::Datapath;
use cilia_runtime::turns::Turns;

use super::publish::Publisher;
use super::reconcile::Queue;
use super::{EndpointMap, Endpoints, Error, LocalEndpoint, Pods, StateFiles};
use crate::device::mtu::Mtu;
use crate::device::{Netlink, Sysctl, pod};
use crate::identity::Identities;
use crate::ipam::Ipam;
use crate::ipcache::Cache;
use crate::node::{LocalNode, Nodes};
use crate::policy::Enforcer;

/// What endpoints of this node have in common.
#[derive(Debug, Clone)]
pub struct Config {
    /// Endpoints get IPv4 addresses.
    pub ipv4: bool,
    /// Endpoints get IPv6 addresses.
    pub ipv6: bool,
    /// `cluster-name`.
    pub cluster: String,
    /// Which labels make an identity.
    pub filter: Arc<Filter>,
    /// The MTUs of the node.
    pub mtu: Mtu,
}

/// What connecting a pod takes.
pub struct Parts {
    /// What endpoints have in common.
    pub config: Config,
    /// The endpoints.
    pub endpoints: Endpoints,
    /// The pods of the node.
    pub pods: Pods,
    /// The identities.
    pub identities: Identities,
    /// The addresses.
    pub ipam: Ipam,
    /// The nodes.
    pub nodes: Nodes,
    /// What the cluster says about addresses.
    pub ipcache: Cache,
    /// What realizes policy.
    pub enforcer: Enforcer,
    /// The programs and tables.
    pub datapath: Arc<Datapath>,
    /// The table of local addresses.
    pub map: EndpointMap,
    /// The node's devices.
    pub netlink: Netlink,
    /// The kernel's settings.
    pub sysctl: Sysctl,
    /// The files.
    pub files: StateFiles,
    /// The API server.
    pub client: kube::Client,
    /// Metrics of queues.
    pub workqueues: cilia_runtime::lanes::Workqueues,
}

/// Connects, keeps and disconnects this node's endpoints; clones share everything.
#[derive(Clone)]
pub struct Lifecycle(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) parts: Parts,
    pub(super) publisher: Publisher,
    pub(super) queue: Queue,
    pub(super) turns: Turns<String>,
}

impl Lifecycle {
    /// Ready to connect pods.
    pub fn new(parts: Parts) -> Self {
        let publisher = Publisher::new(parts.client.clone());
        let queue = Queue::new(&parts.workqueues);
        Self(Arc::new(Inner { parts, publisher, queue, turns: Turns::default() }))
    }

    /// What it works with.
    pub fn parts(&self) -> &Parts {
        &self.0.parts
    }

    /// Loader calls wait for the kernel: they have threads of their own.
    pub(super) async fn on_datapath<F>(
        &self,
        operation: &'static str,
        id: u16,
        work: F,
    ) -> Result<(), Error>
    where
        F: FnOnce(&Datapath) -> Result<(), cilia_loader::Error> + Send + 'static,
    {
        let datapath = Arc::clone(&self.0.parts.datapath);
        let done =
            tokio::task::spawn_blocking(move || work(&datapath).map_err(|cause| cause.to_string()))
                .await;
        let done = done.unwrap_or_else(|broken| Err(broken.to_string()));
        done.map_err(|cause| Error::Datapath { operation, id, cause })
    }

    /// What an endpoint's device ought to be; nothing while the node itself is not known.
    pub fn expected_device(&self, endpoint: &LocalEndpoint) -> Option<pod::Attachment> {
        Some(self.device(endpoint, &*self.0.parts.nodes.local()?, None))
    }

    /// What an endpoint's device ought to be.
    pub(super) fn device(
        &self,
        endpoint: &LocalEndpoint,
        node: &LocalNode,
        mtu: Option<u32>,
    ) -> pod::Attachment {
        let node_mtu = self.0.parts.config.mtu;
        let device = mtu.filter(|mtu| *mtu > 0).unwrap_or(node_mtu.device);
        let addresses: Vec<_> = endpoint.addresses().collect();
        let has =
            |router: &&std::net::IpAddr| addresses.iter().any(|a| a.is_ipv4() == router.is_ipv4());
        pod::Attachment {
            host_device: endpoint.host_device.clone(),
            ifname: endpoint.ifname.clone(),
            mtu: device,
            route_mtu: device.min(node_mtu.route),
            routers: node.routers.iter().filter(has).copied().collect(),
            addresses,
        }
    }
}

#[cfg(test)]
mod tests;
