//! Reads other clusters: one file for each in a directory, one etcd behind each file.
//!
//! The directory is looked at every two seconds; a cluster whose file changes is connected anew, one
//! whose file goes is drained: everything that it told is reported as gone.

mod cluster;
mod import;
mod pulse;
mod shown;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use shown::shown;

use crate::client::{Client, Fared, OfClusters};
use crate::metrics::SyncMetrics;
use crate::value::{ClusterService, IpIdentityPair, Node};

/// How often the directory is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// Batches that wait for their reader.
const BATCHES: usize = 64;
/// Quorum errors in a row that are not yet a failure, where no flag says otherwise.
const TOLERATED: u64 = 2;

/// How long an address that goes may take to come back: its operator needs a second or two, and a watch may lag behind
/// by the eight seconds for which it waits for a member of etcd.
pub const GRACE: Duration = Duration::from_secs(10);

/// What a reader wants to know of other clusters.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `clustermesh-config`.
    pub directory: PathBuf,
    /// This cluster's name: its own file is passed over.
    pub cluster: String,
    /// This cluster's id.
    pub cluster_id: u32,
    /// How many clusters can be told apart: 255 or 511.
    pub max_connected: u32,
    /// How long a cluster may be away before its services go; zero for ever.
    pub cache_ttl: Duration,
    /// Nodes, addresses and identities are read; else only services.
    pub network: bool,
    /// Requests per second and cluster.
    pub qps: f64,
    /// For how long an address that goes is waited for, see [`GRACE`]; a node three times as long.
    pub grace: Duration,
}

/// What a cluster says.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A node is there, or has changed.
    Node(Box<Node>),
    /// A node is gone.
    NodeGone(String),
    /// An identity is there.
    Identity(NumericIdentity, Arc<Labels>),
    /// An identity is gone.
    IdentityGone(NumericIdentity),
    /// Somebody is behind a prefix.
    Ip(IpNet, Box<IpIdentityPair>),
    /// Nobody is.
    IpGone(IpNet),
    /// A shared service is there, or has changed.
    Service(Box<ClusterService>),
    /// A shared service, by namespace and name, is gone.
    ServiceGone(String, String),
}

/// Changes of one cluster, by its name, in order.
pub type News = (Arc<str>, Vec<Change>);

/// How a cluster is, as `cilia status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, shown one by one")]
pub struct Remote {
    /// Everything it has to say has been heard, and it is connected still.
    pub ready: bool,
    /// Everything it had to say was heard once.
    pub synced: bool,
    /// It can be reached.
    pub connected: bool,
    /// Its id; 0 before it is known.
    pub id: u32,
    /// Whether it is read through a kvstoremesh.
    pub cached: bool,
    /// Whether it says when a prefix is complete.
    pub canaries: bool,
    /// Whether it exports services (MCS API); nothing if it does not say.
    pub exports: Option<bool>,
    /// What is wrong, or what is being waited for.
    pub status: String,
    /// How often it was lost.
    pub failures: u64,
    /// When it was lost last, in seconds since 1970.
    pub last_failure: i64,
    /// How often its services were taken back because it was away for too long.
    pub revocations: u64,
    /// How many nodes, identities, addresses and services it has.
    pub counts: Counts,
}

/// How much a cluster has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes.
    pub nodes: usize,
    /// Identities.
    pub identities: usize,
    /// Addresses.
    pub ips: usize,
    /// Shared services.
    pub services: usize,
}

/// All other clusters; clones share them.
#[derive(Debug, Clone)]
pub struct Mesh(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: Settings,
    news: mpsc::Sender<News>,
    remotes: watch::Sender<BTreeMap<String, Remote>>,
    /// Which cluster has an id.
    ids: Mutex<HashMap<u32, String>>,
    /// The directory was looked at.
    looked: watch::Sender<bool>,
    metrics: OnceLock<SyncMetrics>,
    /// Who is told how requests to each cluster fare.
    limits: OfClusters,
    /// Quorum errors in a row that are not yet a failure.
    tolerated: AtomicU64,
}

impl Mesh {
    /// The other clusters, and what they say.
    pub fn new(settings: Settings) -> (Self, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(BATCHES);
        let mesh = Self(Arc::new(Shared {
            settings,
            news,
            remotes: watch::Sender::default(),
            ids: Mutex::default(),
            looked: watch::Sender::new(false),
            metrics: OnceLock::new(),
            limits: OfClusters::default(),
            tolerated: AtomicU64::new(TOLERATED),
        }));
        (mesh, receiver)
    }

    /// Counts in these from now on.
    pub fn count_in(&self, metrics: SyncMetrics) {
        // The first ones stay.
        let _ = self.0.metrics.set(metrics);
    }

    /// Tells how requests to each cluster's etcd fare from now on; the first who asks for it.
    pub fn tell_of_limits(&self, tell: impl Fn(&str, &Fared) + Send + Sync + 'static) {
        self.0.limits.set(Arc::new(tell));
    }

