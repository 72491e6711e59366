//! The task that owns the rules and the maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::{Datapath, EndpointOptions, converge};
use cilia_policy::{CIDR_SCOPE, Node, PolicyId, Repository};
use cilia_runtime::watch::Key;
use futures::{FutureExt as _, StreamExt as _};
use ipnet::IpNet;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::feed::{self, News};
use super::realize::{self, Order, Plan, Realized};
use super::references::{self, Feed, Reference};
use super::{Enforcer, Error, GATE, PolicyView, Sources, View};
use crate::readiness::Readiness;

/// How often whole maps are compared, against edits by others.
const COMPARE: Duration = Duration::from_mins(10);
/// When a map that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// How many changes are taken together before maps are written.
const BATCH: usize = 4096;

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Worker {
    enforcer: Enforcer,
    datapath: Arc<Datapath>,
    repository: Repository,
    endpoints: BTreeMap<u16, Realized>,
    /// Endpoints whose policy is recorded, not enforced; they outlive the agent in the kernel's map.
    audited: BTreeSet<u16>,
    known: BTreeMap<NumericIdentity, Arc<Labels>>,
    /// The changes of identities that are known.
    identities_version: Option<u64>,
    /// Notes and faults, by policy.
    notes: BTreeMap<PolicyId, Vec<String>>,
    faults: BTreeMap<PolicyId, String>,
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
    let mut repository = Repository::new(enforcer.0.config.clone());
    restore_prefixes(&mut repository, &datapath);
    restore_blocks(&mut repository, &datapath);
    let audited = audited(&datapath);
    let mut worker = Worker {
        enforcer,
        datapath,
        repository,
        endpoints: BTreeMap::new(),
        audited,
        known: BTreeMap::new(),
        identities_version: None,
        notes: BTreeMap::new(),
        faults: BTreeMap::new(),
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
    };
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
                worker.order(order);
                while let Ok(order) = inbox.try_recv() {
                    worker.order(order);
                }
            }
            _ = compare.tick() => {
                worker.endpoints.values_mut().for_each(Realized::compare);
                worker.blocks = None;
            }
            () = retry, if worker.failed => {}
        }
    }
}

/// Numbers of prefixes outlive the agent in the ipcache map.
fn restore_prefixes(repository: &mut Repository, datapath: &Datapath) {
    let entries = match datapath.ipcache().entries() {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "numbers of prefixes not restored");
            return;
        }
    };
    for ((address, length), entry) in
        entries.into_iter().filter(|(_, entry)| entry.identity & !0x00ff_ffff == CIDR_SCOPE)
    {
        if let Ok(prefix) = IpNet::new(address, length) {
            repository.restore_prefix(prefix, NumericIdentity(entry.identity));
        }
    }
}

/// Numbers of blocks outlive the agent in the table of blocks.
fn restore_blocks(repository: &mut Repository, datapath: &Datapath) {
    let entries = datapath.blocks().entries().unwrap_or_else(|error| {
        tracing::warn!(%error, "numbers of blocks not restored");
        Vec::new()
    });
    for ((address, length), block) in entries {
        if let Ok(prefix) = IpNet::new(address, length) {
            repository.restore_block(prefix, NumericIdentity(block));
        }
    }
}

/// The endpoints of a former agent whose policy is recorded only.
fn audited(datapath: &Datapath) -> BTreeSet<u16> {
    let options = datapath.options().entries().unwrap_or_else(|error| {
        tracing::warn!(%error, "options of endpoints not restored");
        Vec::new()
    });
    options.into_iter().filter(|(_, options)| options.policy_audit).map(|(id, _)| id).collect()
}

impl Worker {
    /// Whether what is known is all there is.
    fn ready(&self) -> bool {
        self.unlisted == 0 && self.identities_listed && self.addresses_listed && self.restored
    }

