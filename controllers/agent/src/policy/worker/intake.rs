//! Takes in what has changed in the cluster: policies, what they refer to, identities and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cilia_crds::NumericIdentity;
use cilia_policy::{Node, PolicyId};
use tokio::time::Instant;

use super::{LEAVE, Worker};
use crate::policy::feed::{self, News};
use crate::policy::references::{self, Reference};

impl Worker {
    pub(super) fn take(&mut self, news: News) {
        self.policies_changed = true;
        match news {
            News::Policy(id, rules, notes) => {
                for note in &notes {
                    tracing::warn!(policy = %id, %note, "policy in part without effect");
                }
                self.leaving.remove(&id);
                self.faults.remove(&id);
                self.closed.remove(&id);
                self.notes.insert(id.clone(), notes.iter().map(ToString::to_string).collect());
                if self.repository.set_policy(id.clone(), rules) {
                    self.changes[0] += 1;
                    tracing::info!(policy = %id, revision = self.repository.revision(), "policy changed");
                }
            }
            News::Fault(id, fault, closed) => {
                self.changes[1] += 1;
                tracing::warn!(policy = %id, %fault, "policy can't be used");
                if self.leaving.remove(&id).is_some() {
                    self.forget(&id);
                }
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
                self.leaving.insert(id, Instant::now() + LEAVE);
            }
            News::Reference(reference) => self.take_reference(reference),
            News::Synced => self.unlisted = self.unlisted.saturating_sub(1),
        }
    }

    /// Removes the policies whose time is over.
    pub(super) fn let_go(&mut self, now: Instant) {
        self.policies_changed = true;
        let over = self.leaving.extract_if(.., |_, until| *until <= now);
        for (id, _) in over.collect::<Vec<_>>() {
            self.forget(&id);
        }
    }

    fn forget(&mut self, id: &PolicyId) {
        self.faults.remove(id);
        self.closed.remove(id);
        self.notes.remove(id);
        if self.repository.remove_policy(id) {
            self.changes[0] += 1;
            tracing::info!(policy = %id, revision = self.repository.revision(), "policy removed");
        }
    }

    /// Takes in what has changed, or everything where that is not remembered.
    pub(super) fn take_identities(&mut self, identities: &crate::identity::Identities) {
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
                && !self.bearers.has(identity)
            {
                self.repository.remove_identity(identity);
            }
        }
    }

    pub(super) fn take_nodes(&mut self, nodes: &crate::node::Nodes) {
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
    pub(super) fn set_nodes(&mut self, mut now: BTreeMap<String, Node>) {
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

    pub(super) fn take_reference(&mut self, reference: Reference) {
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
    pub(super) fn watch_what_is_needed(&mut self) {
        if self.services_watched || !self.repository.refers_to().services {
            return;
        }
        self.services_watched = true;
        self.more.push(references::services(&self.client));
        self.more.push(references::given_endpoints(&self.client));
        self.unlisted += 2;
    }
}
