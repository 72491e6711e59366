//! Decides which identities nodes have where policies can tell nodes apart (scope 0x02): by their
//! labels (`enable-node-selector-labels`), or by their addresses (`policy-cidr-match-mode=nodes`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::config::Config;
use crate::selector::{CLUSTER, K8S, RESERVED};
use crate::selectors::{Member, Place};

/// The first number of the scope of nodes.
pub const SCOPE: u32 = 2 << 24;
/// The source of labels that nodes have.
pub const NODE: &str = "node";

static NO_LABELS: LazyLock<Labels> = LazyLock::new(Labels::new);

/// A node, as policies see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// It is the one that this agent runs on.
    pub own: bool,
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// The addresses by which others reach it.
    pub addresses: BTreeSet<IpAddr>,
    /// The API server runs on it.
    pub api_server: bool,
}

/// Nodes by name, and the identities of their addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    by_name: BTreeMap<Box<str>, Node>,
    numbers: BTreeMap<IpAddr, u32>,
    /// Numbers from before the restart, until the address is a node's again.
    former: BTreeMap<IpAddr, u32>,
    /// The labels of the own node, as `nodeSelector` sees them.
    own_labels: Option<Labels>,
    last: u32,
}

impl Nodes {
    pub(crate) fn is_own(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|node| node.own)
    }

    /// The labels of the own node.
    pub(crate) fn own_labels(&self) -> &Labels {
        self.own_labels.as_ref().unwrap_or(&NO_LABELS)
    }

    /// Sets or removes a node: the identities that are new or changed, and those that are gone.
    pub(crate) fn put(
        &mut self,
        name: &str,
        node: Option<Node>,
        config: &Config,
    ) -> (Vec<(NumericIdentity, Member)>, Vec<NumericIdentity>) {
        let old = match &node {
            Some(node) => self.by_name.insert(name.into(), node.clone()),
            None => self.by_name.remove(name),
        };
        let apart = config.node_selectors || config.cidrs_match_nodes;
        let addresses = |node: &Option<Node>| -> BTreeSet<IpAddr> {
            let other = node.as_ref().filter(|node| !node.own && apart);
            other.map(|node| node.addresses.clone()).unwrap_or_default()
        };
        let now = addresses(&node);
        let left = addresses(&old);
        let gone = left.difference(&now).filter_map(|address| self.numbers.remove(address));
        let gone = gone.map(NumericIdentity).collect();
        let Some(node) = node else {
            if old.is_some_and(|old| old.own) {
                self.own_labels = None;
            }
            return (Vec::new(), gone);
        };
        let mut members = Vec::new();
        if node.own {
            let mut own = Labels::new();
            node.labels.iter().for_each(|(key, value)| own.insert(K8S, key, value));
            self.own_labels = Some(own);
            let labels = Arc::new(labels("host", &node, config));
            let place = place(node.addresses.iter(), config);
            members.push((NumericIdentity::HOST, Member { labels, place }));
        }
        let labels = Arc::new(labels("remote-node", &node, config));
        for address in now {
            let former = &mut self.former;
            let number = *self.numbers.entry(address).or_insert_with(|| {
                former.remove(&address).unwrap_or_else(|| {
                    self.last += 1;
                    SCOPE + self.last
                })
            });
            let member =
                Member { labels: labels.clone(), place: place([&address].into_iter(), config) };
            members.push((NumericIdentity(number), member));
        }
        (members, gone)
    }

    /// Remembers the number that an address had before the restart, for the node that has it.
    pub(crate) fn restore(&mut self, address: IpAddr, number: u32) {
        let there = self.numbers.contains_key(&address)
            || self.numbers.values().chain(self.former.values()).any(|one| *one == number);
        if number & !0x00ff_ffff == SCOPE && number != SCOPE && !there {
            self.former.insert(address, number);
            self.last = self.last.max(number - SCOPE);
        }
    }

    /// The identities of other nodes' addresses.
    pub(crate) fn identities(&self) -> Vec<(IpAddr, NumericIdentity)> {
        self.numbers.iter().map(|(address, number)| (*address, NumericIdentity(*number))).collect()
    }
}

fn labels(reserved: &str, node: &Node, config: &Config) -> Labels {
    let mut labels = Labels::reserved(reserved);
    if config.node_selectors {
        node.labels.iter().for_each(|(key, value)| labels.insert(NODE, key, value));
        labels.insert(K8S, CLUSTER, &config.cluster);
    }
    if node.api_server {
        labels.insert(RESERVED, "kube-apiserver", "");
    }
    debug_assert!(labels.get(RESERVED, reserved).is_some());
    labels
}

fn place<'a>(addresses: impl Iterator<Item = &'a IpAddr>, config: &Config) -> Place {
    if config.cidrs_match_nodes {
        Place::Node(addresses.map(|address| IpNet::from(*address)).collect())
    } else {
        Place::Anywhere
    }
}
