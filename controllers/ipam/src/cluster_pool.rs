//! Decides which CIDRs of the cluster's pool each node has.
//!
//! Level-triggered: [`ClusterPool::upsert`] is asked about a node as it is now, as often as one
//! likes. Until [`ClusterPool::resync`] says that every node has been seen, CIDRs that nodes have
//! are put into use and nothing is handed out: it might belong to a node not seen yet.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::bits::list;
use crate::family::Family;
use crate::pool_config::{ConfigError, PoolConfig};
use crate::ranges::Ranges;

/// A `CiliumNode`, as far as the pool cares.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its resource version: what a write is guarded by.
    pub version: &'a str,
    /// `spec.ipam.podCIDRs`.
    pub pod_cidrs: &'a [String],
    /// `status.ipam.operator-status.error`.
    pub error: &'a str,
    /// It has the mark that [`Verdict::Fence`] leaves.
    pub fenced: bool,
}

/// What to write to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The node is right as it is.
    Nothing,
    /// It cannot be said before every node has been seen.
    Wait,
    /// Move its version, so that no former leader's write arrives any more.
    Fence,
    /// It is right, and needs the fence's mark no more.
    Unfence,
    /// These are its `spec.ipam.podCIDRs`; its error, if it has one, is over.
    SetCidrs(Vec<IpNet>),
    /// Its error is over.
    ClearError,
    /// This is its error.
    SetError(String),
}

/// Why a node does not have the CIDRs it asks for, in the words of its status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A range is not a CIDR.
    #[error("unable to parse pod CIDR {0:?}: an address, a slash and a prefix length are needed")]
    Unparsable(String),
    /// No cluster CIDR of this family is configured.
    #[error(
        "{family} allocator does not exist: cannot reuse {cidrs}; set cluster-pool-{family}-cidr"
    )]
    NoAllocator {
        /// The family.
        family: Family,
        /// What was asked for.
        cidrs: String,
    },
    /// No family is configured at all.
    #[error("unable to allocate pod CIDRs for node {node}: no allocators (IPv4: [], IPv6: [])")]
    NoAllocators {
        /// The node.
        node: String,
    },
    /// The node has others.
    #[error("node has CIDRs allocated ({known}) that conflict with requested CIDRs {requested}")]
    Conflict {
        /// What it has.
        known: String,
        /// What it asks for.
        requested: String,
    },
    /// Outside of everything that is configured.
    #[error("allocator not configured for the requested CIDR {0}")]
    NotConfigured(IpNet),
    /// Everything in that cluster CIDR is taken.
    #[error("allocator {set} full: requested CIDR ({cidr}) cannot be allocated")]
    SetFull {
        /// The cluster CIDR.
        set: IpNet,
        /// What was asked for.
        cidr: IpNet,
    },
    /// Another node has it, or part of it.
    #[error("requested CIDR ({0}) is already allocated")]
    Taken(IpNet),
    /// Nothing is free.
    #[error("allocator full: no free {0} CIDR")]
    Full(Family),
}

/// Who has which CIDR.
#[derive(Debug, Clone)]
pub struct ClusterPool {
    ranges: BTreeMap<Family, Ranges>,
    nodes: BTreeMap<String, Vec<IpNet>>,
    /// Nodes whose last answer was a refusal: another one's CIDR coming free may help them.
    refused: BTreeSet<String>,
    /// Nodes without a CIDR of each family, with their version.
    lacking: BTreeMap<String, String>,
    /// Nodes to which a former leader may be writing, with the version that its writes name.
    unfenced: BTreeMap<String, String>,
    ready: bool,
    /// Something has happened that may help who waits.
    news: bool,
}

impl ClusterPool {
    /// A pool of which no node has anything.
    pub fn new(v4: &PoolConfig<'_>, v6: &PoolConfig<'_>) -> Result<Self, ConfigError> {
        let ranges = BTreeMap::from([
            (Family::V4, Ranges { sets: v4.sets(Family::V4)? }),
            (Family::V6, Ranges { sets: v6.sets(Family::V6)? }),
        ]);
        Ok(Self {
            ranges,
            nodes: BTreeMap::new(),
            refused: BTreeSet::new(),
            lacking: BTreeMap::new(),
            unfenced: BTreeMap::new(),
            ready: false,
            news: false,
        })
    }