    fn take(&mut self, news: News) {
        self.policies_changed = true;
        match news {
            News::Policy(id, rules, notes) => {
                for note in &notes {
                    tracing::warn!(policy = %id, %note, "policy in part without effect");
                }
                self.faults.remove(&id);
                self.closed.remove(&id);
                self.notes.insert(id.clone(), notes.iter().map(ToString::to_string).collect());
                if self.repository.set_policy(id.clone(), rules) {
                    tracing::info!(policy = %id, revision = self.repository.revision(), "policy changed");
                }
            }
            News::Fault(id, fault, closed) => {
                tracing::warn!(policy = %id, %fault, "policy can't be used");
                self.faults.insert(id.clone(), fault);
                // What was in force stays in force: a typing mistake must not open what was closed.
                let in_force = self.repository.policies().contains_key(&id);
                if !in_force || self.closed.contains(&id) {
                    if closed.is_empty() {
                        self.repository.remove_policy(&id);
                    } else if self.repository.set_policy(id.clone(), closed) {
                        tracing::warn!(policy = %id, "it may have been in force: what it is about is closed");
                    }
                    self.closed.insert(id);
                }
            }
            News::Gone(id) => {
                self.faults.remove(&id);
                self.closed.remove(&id);
                self.notes.remove(&id);
                if self.repository.remove_policy(&id) {
                    tracing::info!(policy = %id, revision = self.repository.revision(), "policy removed");
                }
            }
            News::Reference(reference) => self.take_reference(reference),
            News::Synced => self.unlisted = self.unlisted.saturating_sub(1),
        }
    }

    /// Takes in what has changed, or everything where that is not remembered.
    fn take_identities(&mut self, identities: &crate::identity::Identities) {
        let (version, changed) = identities.changes_since(self.identities_version);
        let changed = changed.unwrap_or_else(|| {
            let now = identities.snapshot();
            let gone = self.known.keys().filter(|identity| !now.contains_key(identity));
            let gone = gone.map(|identity| (*identity, None));
            gone.chain(now.iter().map(|(identity, labels)| (*identity, Some(labels.clone()))))
                .collect()
        });
        self.identities_version = Some(version);
        // Which labels this node has, and whether it runs the API server, is said with the nodes.
        let own = self.nodes.values().any(|node| node.own);
        for (identity, labels) in changed {
            if own && identity == NumericIdentity::HOST {
                continue;
            }
            if let Some(labels) = labels {
                if self.known.get(&identity).is_none_or(|known| *known != labels) {
                    self.repository.set_identity(identity, labels.clone());
                    self.known.insert(identity, labels);
                }
            } else if self.known.remove(&identity).is_some()
                // A local endpoint that still has it keeps its policy.
                && !self.endpoints.values().any(|endpoint| endpoint.subject.identity == identity)
            {
                self.repository.remove_identity(identity);
            }
        }
    }

    fn take_nodes(&mut self, nodes: &crate::node::Nodes) {
        let own = nodes.local();
        let mut now = BTreeMap::new();
        for node in nodes.list() {
            let node = &*node;
            let other = Node {
                labels: node.labels.clone(),
                addresses: node.addresses.iter().copied().collect(),
                ..Node::default()
            };
            now.insert(node.name.clone(), other);
        }
        if let Some(own) = own {
            let addresses = own.addresses().chain(own.routers.iter().copied()).collect();
            let labels = own.labels.clone();
            now.insert(own.name.clone(), Node { own: true, labels, addresses, api_server: false });
        }
        self.set_nodes(now);
    }

    /// Takes in what is different about nodes, and which of them run the API server.
    fn set_nodes(&mut self, mut now: BTreeMap<String, Node>) {
        let mut servers: BTreeSet<IpAddr> = self.api_slices.values().flatten().copied().collect();
        for (name, node) in &mut now {
            node.api_server = node.addresses.iter().any(|address| servers.contains(address));
            servers.retain(|address| !node.addresses.contains(address));
            if self.nodes.get(name) != Some(node) {
                self.repository.set_node(name, Some(node.clone()));
            }
        }
        for name in self.nodes.keys().filter(|name| !now.contains_key(*name)) {
            self.repository.set_node(name, None);
        }
        self.nodes = now;
        self.local_shown.0 = None;
        self.repository.set_api_servers(&servers);
    }

    fn take_reference(&mut self, reference: Reference) {
        match reference {
            Reference::Group(name, group) => {
                self.repository.set_group(&name, group);
            }
            Reference::Service(id, service) => {
                let (id, service) = self.services.service(id, service);
                self.repository.set_service(&id, service);
            }
            Reference::Addresses(key, given) => {
                for (id, service) in self.services.slice(key, given) {
                    self.repository.set_service(&id, service);
                }
            }
            Reference::ApiServer(key, addresses) => {
                self.api_slices.insert(key, addresses);
                self.api_slices.retain(|_, addresses| !addresses.is_empty());
                self.set_nodes(self.nodes.clone());
            }
            Reference::ClusterPolicies if !self.cluster_policies_watched => {
                self.cluster_policies_watched = true;
                let config = &self.enforcer.0.config;
                self.more.push(feed::cluster_policies(&self.client, config));
                self.unlisted += 1;
            }
            Reference::ClusterPolicies => {}
        }
    }

