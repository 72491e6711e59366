//! This node's part in the kvstore: who it is, who is behind its addresses, and which identities it uses.
//!
//! Everything that is written follows from tables that the agent has anyway: its endpoints and its
//! node. In mode `kvstore` the addresses of all other nodes are read here, too; in the others they
//! come from Kubernetes, and the kvstore is only written.

mod addresses;
mod claims;
mod publish;
mod silence;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilia_crds::NumericIdentity;
use cilia_kvstore::value::IpIdentityPair;
use cilia_kvstore::{
    Allocator, Client, Fared, Health, Mirror, Options, SyncMetrics, Watchdog, keys,
};
use cilia_loader::RemoteEndpoint;
use cilia_runtime::config::Config as Flags;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;
use crate::identity::{Backend, Identities};
use crate::ipcache::{Fed, protocol};
use crate::node::{LocalNode, Nodes, boot_id};
use claims::Claims;

/// How often own addresses are compared with what is there.
const IP_RESYNC: Duration = Duration::from_mins(5);
/// How often the own node is.
const NODE_RESYNC: Duration = Duration::from_mins(30);
/// How long an identity is kept whose endpoint is not there: it may be on its way.
const GRACE: Duration = Duration::from_mins(5);
/// Batches for the ipcache that wait to be taken.
pub const BATCHES: usize = 64;
const LEASE_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(25)..=Duration::from_hours(24);

/// The shortest `identity-allocation-sync-interval`.
const SHORTEST_SYNC: Duration = Duration::from_secs(1);

/// Where identities are (`identity-allocation-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In Kubernetes.
    Kubernetes,
    /// In the kvstore; so are addresses.
    Kvstore,
    /// In both; Kubernetes is read.
    BothReadKubernetes,
    /// In both; the kvstore's identities are read.
    BothReadKvstore,
}

/// What the flags say of the kvstore.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where identities are.
    pub mode: Mode,
    /// How to reach the kvstore, if there is one.
    client: Option<cilia_kvstore::Settings>,
    /// Quorum errors in a row that are not yet a failure.
    tolerated: u64,
    /// How often the keys of identities are compared with what should be there.
    sync: Duration,
    cluster: String,
    cluster_id: u32,
}

impl Settings {
    /// Returns once there is a file that says where the kvstore is, if that is how it is said.
    pub async fn wait_for_file(&self) {
        if let Some(client) = &self.client {
            client.options.wait_for_file().await;
        }
    }

    /// Reads the flags.
    pub fn read(flags: &Flags) -> anyhow::Result<Self> {
        let modes = ["crd", "kvstore", "doublewrite-readkvstore", "doublewrite-readcrd"];
        let mode = match flags.one_of("identity-allocation-mode", &modes)? {
            "kvstore" => Mode::Kvstore,
            "doublewrite-readkvstore" => Mode::BothReadKvstore,
            "doublewrite-readcrd" => Mode::BothReadKubernetes,
            _ => Mode::Kubernetes,
        };
        let on = flags.one_of("kvstore", &["", "etcd"])? == "etcd";
        if !on && mode != Mode::Kubernetes {
            let mode = flags.string("identity-allocation-mode");
            let allowed = format!("etcd when identity-allocation-mode is {mode}");
            return Err(flags.reject("kvstore", allowed).into());
        }
        let lease_ttl = flags.duration("kvstore-lease-ttl");
        if !LEASE_TTL.contains(&lease_ttl) {
            return Err(flags.reject("kvstore-lease-ttl", "25s to 24h").into());
        }
        let sync = flags.duration("identity-allocation-sync-interval");
        if sync < SHORTEST_SYNC {
            return Err(flags.reject("identity-allocation-sync-interval", "1s or more").into());
        }
        let client = if on {
            let options = Options::parse(flags.map("kvstore-opt"))?;
            let cluster = flags.string("cluster-name").to_owned();
            let settings = cilia_kvstore::Settings::new(options);
            Some(cilia_kvstore::Settings { lease_ttl, cluster, ..settings })
        } else {
            None
        };
        Ok(Self {
            mode,
            client,
            tolerated: flags.uint("kvstore-max-consecutive-quorum-errors"),
            sync,
            cluster: flags.string("cluster-name").to_owned(),
            cluster_id: u32::try_from(flags.uint("cluster-id")).unwrap_or_default(),
        })
    }
}

/// The kvstore of this node's cluster; clones share it.
#[derive(Debug, Clone)]
pub struct Kvstore {
    client: Client,
    settings: Settings,
    allocator: Allocator,
    claims: Arc<Claims>,
    ips: Mirror,
    nodes: Mirror,
    watchdog: Watchdog,
    listed: Arc<watch::Sender<bool>>,
    /// What a former agent knew of pods' addresses, until everything is listed.
    former: Arc<Mutex<Vec<(IpAddr, RemoteEndpoint)>>>,
}

impl Kvstore {
    /// The kvstore, if there is one. `local` is this node.
    pub fn new(
        settings: &Settings,
        space: cilia_identity::Space,
        local: &LocalNode,
        workqueues: &Workqueues,
        metrics: &Metrics,
    ) -> Result<Option<Self>, cilia_kvstore::Error> {
        let Some(client) = &settings.client else { return Ok(None) };
        let client = Client::new(client, Some(metrics))?;
        let suffix = local.address().map_or_else(|| local.name.clone(), |ip| ip.to_string());
        Ok(Some(Self {
            allocator: Allocator::comparing_every(
                settings.sync,
                client.clone(),
                space,
                suffix,
                workqueues,
            ),
            claims: Arc::new(Claims::new(workqueues)),
            ips: Mirror::new(client.clone(), "kvstore-ips", IP_RESYNC, workqueues),
            nodes: Mirror::new(client.clone(), "kvstore-nodes", NODE_RESYNC, workqueues),
            watchdog: Watchdog::new(client.clone(), settings.tolerated),
            listed: Arc::new(watch::Sender::new(!Self::feeds(settings))),
            former: Arc::default(),
            settings: settings.clone(),
            client,
        }))
    }