    fn listen(&self, name: &Arc<str>, client: &Client) {
        let Some(tell) = self.0.limits.get() else { return };
        let (tell, name) = (Arc::clone(tell), Arc::clone(name));
        client.tell_of_limits(move |fared| tell(&name, fared));
    }

    /// Takes this for `kvstore-max-consecutive-quorum-errors`.
    pub fn tolerate(&self, errors: u64) {
        self.0.tolerated.store(errors, Ordering::Relaxed);
    }

    fn tolerated(&self) -> u64 {
        self.0.tolerated.load(Ordering::Relaxed)
    }

    /// Every cluster by its name.
    pub fn remotes(&self) -> watch::Receiver<BTreeMap<String, Remote>> {
        self.0.remotes.subscribe()
    }

    /// Returns once every cluster has said everything, or after `limit`.
    pub async fn wait_ready(&self, limit: Duration) {
        let ready = async {
            let _ = self.0.looked.subscribe().wait_for(|looked| *looked).await;
            let all = |remotes: &BTreeMap<String, Remote>| remotes.values().all(|one| one.synced);
            let _ = self.remotes().wait_for(all).await;
        };
        if tokio::time::timeout(limit, ready).await.is_err() {
            tracing::warn!("going on without all of the other clusters");
        }
    }

    /// Follows the directory until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut running: BTreeMap<String, Running> = BTreeMap::new();
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let found = clusters(&self.0.settings.directory, &self.0.settings.cluster);
            let gone: Vec<String> =
                running.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
            for name in gone {
                if let Some(one) = running.remove(&name) {
                    tracing::info!(cluster = name, "cluster removed");
                    one.end(true).await;
                    self.0.remotes.send_modify(|remotes| _ = remotes.remove(&name));
                }
            }
            for (name, content) in found {
                match running.get(&name) {
                    Some(one) if one.content == content => {}
                    Some(one) => {
                        tracing::info!(cluster = name, "configuration changed");
                        one.changed.send_modify(|version| *version += 1);
                        if let Some(one) = running.get_mut(&name) {
                            one.content = content;
                        }
                    }
                    None => {
                        tracing::info!(cluster = name, "cluster found");
                        let one = self.begin(&name, content, &stop);
                        running.insert(name, one);
                    }
                }
            }
            self.0.looked.send_replace(true);
        }
    }

    fn begin(&self, name: &str, content: String, stop: &CancellationToken) -> Running {
        self.0.remotes.send_modify(|remotes| _ = remotes.insert(name.into(), Remote::default()));
        let (stop, drain) = (stop.child_token(), CancellationToken::new());
        let changed = watch::Sender::new(0);
        let cluster = cluster::Cluster::new(
            self.clone(),
            name,
            self.0.settings.directory.join(name),
            changed.subscribe(),
        );
        let task = tokio::spawn(cluster.run(stop.clone(), drain.clone()));
        Running { content, changed, stop, drain, task }
    }

    fn update(&self, name: &str, update: impl FnOnce(&mut Remote)) {
        self.0.remotes.send_modify(|remotes| {
            if let Some(remote) = remotes.get_mut(name) {
                update(remote);
            }
        });
    }

    /// Takes an id for a cluster; the name of the one that has it.
    fn take_id(&self, id: u32, name: &str) -> Result<(), String> {
        let mut ids = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        match ids.get(&id) {
            Some(other) if other != name => Err(other.clone()),
            _ => {
                ids.retain(|_, cluster| cluster != name);
                ids.insert(id, name.into());
                Ok(())
            }
        }
    }

    fn free_id(&self, name: &str) {
        let mut ids = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.retain(|_, cluster| cluster != name);
    }
}

/// A cluster that is read.
struct Running {
    content: String,
    changed: watch::Sender<u64>,
    stop: CancellationToken,
    drain: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn end(self, drain: bool) {
        if drain {
            self.drain.cancel();
        }
        self.stop.cancel();
        // It only fails if it panicked, and then it has been told.
        let _ = self.task.await;
    }
}

/// The clusters of a directory with their files' contents. Other files (certificates, say) lie there too.
fn clusters(directory: &Path, own: &str) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    let cluster = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?.to_owned();
        if name.starts_with('.') || name == own || !path.is_file() {
            return None;
        }
        let content = std::fs::read_to_string(&path).ok()?;
        content.contains("endpoints:").then_some((name, content))
    };
    entries.filter_map(cluster).collect()
}

#[cfg(test)]
mod tests {
    use super::clusters;

    #[test]
    fn files_of_clusters_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("east", "endpoints:\n- https://east:2379\n");
        write("own", "endpoints:\n- https://own:2379\n");
        write("common-etcd-client.key", "-----BEGIN PRIVATE KEY-----\n");
        std::fs::create_dir(folder.path().join("..data")).unwrap();
        let found = clusters(folder.path(), "own");
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), ["east"]);
        assert!(clusters(&folder.path().join("nowhere"), "own").is_empty());
    }
}
