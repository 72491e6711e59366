//! Who is behind every address of the cluster: keeps the ipcache map equal to what slices, nodes,
//! local endpoints and policies say.
//!
//! Additions are written at once; removals only after everything has been listed, so that a
//! restart takes nobody's address away. The prefixes that policies name are known to be all there
//! only once policy says so; until then those that a former agent wrote stay.

mod choice;
mod cluster;
mod source;
mod table;
mod writer;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use cilia_crds::NumericIdentity;
use cilia_loader::{Datapath, RemoteEndpoint};
use cilia_policy::ClusterPorts;
use ipnet::IpNet;
use kube::Client;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;
use crate::node::Nodes;
use crate::readiness::Readiness;

pub use source::{Fed, protocol};
use table::Table;
pub use table::{Origin, Prefix};

/// The gate that opens once the map is right.
pub const GATE: &str = "ipcache";

/// How many addresses may wait to be heard of by those who look after endpoints.
const UNLISTED: usize = 1024;

/// What the ipcache is fed from.
pub struct Sources {
    /// To watch slices or endpoints.
    pub client: Client,
    /// `enable-cilium-endpoint-slice`: slices are read, and endpoints only while slices do not say it all.
    pub slices: bool,
    /// The cluster's nodes.
    pub nodes: Nodes,
    /// This node's endpoints.
    pub endpoints: Endpoints,
    /// Kubernetes says where the cluster's pods are; else only `fed` does.
    pub kubernetes: bool,
    /// What the kvstore, or other clusters, say; nothing where there is neither.
    pub fed: Option<mpsc::Receiver<Vec<Fed>>>,
}

/// Identities of nodes' addresses that policies tell apart.
pub type NodeIdentities = std::collections::BTreeMap<IpAddr, NumericIdentity>;

/// The ipcache; clones share it.
#[derive(Debug, Clone)]
pub struct Cache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    prefixes: mpsc::UnboundedSender<PrefixUpdate>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<PrefixUpdate>>>,
    names: watch::Sender<Arc<ClusterPorts>>,
    nodes: watch::Sender<Arc<NodeIdentities>>,
    listed: watch::Sender<bool>,
    unlisted: broadcast::Sender<IpAddr>,
}

/// The prefixes that policies name, and whom to tell when the map has them.
#[derive(Debug)]
struct PrefixUpdate {
    prefixes: Vec<(IpNet, NumericIdentity)>,
    done: oneshot::Sender<bool>,
}

impl Default for Cache {
    fn default() -> Self {
        let (prefixes, inbox) = mpsc::unbounded_channel();
        Self(Arc::new(Shared {
            table: Mutex::default(),
            prefixes,
            inbox: Mutex::new(Some(inbox)),
            names: watch::Sender::default(),
            nodes: watch::Sender::default(),
            listed: watch::Sender::default(),
            unlisted: broadcast::Sender::new(UNLISTED),
        }))
    }
}

impl Cache {
    /// Keeps the map right until `stop`.
    pub async fn run(
        self,
        sources: Sources,
        datapath: Arc<Datapath>,
        readiness: Readiness,
        stop: CancellationToken,
    ) {
        writer::run(self, sources, datapath, readiness, stop).await;
    }

    /// Makes these the prefixes that policies name. Returns once the map has the new ones; true if
    /// it has lost the others too.
    pub async fn set_prefixes(&self, prefixes: Vec<(IpNet, NumericIdentity)>) -> bool {
        let (done, answer) = oneshot::channel();
        if self.0.prefixes.send(PrefixUpdate { prefixes, done }).is_err() {
            return false;
        }
        answer.await.unwrap_or(false)
    }

    /// Makes these the identities of other nodes' addresses; the rest are `remote-node`.
    pub fn set_node_identities(&self, identities: NodeIdentities) {
        self.0.nodes.send_replace(Arc::new(identities));
    }

    /// Returns once everything that the cluster says has been heard, port names included.
    pub async fn wait_listed(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// How the cluster's pods name their ports.
    pub fn named_ports(&self) -> watch::Receiver<Arc<ClusterPorts>> {
        self.0.names.subscribe()
    }

    /// Addresses of this node's endpoints, as the cluster stops to list them.
    pub fn unlisted(&self) -> broadcast::Receiver<IpAddr> {
        self.0.unlisted.subscribe()
    }

    /// Every prefix with who is behind it and who says so, in order.
    pub fn entries(&self) -> Vec<(Prefix, RemoteEndpoint, Origin)> {
        self.table(|table| table.entries())
    }

    fn table<R>(&self, use_it: impl FnOnce(&mut Table) -> R) -> R {
        use_it(&mut self.0.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