    /// Every node has been seen: from now on CIDRs are handed out. Ask about every node again.
    ///
    /// `cut_off`: a former leader may still have writes under way.
    pub fn resync(&mut self, cut_off: bool) {
        self.ready = true;
        if cut_off {
            self.unfenced.clone_from(&self.lacking);
        }
    }

    /// What the node should have, given what it has.
    pub fn upsert(&mut self, node: Node<'_>) -> Verdict {
        if self.unfenced.get(node.name).is_some_and(|version| version != node.version) {
            self.unfence(node.name);
        }
        match self.settle(node) {
            Ok(verdict) => {
                self.refused.remove(node.name);
                match verdict {
                    Verdict::Nothing if self.ready && !node.error.is_empty() => Verdict::ClearError,
                    Verdict::Nothing => self.rest(node),
                    verdict => verdict,
                }
            }
            Err(refusal) => {
                self.refused.insert(node.name.to_owned());
                // A former leader may have seen it otherwise. All who lack something wait for its fence.
                if self.ready && self.unfenced.contains_key(node.name) {
                    return Verdict::Fence;
                }
                let text = refusal.to_string();
                match (self.ready, text == node.error) {
                    (false, _) => Verdict::Wait,
                    (true, true) => self.rest(node),
                    (true, false) => Verdict::SetError(text),
                }
            }
        }
    }

    /// A node that somebody else looks after: nobody else gets what it has had, and it gets nothing.
    ///
    /// Ranges that aren't ours or are another's are left alone.
    pub fn observe(&mut self, node: Node<'_>) -> Verdict {
        self.refused.remove(node.name);
        self.lacking.remove(node.name);
        self.unfence(node.name);
        let mut held = self.nodes.remove(node.name).unwrap_or_default();
        for cidr in node.pod_cidrs {
            let Ok(cidr) = cidr.trim().parse::<IpNet>().map(|cidr| cidr.trunc()) else { continue };
            if !held.contains(&cidr) && self.ranges_mut(cidr).occupy(cidr).is_ok() {
                held.push(cidr);
            }
        }
        if !held.is_empty() {
            held.sort_by_key(|cidr| Family::of_net(*cidr));
            self.nodes.insert(node.name.to_owned(), held);
        }
        Verdict::Nothing
    }

    /// The node is gone; `true` if it had CIDRs, which may now serve another.
    pub fn delete(&mut self, name: &str) -> bool {
        self.refused.remove(name);
        self.lacking.remove(name);
        self.unfence(name);
        let Some(cidrs) = self.nodes.remove(name) else {
            return false;
        };
        self.release(&cidrs);
        self.news = true;
        true
    }

    /// The nodes that wait or were refused, and that what has happened since the last call may help.
    pub fn to_ask(&mut self) -> Vec<String> {
        if !std::mem::take(&mut self.news) {
            return Vec::new();
        }
        self.refused.iter().chain(self.lacking.keys()).cloned().collect()
    }

    /// The nodes that last got a refusal.
    pub fn refused(&self) -> impl Iterator<Item = &str> {
        self.refused.iter().map(String::as_str)
    }

    /// The CIDRs of a node, IPv4 first.
    pub fn cidrs(&self, name: &str) -> Option<&[IpNet]> {
        self.nodes.get(name).map(Vec::as_slice)
    }

