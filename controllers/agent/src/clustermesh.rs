//! Other clusters: hands what they say to the ipcache, identities, nodes and services.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cilia_kvstore::mesh::{Change, GRACE, Mesh, News, Remote, Settings as MeshSettings};
use cilia_kvstore::value::Node;
use cilia_kvstore::{Fared, SyncMetrics};
use cilia_runtime::config::Config as Flags;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::identity::Identities;
use crate::ipcache::Fed;
use crate::kvstore;
use crate::node::{NodeInfo, Nodes};
use crate::service::Services;

/// Requests per second and cluster: reading one is a list and a watch for each prefix.
const QPS: f64 = 20.0;

/// What the flags say of other clusters.
#[derive(Debug, Clone)]
pub struct Settings {
    mesh: MeshSettings,
    /// How long the maps wait for other clusters at the start.
    sync_timeout: Duration,
    /// Quorum errors in a row that are not yet a failure.
    tolerated: u64,
}

impl Settings {
    /// Reads the flags; nothing where there are no other clusters.
    pub fn read(flags: &Flags) -> Option<Self> {
        let directory = flags.path("clustermesh-config")?;
        let number = |flag| u32::try_from(flags.uint(flag)).unwrap_or_default();
        let cluster_id = number("cluster-id");
        if cluster_id == 0 {
            tracing::info!("other clusters are not read: cluster-id is 0");
            return None;
        }
        Some(Self {
            mesh: MeshSettings {
                directory,
                cluster: flags.string("cluster-name").to_owned(),
                cluster_id,
                max_connected: number("max-connected-clusters"),
                cache_ttl: flags.duration("clustermesh-cache-ttl"),
                network: true,
                qps: QPS,
                grace: GRACE,
            },
            sync_timeout: flags.duration("clustermesh-sync-timeout"),
            tolerated: flags.uint("kvstore-max-consecutive-quorum-errors"),
        })
    }
}

/// How other clusters are, by name.
pub type Remotes = watch::Receiver<BTreeMap<String, Remote>>;

/// Other clusters; clones share them.
#[derive(Debug, Clone)]
pub struct Clustermesh {
    mesh: Mesh,
    sync_timeout: Duration,
}

/// Who is told what other clusters say.
pub struct Readers {
    /// Numbers and labels.
    pub identities: Identities,
    /// Nodes, by `cluster/node`.
    pub nodes: Nodes,
    /// Shared services.
    pub services: Services,
}

impl Clustermesh {
    /// The other clusters, and what they say.
    pub fn new(settings: &Settings) -> (Self, mpsc::Receiver<News>) {
        let (mesh, news) = Mesh::new(settings.mesh.clone());
        mesh.tolerate(settings.tolerated);
        (Self { mesh, sync_timeout: settings.sync_timeout }, news)
    }

    /// Counts in these.
    pub fn count_in(&self, metrics: SyncMetrics) {
        self.mesh.count_in(metrics);
    }

    /// Tells how requests to each cluster's etcd fare that its limits let through.
    pub fn tell_of_limits(&self, tell: impl Fn(&str, &Fared) + Send + Sync + 'static) {
        self.mesh.tell_of_limits(tell);
    }

    /// Every cluster by its name, and how it is.
    pub fn remotes(&self) -> Remotes {
        self.mesh.remotes()
    }

    /// Returns once every cluster has said everything, or not in time.
    pub async fn wait_ready(&self) {
        self.mesh.wait_ready(self.sync_timeout).await;
    }

    /// Reads until `stop`; `feed` is told of addresses.
    pub async fn run(
        self,
        readers: Readers,
        feed: mpsc::Sender<Vec<Fed>>,
        mut news: mpsc::Receiver<News>,
        stop: CancellationToken,
    ) {
        let tell = async {
            while let Some((cluster, changes)) = news.recv().await {
                let mut batch = Vec::new();
                for change in changes {
                    batch.extend(readers.take(&cluster, change));
                }
                if !batch.is_empty() && feed.send(batch).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.mesh.run(stop) => {}
            () = tell => {}
        }
    }
}

impl Readers {
    /// Tells everybody but the ipcache, for which it returns what to tell.
    fn take(&self, cluster: &Arc<str>, change: Change) -> Option<Fed> {
        let name = |prefix: ipnet::IpNet| format!("{cluster}/{prefix}").into();
        match change {
            Change::Ip(prefix, pair) => return Some(kvstore::entry(name(prefix), prefix, &pair)),
            Change::IpGone(prefix) => return Some(Fed::Gone(name(prefix))),
            Change::Identity(number, labels) => self.identities.remote(number, Some(labels)),
            Change::IdentityGone(number) => self.identities.remote(number, None),
            Change::Node(node) => self.nodes.applied(info(cluster, &node)),
            Change::NodeGone(node) => self.nodes.deleted(&format!("{cluster}/{node}")),
            Change::Service(service) => self.services.set_remote(cluster, &service),
            Change::ServiceGone(namespace, name) => {
                self.services.remove_remote(cluster, &namespace, &name);
            }
        }
        None
    }
}

/// A node of another cluster as this agent keeps nodes.
fn info(cluster: &str, node: &Node) -> NodeInfo {
    let mut info = NodeInfo {
        name: format!("{cluster}/{}", node.name),
        pod_cidrs: node.ranges(),
        labels: node.labels.clone().unwrap_or_default(),
        ..NodeInfo::default()
    };
    for address in &node.addresses {
        let Ok(ip) = address.ip.parse::<IpAddr>() else { continue };
        info.addresses.push(ip);
        // The first of a kind counts.
        match (address.kind.as_str(), ip) {
            ("InternalIP", IpAddr::V4(ip)) => _ = info.internal_ipv4.get_or_insert(ip),
            ("InternalIP", IpAddr::V6(ip)) => _ = info.internal_ipv6.get_or_insert(ip),
            ("CiliumInternalIP", IpAddr::V4(ip)) => {
                _ = info.cilium_internal_ipv4.get_or_insert(ip);
            }
            ("CiliumInternalIP", IpAddr::V6(ip)) => {
                _ = info.cilium_internal_ipv6.get_or_insert(ip);
            }
            _ => {}
        }
    }
    info
}