    /// Services are many, and few policies ask for them.
    fn watch_what_is_needed(&mut self) {
        if self.services_watched || !self.repository.refers_to().services {
            return;
        }
        self.services_watched = true;
        self.more.push(references::services(&self.client));
        self.more.push(references::given_endpoints(&self.client));
        self.unlisted += 2;
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Keep(id, subject, done) => {
                // Known before any map is written, so that its peers let it through from the first packet.
                if self.repository.labels(subject.identity).is_none() {
                    self.repository.set_identity(subject.identity, subject.labels.clone());
                }
                if let Some(realized) = self.endpoints.get_mut(&id) {
                    let before = std::mem::replace(&mut realized.subject, subject).identity;
                    self.forget_stray(before);
                } else {
                    let audit = self.audited.contains(&id);
                    self.endpoints.insert(id, Realized::new(subject, audit));
                }
                self.waiting.extend(done.map(|done| (id, done)));
            }
            Order::Remove(id, done) => {
                if let Some(gone) = self.endpoints.remove(&id) {
                    self.forget_stray(gone.subject.identity);
                }
                self.audited.remove(&id);
                if let Err(error) = self.datapath.remove_policy(id) {
                    tracing::warn!(%error, endpoint = id, "policy map not removed");
                }
                // The one who asked may be gone: nothing to tell then.
                let _ = done.send(Ok(()));
            }
            Order::Audit(id, audit, done) => {
                // The one who asked may be gone: nothing to tell then.
                let _ = done.send(self.set_audit(id, audit));
            }
            Order::Ask(realize::Question(question)) => {
                question(&mut self.repository);
                // What was computed for the answer's sake alone must leave no trace in any map.
                let local: BTreeSet<NumericIdentity> =
                    self.endpoints.values().map(|one| one.subject.identity).collect();
                self.repository.retain_subjects(|identity| local.contains(&identity));
            }
            Order::Restored => self.restored = true,
        }
    }

    /// Forgets an identity that the cluster has given up, once no local endpoint has it any more.
    fn forget_stray(&mut self, identity: NumericIdentity) {
        let stray = identity.reserved_labels().is_none() && !self.known.contains_key(&identity);
        if stray && self.endpoints.values().all(|one| one.subject.identity != identity) {
            self.repository.remove_identity(identity);
        }
    }

    fn set_audit(&mut self, id: u16, audit: bool) -> Result<(), Error> {
        let Some(realized) = self.endpoints.get_mut(&id) else {
            return Err(Error::Unknown { id });
        };
        let options = self.datapath.options();
        let written = if audit {
            options.upsert(&id, &EndpointOptions { policy_audit: true })
        } else {
            options.remove(&id).map(drop)
        };
        written.map_err(|error| Error::Map { id, cause: error.to_string() })?;
        realized.audit = audit;
        if audit {
            self.audited.insert(id)
        } else {
            self.audited.remove(&id)
        };
        tracing::info!(endpoint = id, audit, "policy audit mode changed");
        Ok(())
    }

    /// Makes every map say what is wanted: first what is new everywhere, then the ipcache, then
    /// what is gone. So whoever both the old and the new policy let through always passes.
    async fn settle(&mut self, ipcache: &crate::ipcache::Cache) {
        let mut failures = self.write();
        self.failed = !self.write_blocks();
        self.tell_nodes(ipcache);
        let prefixes = self.repository.prefixes();
        if !self.prefixes_settled || prefixes != self.prefixes {
            self.prefixes_settled = ipcache.set_prefixes(prefixes.clone()).await;
            self.prefixes = prefixes;
            self.local_shown.0 = None;
        }
        failures.append(&mut self.remove());
        if self.prefixes_settled && !self.failed {
            let local: BTreeSet<NumericIdentity> =
                self.endpoints.values().map(|one| one.subject.identity).collect();
            self.repository.retain_subjects(|identity| local.contains(&identity));
            if self.repository.retire_prefixes() {
                self.failed |= !self.write_blocks();
                failures.append(&mut self.write());
                failures.append(&mut self.remove());
            }
        }
        self.failed |= !failures.is_empty() || !self.prefixes_settled;
        for (id, done) in self.waiting.drain(..) {
            // The one who asked may be gone: nothing to tell then.
            let _ = done.send(failures.get(&id).cloned().map_or(Ok(()), Err));
        }
        self.show();
    }

    /// Makes the table of blocks right, once the policy maps know them. False if that failed.
    fn write_blocks(&mut self) -> bool {
        let wanted = self.repository.blocks().into_iter();
        let wanted: BTreeMap<(IpAddr, u8), u32> =
            wanted.map(|(prefix, block)| ((prefix.addr(), prefix.prefix_len()), block.0)).collect();
        if self.blocks.as_ref() == Some(&wanted) {
            return true;
        }
        let written = converge(&self.datapath.blocks(), &wanted);
        if let Err(error) = &written {
            tracing::error!(%error, "blocks of addresses not written");
        }
        self.blocks = written.is_ok().then_some(wanted);
        self.blocks.is_some()
    }

    /// Tells the ipcache which nodes have an identity of their own, or run the API server.
    fn tell_nodes(&mut self, ipcache: &crate::ipcache::Cache) {
        let serving = self.nodes.values().filter(|node| node.api_server && !node.own);
        let serving = serving.flat_map(|node| node.addresses.iter().copied());
        let mut identities: BTreeMap<IpAddr, NumericIdentity> =
            serving.map(|address| (address, NumericIdentity::KUBE_APISERVER)).collect();
        identities.extend(self.repository.node_identities());
        if identities != self.node_identities {
            ipcache.set_node_identities(identities.clone());
            self.node_identities = identities;
        }
    }

    /// Writes what is new or different everywhere.
    fn write(&mut self) -> BTreeMap<u16, Error> {
        let mut failures = BTreeMap::new();
        for (id, realized) in &mut self.endpoints {
            let Some(mut plan) = realized.plan(*id, &mut self.repository) else { continue };
            match plan.write(realized, &self.datapath) {
                Ok(()) => self.plans.push(plan),
                Err(error) => {
                    let lockdown = self.enforcer.0.settings.lockdown;
                    plan.fail(realized, &self.datapath, lockdown, &error);
                    failures.insert(*id, error);
                }
            }
        }
        failures
    }

    /// Removes what is gone from the maps that have been written.
    fn remove(&mut self) -> BTreeMap<u16, Error> {
        let mut failures = BTreeMap::new();
        for plan in std::mem::take(&mut self.plans) {
            let id = plan.id;
            let Some(realized) = self.endpoints.get_mut(&id) else { continue };
            if let Err(error) = plan.remove(realized, &self.datapath) {
                tracing::error!(%error, "policy not in place");
                realized.fail(&error);
                failures.insert(id, error);
            }
        }
        failures
    }

    /// The labels of identities that only this node knows, put together anew where something changed.
    fn local(&mut self) -> Arc<BTreeMap<NumericIdentity, Arc<Labels>>> {
        let revision = Some(self.repository.revision());
        if self.local_shown.0 != revision {
            let prefixes = self.prefixes.iter().map(|(_, identity)| *identity);
            let nodes = self.repository.node_identities().into_iter().map(|(_, identity)| identity);
            let own = self.nodes.values().any(|node| node.own).then_some(NumericIdentity::HOST);
            let all = prefixes.chain(nodes).chain(own);
            let labelled = all
                .filter_map(|identity| Some((identity, self.repository.labels(identity)?.clone())));
            self.local_shown = (revision, Arc::new(labelled.collect()));
        }
        Arc::clone(&self.local_shown.1)
    }

    fn show(&mut self) {
        if std::mem::take(&mut self.policies_changed) {
            let policy = |(id, rules): (&PolicyId, &Vec<cilia_policy::rule::Rule>)| PolicyView {
                kind: id.kind.name(),
                namespace: id.namespace.to_string(),
                name: id.name.to_string(),
                subjects: rules.iter().map(|rule| rule.subject.to_string()).collect(),
                notes: self.notes.get(id).cloned().unwrap_or_default(),
            };
            self.policies_shown = self.repository.policies().iter().map(policy).collect();
        }
        let local = self.local();
        let view = View {
            local,
            revision: self.repository.revision(),
            endpoints: self.endpoints.iter().map(|(id, realized)| realized.view(*id)).collect(),
            policies: self.policies_shown.clone(),
            faults: self.faults.iter().map(|(id, fault)| (id.to_string(), fault.clone())).collect(),
        };
        self.enforcer.0.view.send_replace(Arc::new(view));
    }
}