    fn settle(&mut self, node: Node<'_>) -> Result<Verdict, Refusal> {
        let requested = parse(node.pod_cidrs)?;
        let known = self.nodes.get(node.name).cloned().unwrap_or_default();
        self.check(&requested, &known)?;
        // What the node asks for and does not have; then a CIDR of each family it lacks.
        let mut fresh: Vec<IpNet> = Vec::new();
        let complete = match self.acquire(node.name, &requested, &known, &mut fresh) {
            Ok(complete) => complete,
            Err(refusal) => {
                self.lacking.insert(node.name.to_owned(), node.version.to_owned());
                self.release(&fresh);
                return Err(refusal);
            }
        };
        if complete {
            self.lacking.remove(node.name);
        } else {
            self.lacking.insert(node.name.to_owned(), node.version.to_owned());
        }
        let mut all = known;
        all.extend(fresh);
        all.sort_by_key(|cidr| Family::of_net(*cidr));
        if !all.is_empty() {
            self.nodes.insert(node.name.to_owned(), all.clone());
        }
        if !complete && self.ready && self.unfenced.contains_key(node.name) {
            return Ok(Verdict::Fence);
        }
        if !complete || (requested.is_empty() && !self.ready) {
            return Ok(Verdict::Wait);
        }
        let families = |cidrs: &[IpNet]| -> BTreeSet<Family> {
            cidrs.iter().map(|cidr| Family::of_net(*cidr)).collect()
        };
        // Fewer of a family than it has is the node's own business; none of it is not.
        if families(&all) == families(&requested) {
            return Ok(Verdict::Nothing);
        }
        Ok(Verdict::SetCidrs(all))
    }

    /// Whether what a node asks for agrees with what is configured and what it has.
    fn check(&self, requested: &[IpNet], known: &[IpNet]) -> Result<(), Refusal> {
        for family in Family::BOTH {
            let of = |cidrs: &[IpNet]| -> Vec<IpNet> {
                cidrs.iter().copied().filter(|cidr| Family::of_net(*cidr) == family).collect()
            };
            let (requested, known) = (of(requested), of(known));
            if !requested.is_empty() && !self.ranges[&family].exist() {
                return Err(Refusal::NoAllocator { family, cidrs: list(&requested) });
            }
            if !known.is_empty() && !requested.iter().all(|cidr| known.contains(cidr)) {
                let (known, requested) = (list(&known), list(&requested));
                return Err(Refusal::Conflict { known, requested });
            }
        }
        Ok(())
    }

    /// Adds to `fresh` what the node asks for and what it lacks; `false` if something must wait.
    fn acquire(
        &mut self,
        name: &str,
        requested: &[IpNet],
        known: &[IpNet],
        fresh: &mut Vec<IpNet>,
    ) -> Result<bool, Refusal> {
        for cidr in requested {
            if !known.contains(cidr) && !fresh.contains(cidr) {
                self.ranges_mut(*cidr).occupy(*cidr)?;
                fresh.push(*cidr);
            }
        }
        let mut complete = true;
        for family in Family::BOTH {
            let has = known.iter().chain(&*fresh).any(|cidr| Family::of_net(*cidr) == family);
            let Some(ranges) = self.ranges.get_mut(&family).filter(|ranges| ranges.exist()) else {
                continue;
            };
            if has {
                continue;
            }
            if self.ready && self.unfenced.is_empty() {
                fresh.push(ranges.allocate(family)?);
            } else {
                complete = false;
            }
        }
        if known.is_empty() && fresh.is_empty() && complete {
            return Err(Refusal::NoAllocators { node: name.to_owned() });
        }
        Ok(complete)
    }

    fn release(&mut self, cidrs: &[IpNet]) {
        for cidr in cidrs {
            self.ranges_mut(*cidr).release(*cidr);
        }
    }

    /// What is left to do about a node that says what it should.
    fn rest(&self, node: Node<'_>) -> Verdict {
        if self.ready && node.fenced { Verdict::Unfence } else { Verdict::Nothing }
    }

    fn unfence(&mut self, name: &str) {
        if self.unfenced.remove(name).is_some() && self.unfenced.is_empty() {
            self.news = true;
        }
    }

    fn ranges_mut(&mut self, cidr: IpNet) -> &mut Ranges {
        let none = || Ranges { sets: Vec::new() };
        self.ranges.entry(Family::of_net(cidr)).or_insert_with(none)
    }
}

fn parse(pod_cidrs: &[String]) -> Result<Vec<IpNet>, Refusal> {
    let parse = |text: &String| match text.trim().parse::<IpNet>() {
        Ok(cidr) => Ok(cidr.trunc()),
        Err(_) => Err(Refusal::Unparsable(text.clone())),
    };
    pod_cidrs.iter().map(parse).collect()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
