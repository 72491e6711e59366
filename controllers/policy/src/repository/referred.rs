//! What rules refer to beside identities: groups, services, nodes, and the API server's addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::cidr;
use crate::directory::{Change, CidrGroup, Service, ServiceId};
use crate::nodes::Node;
use crate::repository::Repository;
use crate::rule::{Peer, Rule};
use crate::selector::RESERVED;
use crate::selectors::{Member, Place};

/// What rules refer to beside identities and addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct References {
    /// `CiliumCIDRGroup`s.
    pub groups: bool,
    /// Services and their endpoints.
    pub services: bool,
}

impl Repository {
    /// Sets what a `CiliumCIDRGroup` says; `None` if it is gone. True if policies notice.
    pub fn set_group(&mut self, name: &Arc<str>, group: Option<CidrGroup>) -> bool {
        if self.directory.group(name) == group.as_ref() {
            return false;
        }
        let old = self.directory.put_group(name, group);
        let now = self.directory.group(name).cloned();
        self.forget_references(&Change::Group(name, [old.as_ref(), now.as_ref()]))
    }

    /// Sets what a service is; `None` if it is gone. True if policies notice.
    pub fn set_service(&mut self, id: &ServiceId, service: Option<Service>) -> bool {
        if self.directory.service(id) == service.as_ref() {
            return false;
        }
        let old = self.directory.put_service(id, service);
        let now = self.directory.service(id).cloned();
        self.forget_references(&Change::Service(id, [old.as_ref(), now.as_ref()]))
    }

    /// Whether a rule refers to groups, or to services: who watches these can wait until then.
    pub fn refers_to(&self) -> References {
        let peers = self.policies.values().flatten().flat_map(Rule::peers);
        peers.fold(References::default(), |found, peer| References {
            groups: found.groups || matches!(peer, Peer::Groups { .. }),
            services: found.services || matches!(peer, Peer::Services(_)),
        })
    }

    /// Sets what a node is; `None` if it is gone.
    ///
    /// Only where the configuration asks for it, for nodes' labels or addresses, nodes get identities
    /// of their own ([`Self::node_identities`]). The labels of the own node are those that
    /// `nodeSelector` means, whatever the configuration.
    pub fn set_node(&mut self, name: &str, node: Option<Node>) {
        let own = node.as_ref().is_some_and(|node| node.own);
        if own || self.nodes.is_own(name) {
            self.forget_subject(NumericIdentity::HOST);
        }
        let (members, gone) = self.nodes.put(name, node, &self.config);
        for (identity, member) in members {
            self.put(identity, member);
        }
        for identity in gone {
            self.remove_identity(identity);
        }
    }

    /// Sets the addresses of the API server, of those outside of what the cluster manages: each is
    /// a prefix of its own then, with the label that the entity `kube-apiserver` means.
    pub fn set_api_servers(&mut self, addresses: &BTreeSet<IpAddr>) {
        let mut relabelled = Vec::new();
        for address in self.api_servers.difference(addresses) {
            let prefix = IpNet::from(*address);
            relabelled.extend(self.cidrs.number(&prefix).map(|number| (prefix, number, false)));
            self.cidrs.release(&prefix);
        }
        for address in addresses.difference(&self.api_servers) {
            let prefix = IpNet::from(*address);
            let number = self.cidrs.acquire(prefix);
            relabelled.extend(number.map(|(number, _)| (prefix, number, true)));
        }
        for (prefix, number, serves) in relabelled {
            let mut labels = cidr::labels(&prefix, self.config.dual_stack);
            if serves {
                labels.insert(RESERVED, "kube-apiserver", "");
            }
            self.put(number, Member { labels: Arc::new(labels), place: Place::Prefix(prefix) });
        }
        self.api_servers.clone_from(addresses);
    }

    /// The labels of the own node, as `nodeSelector` sees them.
    pub(crate) fn own_node_labels(&self) -> &Labels {
        self.nodes.own_labels()
    }

    /// The identities of other nodes' addresses, for the ipcache; none without need.
    pub fn node_identities(&self) -> Vec<(IpAddr, NumericIdentity)> {
        self.nodes.identities()
    }

    /// What a peer stands for: itself, if it refers to nothing.
    pub(crate) fn resolve(&self, peer: &Peer) -> Vec<Peer> {
        self.directory.resolve(peer, &self.config)
    }

    fn forget_references(&mut self, change: &Change<'_>) -> bool {
        let subjects = self.subjects.iter().filter(|(_, subject)| subject.refers(change));
        let gone: Vec<NumericIdentity> = subjects.map(|(identity, _)| *identity).collect();
        for identity in &gone {
            self.forget_subject(*identity);
        }
        !gone.is_empty()
    }
}
