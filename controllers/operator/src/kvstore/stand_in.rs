//! Stands in for agents that are silent, so that other clusters don't lose their nodes and pods.
//!
//! Within the cluster agents ask Kubernetes whether a node lives whose keys are gone; other clusters only see the
//! kvstore. What is put there hangs on a lease of its own, see [`cilia_kvstore::is_stand_in`]: the next leader finds
//! it, and an agent that is back writes over it.

mod decide;
mod kubernetes;
#[cfg(test)]
mod live_tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_kvstore::value::encode;
use cilia_kvstore::{Client, Event, Watch, keys, stand_ins_of};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, PartialObjectMeta, Store, reflect, watch};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::watch as flag;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::wiring::Context;
use decide::StandIns;
use kubernetes::{Endpoints, Pod, pods};

const WORKERS: usize = 2;

/// What there is to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    /// Look at a node.
    Node(Arc<str>),
    /// Keep the lease alive as long as anything hangs on it.
    Lease,
}

/// What is kept of endpoints, and how it changes.
type Pods = Box<[Pod]>;
type Followed = (Store<Pods>, BoxStream<'static, Change<Pods>>);

struct StandIn {
    context: Context,
    client: Client,
    cluster_id: u32,
    core: Mutex<StandIns>,
    lanes: Lanes<Task>,
    /// Somebody is silent: endpoints are asked for.
    silent: flag::Sender<bool>,
    /// Everything that there was at the start is known.
    known: CancellationToken,
}

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let config = &context.config;
    if !config.bool("synchronize-k8s-nodes") || !config.bool("enable-k8s") {
        return;
    }
    let retry = Retry { cap: Duration::from_secs(10), max: u32::MAX, ..Retry::default() };
    let lanes = vec![Lane::new("kvstore-stand-ins")];
    let cluster = config.string("cluster-name");
    let cluster_id = u32::try_from(config.uint("cluster-id")).unwrap_or_default();
    let own = Arc::new(StandIn {
        client: client.clone(),
        cluster_id,
        core: Mutex::new(StandIns::new(cluster, cluster_id)),
        lanes: Lanes::new(lanes, retry, None, &context.workqueues),
        silent: flag::Sender::new(false),
        known: CancellationToken::new(),
        context: context.clone(),
    });
    let work = async {
        if context.stop.run_until_cancelled(own.known.cancelled()).await.is_some() {
            let handle = async |job: Job<Task>| own.perform(job.key).await;
            own.lanes.run(WORKERS, &context.stop, handle).await;
        }
    };
    let of_nodes = keys::nodes(cluster);
    tokio::select! {
        () = work => {}
        () = own.follow(&of_nodes) => {}
    }
}

impl StandIn {
    async fn perform(&self, task: Task) -> anyhow::Result<Next> {
        let Task::Node(name) = task else {
            let orphans = {
                let core = self.core();
                if !core.stands_in() {
                    return Ok(Next::Done);
                }
                core.orphans()
            };
            let lease = self.client.keep_stand_ins(self.cluster_id).await?;
            self.client.swap(lease, orphans).await?;
            return Ok(Next::After(self.client.stand_in_beat()));
        };
        let (decision, silent) = {
            let mut core = self.core();
            let decision = core.decide(&name, Instant::now());
            (decision, !core.silent().is_empty())
        };
        if decision.unheard {
            self.learn(&name).await?;
        }
        self.silent.send_if_modified(|known| std::mem::replace(known, silent) != silent);
        if !decision.swaps.is_empty() {
            let lease = self.client.keep_stand_ins(self.cluster_id).await?;
            let back = decision.swaps.iter().filter(|swap| swap.value.is_none()).count();
            let (total, node) = (decision.swaps.len(), &*name);
            let overtaken = self.client.swap(lease, decision.swaps).await?;
            if back < total {
                let keys = total - back;
                tracing::warn!(node, keys, overtaken, "agent is silent, its keys are put back");
            } else {
                tracing::info!(node, keys = back, overtaken, "keys of a silent agent taken back");
            }
            self.lanes.add_after(0, Task::Lease, self.client.stand_in_beat());
        }
        Ok(decision.again.map_or(Next::Done, |again| {
            Next::After(again.saturating_duration_since(Instant::now()))
        }))
    }

    /// Has Kubernetes say of a node what its agent has not said.
    async fn learn(&self, name: &Arc<str>) -> anyhow::Result<()> {
        let nodes: Api<CiliumNode> = Api::all(self.context.client.clone());
        let of_name = ListParams::default().fields(&format!("metadata.name={name}"));
        if let Some(node) = nodes.list(&of_name).await?.items.first() {
            let cluster = self.context.config.string("cluster-name");
            let value = encode(&kubernetes::node(node, cluster, self.cluster_id));
            self.core().learned(name, value, Instant::now());
            self.look(name);
        }
        Ok(())
    }

