//! The endpoints of this node: what is attached, under which identity, and how far each is.

mod attach;
mod detach;
mod error;
mod lifecycle;
mod map;
#[cfg(test)]
mod namespace_bench;
mod own_labels;
mod pods;
mod publish;
mod reconcile;
mod registry;
mod relabel;
mod restore;
mod salvage;
mod state_files;
mod status;
#[cfg(test)]
pub(crate) mod test_agent;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cilia_crds::ciliumendpoint::networking::NamedPort as PublishedPort;
use cilia_crds::{Labels, NumericIdentity};
use serde::{Deserialize, Serialize};

pub use attach::{Request, Wired};
pub use cilia_crds::ciliumendpoint::EndpointState;
pub use error::Error;
pub use lifecycle::{Config, Lifecycle, Parts};
pub use map::EndpointMap;
pub use own_labels::{Fault, OwnLabels, Wanted};
pub use pods::{PodKey, Pods};
pub use registry::Endpoints;
pub use state_files::StateFiles;

use crate::device::name::Mac;

/// An endpoint of this node. About 1 KiB, most of it labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Its number on this node.
    pub id: u16,
    /// The pod's namespace; empty for what is no pod.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid to kubelet and the container runtime.
    pub pod_uid: String,
    /// The uid of the pod's object: another one for a static pod, whose object is a mirror.
    pub object_uid: String,
    /// The container's name to the runtime.
    pub container_id: String,
    /// The device's name inside the pod.
    pub ifname: String,
    /// Where the runtime keeps the pod's network namespace.
    pub netns: String,
    /// The node's end of its device.
    pub host_device: String,
    /// The number of the node's end.
    pub ifindex: u32,
    /// The pod's link-layer address.
    pub mac: Mac,
    /// That of the node's end.
    pub node_mac: Mac,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// The identity of its labels.
    pub identity: Option<NumericIdentity>,
    /// The labels that make its identity.
    pub labels: Labels,
    /// Those of them that somebody has given it through the API.
    pub own: OwnLabels,
    /// The pod's own labels, as its `CiliumEndpoint` shows them.
    pub pod_labels: BTreeMap<String, String>,
    /// The pod's service account.
    pub service_account: String,
    /// The pod's ports that have names, sorted.
    pub named_ports: Vec<NamedPort>,
    /// Which of this node's endpoints came later.
    pub sequence: u64,
    /// How far it is.
    pub state: EndpointState,
    /// The uid of its `CiliumEndpoint`, once it has one.
    pub published_uid: Option<String>,
}

/// A port of a pod that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// The number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

impl LocalEndpoint {
    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// The pod it belongs to.
    pub fn key(&self) -> PodKey {
        PodKey { namespace: self.namespace.clone(), name: self.pod.clone() }
    }

    /// The container and the interface: what CNI calls an attachment.
    pub fn attachment(&self) -> String {
        format!("{}:{}", self.container_id, self.ifname)
    }

    /// The name under which it has its addresses.
    pub fn owner(&self) -> String {
        owner(&self.namespace, &self.pod, &self.container_id, &self.ifname)
    }
}

/// The name under which an attachment has its addresses.
fn owner(namespace: &str, pod: &str, container_id: &str, ifname: &str) -> String {
    format!("{namespace}/{pod} ({container_id}:{ifname})")
}

impl From<&NamedPort> for PublishedPort {
    fn from(port: &NamedPort) -> Self {
        Self {
            name: Some(port.name.clone()),
            port: Some(port.port),
            protocol: Some(port.protocol.clone()),
        }
    }
}
