//! The task that owns the rules and the maps.

mod audit;
mod intake;
mod restored;
mod settle;
mod stale;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::Datapath;
use cilia_policy::{Node, PolicyId, Repository};
use cilia_runtime::watch::Key;
use futures::{FutureExt as _, StreamExt as _};
use ipnet::IpNet;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::feed;
use super::realize::{self, Order, Plan, Realized};
use super::references::{self, Feed};
use super::{Enforcer, Error, GATE, PolicyView, Sources};
use crate::readiness::Readiness;
use stale::{Bearers, Stale};

/// How often whole maps are compared, against edits by others.
const COMPARE: Duration = Duration::from_mins(10);
/// When a map that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// How long a policy that was deleted counts. Each kind has a watch of its own, so what takes the place
/// of a policy of another kind may be heard of later, though it was there before: nothing must be open
/// between them.
const LEAVE: Duration = Duration::from_millis(300);
/// How many changes are taken together before maps are written.
const BATCH: usize = 4096;

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Worker {
    enforcer: Enforcer,
    datapath: Arc<Datapath>,
    repository: Repository,
    endpoints: BTreeMap<u16, Realized>,
    bearers: Bearers,
    stale: Stale,
    /// Whether policy is recorded, not enforced, where that is another than for all; in the kernel's
    /// map it outlives the agent.
    audit: BTreeMap<u16, bool>,
    known: BTreeMap<NumericIdentity, Arc<Labels>>,
    /// The changes of identities that are known.
    identities_version: Option<u64>,
    /// Notes and faults, by policy.
    notes: BTreeMap<PolicyId, Vec<String>>,
    faults: BTreeMap<PolicyId, String>,
    /// As [`super::View::changes`] has it.
    changes: [u64; 2],
    /// Policies that were deleted, and until when they count.
    leaving: BTreeMap<PolicyId, Instant>,
    /// Policies that can't be used and were not in force: they only close.
    closed: BTreeSet<PolicyId>,
    waiting: Vec<(u16, oneshot::Sender<Result<(), Error>>)>,
    plans: Vec<Plan>,
    prefixes: Vec<(IpNet, NumericIdentity)>,
    /// The ipcache has these prefixes and no others.
    prefixes_settled: bool,
    policies_changed: bool,
    policies_shown: Arc<[PolicyView]>,
    /// The revision for which the labels of local identities have been put together, and they.
    local_shown: (Option<u64>, Arc<BTreeMap<NumericIdentity, Arc<Labels>>>),
    /// Kinds of policy that have not been listed yet.
    unlisted: usize,
    identities_listed: bool,
    /// The cluster's addresses, and with them its port names, have been listed.
    addresses_listed: bool,
    /// The endpoints of a former agent are known.
    restored: bool,
    failed: bool,
    /// What the table of blocks holds; nothing before it was compared.
    blocks: Option<BTreeMap<(IpAddr, u8), u32>>,
    nodes: BTreeMap<String, Node>,
    /// What the ipcache was told of nodes' identities.
    node_identities: BTreeMap<IpAddr, NumericIdentity>,
    /// Addresses of the API server by the slice that they are in.
    api_slices: BTreeMap<Key, BTreeSet<IpAddr>>,
    services: references::Services,
    services_watched: bool,
    cluster_policies_watched: bool,
    /// Feeds that have turned out to be needed.
    more: Vec<Feed>,
    client: Client,
}

pub(super) async fn run(
    enforcer: Enforcer,
    mut inbox: mpsc::UnboundedReceiver<Order>,
    sources: Sources,
    datapath: Arc<Datapath>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let Sources { client, kinds, identities, nodes, ipcache } = sources;
    let (mut policies, unlisted) = feed::policies(&client, kinds, &enforcer.0.config);
    let mut worker = Worker::new(enforcer, datapath, client, unlisted);
    let mut nodes_changed = nodes.subscribe();
    worker.take_nodes(&nodes);
    let mut changed = identities.subscribe();
    let mut names = ipcache.named_ports();
    worker.repository.set_named_ports(names.borrow_and_update().clone());
    let mut listed = Box::pin(async { identities.wait_synced().await }.fuse());
    let mut addresses = Box::pin(async { ipcache.wait_listed().await }.fuse());
    let mut compare = tokio::time::interval(COMPARE);
    compare.tick().await;
    loop {
        worker.watch_what_is_needed();
        policies.extend(worker.more.drain(..));
        if worker.ready() {
            worker.settle(&ipcache).await;
            readiness.open(GATE);
        }
        let retry = tokio::time::sleep(RETRY);
        let leave = worker.leaving.values().min().copied();
        let left = tokio::time::sleep_until(leave.unwrap_or_else(Instant::now));
        let mut ordered = false;
        tokio::select! {
            () = stop.cancelled() => return,
            Some(news) = policies.next() => {
                worker.take(news);
                // A burst is compiled at once.
                for _ in 0..BATCH {
                    let Some(Some(news)) = policies.next().now_or_never() else { break };
                    worker.take(news);
                }
            }
            () = &mut listed => {
                worker.identities_listed = true;
                worker.take_identities(&identities);
            }
            () = &mut addresses => {
                worker.addresses_listed = true;
                worker.repository.set_named_ports(names.borrow_and_update().clone());
            }
            Ok(()) = changed.changed() => worker.take_identities(&identities),
            Ok(()) = nodes_changed.changed() => worker.take_nodes(&nodes),
            Ok(()) = names.changed() => {
                worker.repository.set_named_ports(names.borrow_and_update().clone());
            }
            Some(order) = inbox.recv() => {
                ordered = true;
                worker.order(order);
                while let Ok(order) = inbox.try_recv() {
                    worker.order(order);
                }
            }
            _ = compare.tick() => {
                worker.endpoints.values_mut().for_each(Realized::compare);
                worker.blocks = None;
            }
            () = left, if leave.is_some() => worker.let_go(Instant::now()),
            () = retry, if worker.failed => {}
        }
        // Orders say themselves whom they concern.
        if !ordered {
            worker.stale.everybody();
        }
    }
}