    /// Tells the core what happens, and asks for a look where something may follow from it.
    async fn follow(&self, of_nodes: &str) {
        let ips = keys::ips();
        let nodes: Api<PartialObjectMeta<CiliumNode>> = Api::all(self.context.client.clone());
        let (_, kubernetes) = reflect(watch(nodes), |_| Some(()));
        let mut kubernetes = std::pin::pin!(kubernetes);
        let mut node_watch = self.client.watch(of_nodes);
        // The nodes first: by them it is known whose an address is.
        let mut ip_watch: Option<Watch> = None;
        let mut endpoints: Option<Followed> = None;
        let mut silent = self.silent.subscribe();
        let (mut synced, mut listed) = (false, false);
        loop {
            tokio::select! {
                change = kubernetes.next() => match change {
                    None => return,
                    Some(Change::Synced) => synced = true,
                    Some(Change::Object { key, new, .. }) => {
                        self.core().lives(&key.name, new.is_some(), Instant::now());
                        self.look(&key.name);
                    }
                },
                events = node_watch.next() => {
                    let Some(events) = events else { return };
                    self.nodes(of_nodes, &events);
                    if events.contains(&Event::Listed) {
                        ip_watch = Some(self.client.watch(&ips));
                    }
                }
                events = next(&mut ip_watch) => {
                    let Some(events) = events else { return };
                    self.addresses(&ips, &events);
                    listed |= events.contains(&Event::Listed);
                }
                Ok(()) = silent.changed() => {
                    endpoints = silent.borrow_and_update().then(|| self.endpoints());
                    self.core().endpoints(None);
                }
                Some(change) = change_of(&mut endpoints) => {
                    let all = endpoints.as_ref().map(|(all, _)| all);
                    self.endpoint(change, all);
                }
            }
            if synced && listed && !self.known.is_cancelled() {
                self.lanes.add(0, Task::Lease);
                self.known.cancel();
            }
        }
    }

    fn nodes(&self, prefix: &str, events: &[Event]) {
        for event in events {
            let name = match event {
                Event::Put(kv) => {
                    let key = String::from_utf8_lossy(&kv.key);
                    let Some(name) = key.strip_prefix(prefix) else { continue };
                    self.core().node(name, kv, Instant::now());
                    self.keep_if(kv.lease);
                    name.to_owned()
                }
                Event::Deleted(key) => {
                    let Some(name) = key.strip_prefix(prefix) else { continue };
                    self.core().node_gone(name, Instant::now());
                    name.to_owned()
                }
                Event::Listed | Event::Progress(_) => continue,
            };
            self.look(&name);
        }
    }

    fn addresses(&self, prefix: &str, events: &[Event]) {
        for event in events {
            match event {
                Event::Put(kv) => {
                    let key = String::from_utf8_lossy(&kv.key);
                    let Some(end) = key.strip_prefix(prefix) else { continue };
                    let nodes = self.core().address(end, kv);
                    self.keep_if(kv.lease);
                    self.look_at(&nodes);
                }
                Event::Deleted(key) => {
                    let Some(end) = key.strip_prefix(prefix) else { continue };
                    let node = self.core().address_gone(end, Instant::now());
                    self.look_at(node.as_slice());
                }
                Event::Listed | Event::Progress(_) => {}
            }
        }
    }

    /// What hangs on the lease of stand-ins keeps it alive, whoever put it there.
    fn keep_if(&self, lease: i64) {
        if lease == stand_ins_of(self.cluster_id) {
            self.lanes.add_after(0, Task::Lease, self.client.stand_in_beat());
        }
    }

    fn look_at(&self, nodes: &[Arc<str>]) {
        for node in nodes {
            self.look(node);
        }
    }

    fn look(&self, node: &str) {
        self.lanes.add(0, Task::Node(node.into()));
    }

    fn endpoints(&self) -> Followed {
        let all: Api<CiliumEndpoint> = Api::all(self.context.client.clone());
        let (store, changes) = reflect(watch(all), |endpoint| Some(pods(&endpoint)));
        (store, changes.boxed())
    }

    fn endpoint(&self, change: Change<Pods>, all: Option<&Store<Pods>>) {
        let nodes: Vec<_> = match change {
            Change::Object { old, new, .. } => {
                let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
                self.core().endpoint(&old, &new).into_iter().collect()
            }
            Change::Synced => {
                let mut count = Endpoints::default();
                for (_, pods) in all.iter().flat_map(|all| all.all()) {
                    count.add(&pods);
                }
                let mut core = self.core();
                core.endpoints(Some(count));
                core.silent()
            }
        };
        self.look_at(&nodes);
    }

    fn core(&self) -> MutexGuard<'_, StandIns> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a watch says next, once there is one.
async fn next(watch: &mut Option<Watch>) -> Option<Vec<Event>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// How endpoints change, while they are followed.
async fn change_of(endpoints: &mut Option<Followed>) -> Option<Change<Pods>> {
    match endpoints {
        Some((_, changes)) => changes.next().await,
        None => std::future::pending().await,
    }
}
