//! Watches the sources of the ipcache and writes the map.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cilia_loader::{Datapath, IpCache, RemoteEndpoint, converge};
use futures::future::OptionFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cluster::{News, cluster};
use super::table::{Origin, Prefix, Said, Touched};
use super::{Cache, Fed, GATE, Shared, Sources, source};
use crate::readiness::Readiness;

/// How often the whole map is compared, against edits by others.
const COMPARE: Duration = Duration::from_mins(10);
/// How long after a failed write it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How many events are taken together before the map is written.
const BATCH: usize = 4096;

struct Writer {
    cache: Cache,
    map: cilia_loader::Table<IpCache>,
    nodes: crate::node::Nodes,
    own: Vec<IpAddr>,
    /// The changes of the node's own endpoints that the table knows.
    endpoints_version: Option<u64>,
    /// Prefixes that the map may be wrong about.
    pending: BTreeSet<Prefix>,
    /// Those of which it is, because they could not be written; and when that is tried again.
    failed: BTreeSet<Prefix>,
    retry: Option<Instant>,
    waiting: Vec<oneshot::Sender<bool>>,
    /// Sources that have not told yet everything that there was at the start.
    unlisted: u8,
    /// Pods name their ports in another way than was told last.
    names_changed: bool,
    settled: bool,
}

pub(super) async fn run(
    cache: Cache,
    sources: Sources,
    datapath: Arc<Datapath>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let Some(mut inbox) = cache.0.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    else {
        return;
    };
    let Sources { client, slices, nodes, endpoints, kubernetes, mut fed } = sources;
    let mut nodes_changed = nodes.subscribe();
    let mut identities_changed = cache.0.nodes.subscribe();
    let mut endpoints_changed = endpoints.subscribe();
    let mut writer = Writer {
        cache,
        map: datapath.ipcache(),
        own: Vec::new(),
        nodes,
        endpoints_version: None,
        pending: BTreeSet::new(),
        failed: BTreeSet::new(),
        retry: None,
        waiting: Vec::new(),
        unlisted: u8::from(kubernetes) + u8::from(fed.is_some()),
        names_changed: false,
        settled: false,
    };
    let mut cluster = if kubernetes {
        cluster(writer.cache.clone(), client, slices)
    } else {
        Box::pin(futures::stream::pending())
    };
    let mut compare = tokio::time::interval(COMPARE);
    compare.tick().await;
    writer.take_former_prefixes();
    writer.take_nodes();
    writer.take_local(&endpoints);
    loop {
        writer.write(&readiness);
        let retry = OptionFuture::from(writer.retry.map(tokio::time::sleep_until));
        tokio::select! {
            () = stop.cancelled() => return,
            Some(news) = cluster.next() => {
                writer.take_cluster(news);
                // A burst is written at once.
                for _ in 0..BATCH {
                    let Some(Some(news)) = cluster.next().now_or_never() else { break };
                    writer.take_cluster(news);
                }
            }
            Some(batch) = next(&mut fed) => {
                for word in batch {
                    match source::fed(word) {
                        None => writer.unlisted = writer.unlisted.saturating_sub(1),
                        Some((name, said)) => writer.take(&Origin::Cluster(name), said),
                    }
                }
            }
            Ok(()) = nodes_changed.changed() => writer.take_nodes(),
            Ok(()) = identities_changed.changed() => writer.take_nodes(),
            Ok(()) = endpoints_changed.changed() => writer.take_local(&endpoints),
            Some(update) = inbox.recv() => {
                writer.take(&Origin::Policy, source::policy(&update.prefixes));
                writer.waiting.push(update.done);
            }
            _ = compare.tick() => writer.settled = false,
            Some(()) = retry => {
                writer.retry = None;
                writer.pending.append(&mut writer.failed);
            }
        }
    }
}

/// What is told from outside of Kubernetes; never, where nobody tells anything.
async fn next(fed: &mut Option<mpsc::Receiver<Vec<Fed>>>) -> Option<Vec<Fed>> {
    match fed {
        Some(fed) => fed.recv().await,
        None => std::future::pending().await,
    }
}

impl Writer {
    fn take(&mut self, origin: &Origin, said: Said) {
        let cache = self.cache.clone();
        let Touched { prefixes, names, unlisted } = cache.table(|table| table.set(origin, said));
        self.pending.extend(prefixes);
        for address in unlisted {
            // Before pods are looked after there is nobody to tell.
            let _ = self.cache.0.unlisted.send(address);
        }
        self.names_changed |= names;
    }

    fn take_cluster(&mut self, news: News) {
        match news {
            None => self.unlisted = self.unlisted.saturating_sub(1),
            Some((name, said)) => self.take(&Origin::Cluster(name), said),
        }
    }