    /// What is counted of keys, for readers of other clusters.
    pub fn sync_metrics(&self) -> SyncMetrics {
        self.client.sync_metrics()
    }

    /// Whether the cluster's addresses are read from the kvstore.
    pub fn feeds(settings: &Settings) -> bool {
        settings.mode == Mode::Kvstore
    }

    /// Where identities are; nothing for Kubernetes alone.
    pub fn backend(&self) -> Option<Backend> {
        let allocator = self.allocator.clone();
        match self.settings.mode {
            Mode::Kubernetes => None,
            Mode::Kvstore => Some(Backend::Kvstore(allocator)),
            Mode::BothReadKubernetes => Some(Backend::BothReadKubernetes(allocator)),
            Mode::BothReadKvstore => Some(Backend::BothReadKvstore(allocator)),
        }
    }

    /// Tells how requests fare that its limits let through.
    pub fn tell_of_limits(&self, tell: impl Fn(&Fared) + Send + Sync + 'static) {
        self.client.tell_of_limits(tell);
    }

    /// Whether it can be relied on.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.watchdog.health()
    }

    /// Returns once every address that there was at the start has been told.
    pub async fn wait_listed(&self) {
        // The sender lives as long as `self`.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Writes and reads until `stop`.
    pub async fn run(
        self,
        identities: Identities,
        endpoints: Endpoints,
        nodes: Nodes,
        feed: Option<mpsc::Sender<Vec<Fed>>>,
        stop: CancellationToken,
    ) {
        tokio::select! {
            () = self.ips.run(stop.clone()) => {}
            () = self.nodes.run(stop.clone()) => {}
            () = self.watchdog.run(stop.clone()) => {}
            () = self.publish(&endpoints, &nodes) => {}
            () = self.claims.run(&identities, &endpoints, &stop) => {}
            () = self.follow(&nodes, feed) => {}
        }
    }

    async fn publish(&self, endpoints: &Endpoints, nodes: &Nodes) {
        let (mut endpoint, mut node) = (endpoints.subscribe(), nodes.subscribe());
        // What is used only becomes known as endpoints come: identities are given up later.
        let mut sweep = tokio::time::interval(GRACE);
        sweep.tick().await;
        let mut told: BTreeSet<String> = BTreeSet::new();
        let boot_id = boot_id();
        loop {
            endpoint.mark_unchanged();
            node.mark_unchanged();
            if let Some(local) = nodes.local() {
                let own = nodes.list().into_iter().find(|node| node.name == local.name);
                let Settings { cluster, cluster_id, .. } = &self.settings;
                let value = publish::node(&local, own.as_deref(), (cluster, *cluster_id), &boot_id);
                self.nodes
                    .set(keys::node(cluster, &local.name), cilia_kvstore::value::encode(&value));
                let list = endpoints.list();
                let pairs =
                    list.iter().flat_map(|endpoint| publish::ips(endpoint, local.address()));
                let mut now = BTreeSet::new();
                for (prefix, pair) in pairs {
                    let key = keys::ip(prefix);
                    self.ips.set(key.clone(), cilia_kvstore::value::encode(&pair));
                    now.insert(key);
                }
                for gone in told.difference(&now) {
                    self.ips.remove(gone);
                }
                told = now;
                let used: BTreeSet<NumericIdentity> =
                    list.iter().filter_map(|endpoint| endpoint.identity).collect();
                self.allocator.keep(&used, GRACE);
                if self.settings.mode != Mode::Kubernetes {
                    let used = self.allocator.of_space(&used);
                    self.claims.look(&used, &self.allocator.unclaimed(&used));
                }
            }
            tokio::select! {
                Ok(()) = endpoint.changed() => {}
                Ok(()) = node.changed() => {}
                _ = sweep.tick() => {}
                else => return,
            }
        }
    }

    /// Tells the ipcache of every address, where it is to know, and repairs own keys.
    async fn follow(&self, nodes: &Nodes, feed: Option<mpsc::Sender<Vec<Fed>>>) {
        if let Some(feed) = feed.filter(|_| Self::feeds(&self.settings)) {
            return self.feed(nodes, feed).await;
        }
        let own_node = async {
            let local = nodes.wait_local().await;
            let own = keys::node(&self.settings.cluster, &local.name);
            self.nodes.repair(self.client.watch(&own)).await;
        };
        tokio::select! {
            () = self.repair_ips() => {}
            () = own_node => {}
        }
    }
}

/// What a value means to the ipcache.
pub fn entry(name: Arc<str>, net: ipnet::IpNet, pair: &IpIdentityPair) -> Fed {
    let port = |port: &cilia_kvstore::value::NamedPort| {
        let proto = protocol(&port.protocol)?;
        Some(((port.name.to_ascii_lowercase().into(), proto), port.port))
    };
    Fed::Entry {
        name,
        prefix: (net.network(), net.prefix_len()),
        endpoint: RemoteEndpoint { identity: pair.id, tunnel: pair.tunnel(), key: pair.key },
        ports: pair.named_ports.iter().filter_map(port).collect(),
    }
}

#[cfg(test)]
#[path = "kvstore/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "kvstore/agreement_tests.rs"]
mod agreement_tests;
