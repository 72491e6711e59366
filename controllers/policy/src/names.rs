//! Decides which numbers a port's name stands for.
//!
//! What comes to an endpoint comes to the ports that it names itself. What it sends goes to pods
//! that may each name theirs in their own way: a name stands for what the pods of the receiving
//! identity say. For who names no port so, it stands for the number on which all pods agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cilia_crds::NumericIdentity;

/// A port's name and its protocol.
pub type PortName = (Arc<str>, u8);

/// How an endpoint names its own ports.
pub type NamedPorts = BTreeMap<PortName, u16>;

/// How the cluster's pods name their ports. About 100 bytes for each identity and name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterPorts(BTreeMap<PortName, Numbers>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Numbers {
    by_identity: BTreeMap<NumericIdentity, BTreeSet<u16>>,
    all: BTreeSet<u16>,
}

impl ClusterPorts {
    /// A pod of this identity names this port so.
    pub fn insert(&mut self, identity: NumericIdentity, name: PortName, port: u16) {
        let numbers = self.0.entry(name).or_default();
        numbers.by_identity.entry(identity).or_default().insert(port);
        numbers.all.insert(port);
    }

    /// What pods of this identity themselves call so.
    pub(crate) fn of(&self, identity: NumericIdentity, name: &PortName) -> Vec<u16> {
        let own = self.0.get(name).and_then(|numbers| numbers.by_identity.get(&identity));
        own.into_iter().flatten().copied().collect()
    }
}

/// Whose names count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Names<'a> {
    /// The subject's own.
    Own(&'a NamedPorts),
    /// Those of the other side.
    Cluster(&'a ClusterPorts),
}

impl Names<'_> {
    /// Every number that a name can stand for.
    pub(crate) fn all(self, name: &PortName) -> Vec<u16> {
        match self {
            Self::Own(own) => own.get(name).copied().into_iter().collect(),
            Self::Cluster(ClusterPorts(cluster)) => {
                cluster.get(name).into_iter().flat_map(|numbers| &numbers.all).copied().collect()
            }
        }
    }

    /// The identities of the other side that say themselves what a name stands for.
    pub(crate) fn who(self, name: &PortName) -> Vec<NumericIdentity> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Cluster(ClusterPorts(cluster)) => {
                let numbers = cluster.get(name).into_iter();
                numbers.flat_map(|numbers| numbers.by_identity.keys().copied()).collect()
            }
        }
    }

    /// The numbers of a name when `identity` is the other side.
    pub(crate) fn numbers(self, identity: NumericIdentity, name: &PortName) -> Vec<u16> {
        match self {
            Self::Own(own) => own.get(name).copied().into_iter().collect(),
            Self::Cluster(ClusterPorts(cluster)) => {
                let Some(numbers) = cluster.get(name) else { return Vec::new() };
                match numbers.by_identity.get(&identity) {
                    Some(own) => own.iter().copied().collect(),
                    None if numbers.all.len() == 1 => numbers.all.iter().copied().collect(),
                    None => Vec::new(),
                }
            }
        }
    }
}