impl Worker {
    /// Knows nothing of the cluster yet, but what a former agent has left in the kernel. So many kinds of policy
    /// are to be listed.
    fn new(enforcer: Enforcer, datapath: Arc<Datapath>, client: Client, unlisted: usize) -> Self {
        let mut repository = Repository::new(enforcer.0.config.clone());
        restored::prefixes(&mut repository, &datapath);
        restored::nodes(&mut repository, &datapath);
        restored::blocks(&mut repository, &datapath);
        let audit = restored::audit(&datapath);
        Self {
            enforcer,
            datapath,
            repository,
            endpoints: BTreeMap::new(),
            bearers: Bearers::default(),
            stale: Stale::default(),
            audit,
            known: BTreeMap::new(),
            identities_version: None,
            notes: BTreeMap::new(),
            faults: BTreeMap::new(),
            changes: [0; 2],
            leaving: BTreeMap::new(),
            closed: BTreeSet::new(),
            waiting: Vec::new(),
            plans: Vec::new(),
            prefixes: Vec::new(),
            prefixes_settled: false,
            policies_changed: false,
            policies_shown: Arc::default(),
            local_shown: (None, Arc::default()),
            unlisted,
            identities_listed: false,
            addresses_listed: false,
            restored: false,
            failed: false,
            blocks: None,
            nodes: BTreeMap::new(),
            node_identities: BTreeMap::new(),
            api_slices: BTreeMap::new(),
            services: references::Services::default(),
            services_watched: false,
            cluster_policies_watched: false,
            more: Vec::new(),
            client,
        }
    }

    /// Whether what is known is all there is.
    fn ready(&self) -> bool {
        // This node is known only after all nodes have been listed.
        let nodes_listed = self.nodes.values().any(|node| node.own);
        let cluster_listed = self.identities_listed && self.addresses_listed && nodes_listed;
        self.unlisted == 0 && cluster_listed && self.restored
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Keep(id, subject, done) => {
                // Known before any map is written, so that its peers let it through from the first packet.
                self.stale.add(id);
                if self.repository.labels(subject.identity).is_none() {
                    self.repository.set_identity(subject.identity, subject.labels.clone());
                    self.stale.everybody();
                }
                self.bearers.more(subject.identity);
                if let Some(realized) = self.endpoints.get_mut(&id) {
                    let before = std::mem::replace(&mut realized.subject, subject).identity;
                    self.give_up(before);
                } else {
                    let audit = self.audit.get(&id).copied();
                    self.endpoints.insert(id, Realized::new(subject, audit));
                }
                self.waiting.extend(done.map(|done| (id, done)));
            }
            Order::Remove(id, done) => {
                if let Some(gone) = self.endpoints.remove(&id) {
                    self.give_up(gone.subject.identity);
                }
                self.audit.remove(&id);
                if let Err(error) = self.datapath.remove_policy(id) {
                    tracing::warn!(%error, endpoint = id, "policy map not removed");
                }
                // The one who asked may be gone: nothing to tell then.
                let _ = done.send(Ok(()));
            }
            Order::Audit(whose, audit, done) => {
                let set = match whose {
                    Some(id) => self.set_audit(id, audit),
                    None => self.set_audit_of_all(audit),
                };
                self.show();
                // The one who asked may be gone: nothing to tell then.
                let _ = done.send(set);
            }
            Order::Ask(realize::Question(question)) => {
                question(&mut self.repository);
                // What was computed for the answer's sake alone must leave no trace in any map.
                self.repository.retain_subjects(|identity| self.bearers.has(identity));
                self.stale.everybody();
            }
            Order::Restored => {
                self.restored = true;
                self.stale.everybody();
            }
        }
    }

    /// One local endpoint less has an identity. With the last one it is forgotten, if the cluster has given it up.
    fn give_up(&mut self, identity: NumericIdentity) {
        let stray = identity.reserved_labels().is_none() && !self.known.contains_key(&identity);
        if self.bearers.less(identity) && stray {
            self.repository.remove_identity(identity);
            self.stale.everybody();
        }
    }
}