    /// What a former agent's policies named stays until this one's have been heard.
    fn take_former_prefixes(&mut self) {
        match self.map.entries() {
            Ok(entries) => {
                let former = source::former_nodes(&entries);
                self.cache.0.nodes.send_if_modified(|nodes| {
                    let unknown = nodes.is_empty() && !former.is_empty();
                    if unknown {
                        *nodes = Arc::new(former);
                    }
                    unknown
                });
                self.take(&Origin::Policy, source::former_policy(entries));
            }
            Err(error) => tracing::warn!(%error, "prefixes of policies not restored"),
        }
    }

    fn take_nodes(&mut self) {
        let own = self.nodes.local();
        let all = self.nodes.list();
        let identities = self.cache.0.nodes.borrow().clone();
        self.take(&Origin::Nodes, source::nodes(own.as_deref(), &all, &identities));
        let addresses: Vec<IpAddr> = own.iter().flat_map(|own| own.addresses()).collect();
        if addresses != self.own {
            self.own = addresses;
            self.settled = false;
        }
    }

    fn take_local(&mut self, endpoints: &crate::endpoint::Endpoints) {
        let (version, changed) = endpoints.changes_since(self.endpoints_version);
        self.endpoints_version = Some(version);
        let changed = changed.unwrap_or_else(|| {
            let mut now = endpoints.list();
            now.sort_unstable_by_key(|endpoint| endpoint.sequence);
            let known = self.cache.table(|table| table.local());
            let gone = known.into_iter().filter(|id| now.iter().all(|endpoint| endpoint.id != *id));
            let gone: Vec<_> = gone.map(|id| (id, None)).collect();
            gone.into_iter()
                .chain(now.into_iter().map(|endpoint| (endpoint.id, Some(endpoint))))
                .collect()
        });
        for (id, endpoint) in changed {
            self.take(&Origin::Local(id), source::local(endpoint.as_deref()));
        }
    }

    /// What the map should say: nothing of this node is behind a tunnel.
    fn desired(&self, value: RemoteEndpoint) -> RemoteEndpoint {
        let tunnel = value.tunnel.filter(|node| !self.own.contains(node));
        RemoteEndpoint { tunnel, ..value }
    }

    /// Tells how pods name their ports, and then whether all of them have been heard of.
    fn tell_names(&mut self) {
        let Shared { names, listed, .. } = &*self.cache.0;
        if std::mem::take(&mut self.names_changed) {
            names.send_replace(Arc::new(self.cache.table(|table| table.named_ports())));
        }
        let synced = self.unlisted == 0;
        listed.send_if_modified(|listed| std::mem::replace(listed, synced) != synced);
    }

    /// Makes the map right as far as that is known. What the kernel has just refused, it is not asked for anew with
    /// each event.
    fn write(&mut self, readiness: &Readiness) {
        self.tell_names();
        // This node is known only after all nodes have been listed.
        let complete = self.unlisted == 0 && self.nodes.local().is_some();
        if complete && !self.settled && self.retry.is_none() {
            let desired = self.cache.table(|table| table.desired());
            let desired: BTreeMap<Prefix, RemoteEndpoint> =
                desired.into_iter().map(|(prefix, value)| (prefix, self.desired(value))).collect();
            match converge(&self.map, &desired) {
                Ok(changes) => {
                    tracing::info!(entries = desired.len(), ?changes, "ipcache compared");
                    self.settled = true;
                    self.pending.clear();
                    self.failed.clear();
                    readiness.open(GATE);
                }
                Err(error) => {
                    tracing::error!(%error, "ipcache not written");
                    readiness.close(GATE, error.to_string());
                    self.retry = Some(Instant::now() + RETRY);
                    self.pending.extend(desired.into_keys());
                }
            }
        }
        let (mut gone, mut failed) = (Vec::new(), BTreeSet::new());
        for prefix in std::mem::take(&mut self.pending) {
            self.failed.remove(&prefix);
            let Some(value) = self.cache.table(|table| table.get(&prefix)) else {
                gone.push(prefix);
                continue;
            };
            if let Err(error) = self.map.upsert(&prefix, &self.desired(value)) {
                tracing::error!(%error, address = %prefix.0, "ipcache entry not written");
                failed.insert(prefix);
            }
        }
        // Before everything is listed, the comparison at the end of the list removes what is gone.
        for prefix in gone.into_iter().filter(|_| self.settled) {
            if let Err(error) = self.map.remove(&prefix) {
                tracing::error!(%error, address = %prefix.0, "ipcache entry not removed");
                failed.insert(prefix);
            }
        }
        if !failed.is_empty() {
            self.retry.get_or_insert_with(|| Instant::now() + RETRY);
            self.failed.append(&mut failed);
        }
        for waiting in self.waiting.drain(..) {
            // The one who asked may be gone: nothing to tell then.
            let _ = waiting.send(self.settled && self.failed.is_empty());
        }
    }
}
