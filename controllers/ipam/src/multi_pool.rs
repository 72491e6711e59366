//! Decides which ranges of which pool each node has.
//!
//! Level-triggered: [`MultiPool::upsert`] is asked about a node as it is now, and answers with what
//! its object should say. A range has one owner at any moment, whatever pool it comes from:
//!
//! * Until [`MultiPool::resync`] says that every node has been seen, nothing is handed out.
//! * A range that was handed out and not seen on the node yet stays the node's until the node is
//!   seen under another version: a write that names the old version can then not arrive any more.
//! * A range stays a node's as long as the node lists it, with or without its pool: an *orphan* is
//!   what its pool does not contain any more. It is nobody else's, from whatever pool, and ordinary
//!   again when its pool is.
//! * After a leader that was cut off, writes of its may still be under way. What they hand out is
//!   not known, but to whom: to nodes that lack something, or did as long as a pool was another one. Nothing
//!   is handed out before each of those has a new version (`Answer::Fence`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;

use crate::bits;
use crate::claims::{Claim, Claims};
use crate::family::Family;
use crate::pod_pool::{PodPool, PoolError, PoolSpec};

/// How much a node wants of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The pool.
    pub pool: String,
    /// `needed.ipv4-addrs`.
    pub v4: u32,
    /// `needed.ipv6-addrs`.
    pub v6: u32,
}

/// What a node has of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The pool.
    pub pool: String,
    /// The ranges: sorted as text, IPv4 first, when it is the allocator that says so.
    pub cidrs: Vec<String>,
}

/// A `CiliumNode`, as far as the pools care.
#[derive(Debug, Clone, Copy)]
pub struct PoolNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its resource version: what a write is guarded by.
    pub version: &'a str,
    /// `spec.ipam.pools.requested`.
    pub requested: &'a [Request],
    /// `spec.ipam.pools.allocated`.
    pub allocated: &'a [Allocation],
    /// `status.ipam.operator-status.error`.
    pub error: &'a str,
    /// It has the mark that [`Answer::Fence`] leaves.
    pub fenced: bool,
}

/// What to write to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It cannot be said before every node has been seen, or fenced.
    Wait,
    /// Move its version, so that no former leader's write arrives any more.
    Fence,
    /// It is right, and needs the fence's mark no more.
    Unfence,
    /// What differs; nothing if the node is right.
    Write {
        /// These are its `spec.ipam.pools.allocated`.
        allocated: Option<Vec<Allocation>>,
        /// This is its error; empty if it has none any more.
        error: Option<String>,
    },
}

/// Who has what of which pool.
#[derive(Debug, Clone)]
pub struct MultiPool {
    families: Vec<Family>,
    pools: BTreeMap<String, PodPool>,
    claims: Claims,
    nodes: BTreeMap<String, NodeState>,
    /// Nodes that don't have what they asked for.
    lacking: BTreeSet<String>,
    /// Nodes to which a former leader may be writing, with the version that its writes name.
    unfenced: BTreeMap<String, String>,
    ready: bool,
    /// Something has happened that may help who lacks something.
    news: bool,
}

#[derive(Debug, Clone, Default)]
struct NodeState {
    version: String,
    held: Vec<(Arc<str>, IpNet)>,
    /// Of `held`, what was handed out under `version` and not seen on the node yet.
    granted: BTreeSet<IpNet>,
}

impl MultiPool {
    /// No pools and no nodes; addresses of these families are handed out.
    pub fn new(v4: bool, v6: bool) -> Self {
        let families = [(v4, Family::V4), (v6, Family::V6)];
        let families = families.into_iter().filter_map(|(on, family)| on.then_some(family));
        Self {
            families: families.collect(),
            pools: BTreeMap::new(),
            claims: Claims::default(),
            nodes: BTreeMap::new(),
            lacking: BTreeSet::new(),
            unfenced: BTreeMap::new(),
            ready: false,
            news: false,
        }
    }

    /// A pool is new or has changed; on an error it stays what it was.
    pub fn upsert_pool(&mut self, name: &str, spec: &PoolSpec<'_>) -> Result<(), PoolError> {
        let pool = PodPool::new(name, spec, self.pools.get(name))?;
        self.pools.insert(name.to_owned(), pool);
        self.news = true;
        Ok(())
    }

    /// A pool is gone; `false` if it was not there. What nodes have of it stays theirs.
    pub fn delete_pool(&mut self, name: &str) -> bool {
        self.news = true;
        self.pools.remove(name).is_some()
    }

    /// What of the pool's ranges nodes still have from a pool that does not contain it any more:
    /// node, pool and range.
    pub fn orphans_in(&self, pool: &str) -> Vec<(String, String, IpNet)> {
        let ranges = self.pools.get(pool).into_iter().flat_map(PodPool::ranges);
        let claims = ranges.flat_map(|range| self.claims.within(range));
        claims
            .filter(|claim| self.is_orphan(&claim.pool, claim.cidr))
            .map(|claim| (claim.node.to_string(), claim.pool.to_string(), claim.cidr))
            .collect()
    }

    /// Every node and pool has been seen: from now on ranges are handed out. Ask about every node again.
    ///
    /// `cut_off`: a former leader may still have writes under way, and these are the pools that have changed
    /// since it may have decided on them.
    pub fn resync(&mut self, cut_off: Option<&BTreeSet<String>>) {
        self.ready = true;
        let Some(edited) = cut_off else { return };
        // Who lacks nothing of a pool has something of it, unless it never asked.
        let holders = edited.iter().flat_map(|pool| self.holders(pool));
        let doubtful: BTreeSet<String> = self.lacking.iter().cloned().chain(holders).collect();
        let version = |name: String| {
            let version = self.nodes.get(&name)?.version.clone();
            Some((name, version))
        };
        self.unfenced = doubtful.into_iter().filter_map(version).collect();
    }

    /// What the node's object should say, given what it says.
    pub fn upsert(&mut self, node: PoolNode<'_>) -> Answer {
        if self.unfenced.get(node.name).is_some_and(|version| version != node.version) {
            self.unfence(node.name);
        }
        let mut errors = Vec::new();
        let listed = parse(node.allocated, &mut errors);
        self.settle(&node, &listed, &mut errors);
        let waits = !self.ready || !self.unfenced.is_empty();
        let complete = self.supply(&node, !waits, &mut errors);
        if complete {
            self.lacking.remove(node.name);
        } else {
            self.lacking.insert(node.name.to_owned());
        }
        // Also one that has come to lack nothing meanwhile: the others wait for its fence.
        if self.ready && self.unfenced.contains_key(node.name) {
            return Answer::Fence;
        }
        if !self.ready || (waits && !complete) {
            return Answer::Wait;
        }
        let (allocated, error) = (self.allocated(node.name), errors.join("\n"));
        let allocated = (allocated != node.allocated).then_some(allocated);
        let error = (error != node.error).then_some(error);
        if node.fenced && allocated.is_none() && error.is_none() {
            return Answer::Unfence;
        }
        Answer::Write { allocated, error }
    }

    /// The node is gone, and so is all that it had.
    pub fn delete(&mut self, name: &str) {
        self.lacking.remove(name);
        self.unfence(name);
        if let Some(state) = self.nodes.remove(name) {
            self.release(state.held.into_iter().map(|(_, cidr)| cidr));
        }
    }

    /// The nodes that lack something and that what has happened since the last call may have helped.
    pub fn to_ask(&mut self) -> Vec<String> {
        if !std::mem::take(&mut self.news) {
            return Vec::new();
        }
        self.lacking.iter().cloned().collect()
    }

    /// The nodes that have something of the pool.
    pub fn holders(&self, pool: &str) -> Vec<String> {
        let has = |state: &NodeState| state.held.iter().any(|(from, _)| &**from == pool);
        self.nodes.iter().filter(|(_, state)| has(state)).map(|(name, _)| name.clone()).collect()
    }

    /// What the node has, as its object should list it; not what its pool lost unseen: a next leader may not know of it.
    pub fn allocated(&self, name: &str) -> Vec<Allocation> {
        let mut pools: BTreeMap<&str, Vec<(Family, String)>> = BTreeMap::new();
        for (pool, cidr) in self.nodes.get(name).into_iter().flat_map(|state| &state.held) {
            let late = self.nodes[name].granted.contains(cidr) && self.is_orphan(pool, *cidr);
            if !late {
                pools.entry(pool).or_default().push((Family::of_net(*cidr), cidr.to_string()));
            }
        }
        let sorted = |(pool, mut cidrs): (&str, Vec<(Family, String)>)| {
            cidrs.sort();
            let cidrs = cidrs.into_iter().map(|(_, text)| text).collect();
            Allocation { pool: pool.to_owned(), cidrs }
        };
        pools.into_iter().map(sorted).collect()
    }

    /// Brings what the node has in line with what it lists.
    fn settle(
        &mut self,
        node: &PoolNode<'_>,
        listed: &[(Arc<str>, IpNet)],
        errors: &mut Vec<String>,
    ) {
        let state = self.nodes.entry(node.name.to_owned()).or_default();
        if state.version != node.version {
            node.version.clone_into(&mut state.version);
            state.granted.clear();
        }
        let granted = state.granted.clone();
        let stays = |(pool, cidr): &(Arc<str>, IpNet)| {
            granted.contains(cidr) || listed.iter().any(|one| one.0 == *pool && one.1 == *cidr)
        };
        let (held, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.held).into_iter().partition(stays);
        state.held = held;
        self.release(gone.into_iter().map(|(_, cidr)| cidr));
        let name: Arc<str> = node.name.into();
        for (pool, cidr) in listed {
            let mine = self.nodes.get(node.name);
            let mine = mine
                .is_some_and(|state| state.held.iter().any(|one| one == &(pool.clone(), *cidr)));
            if !mine {
                let claim = Claim { cidr: *cidr, node: name.clone(), pool: pool.clone() };
                if self.claims.insert(claim).is_err() {
                    errors.push(format!(
                        "unable to reuse from pool {pool}: cidr {cidr} has already been allocated"
                    ));
                    continue;
                }
                if let Some(state) = self.nodes.get_mut(node.name) {
                    state.held.push((pool.clone(), *cidr));
                }
            }
            if !self.pools.contains_key(&**pool) {
                errors.push(format!(
                    "unable to reuse from non-existing pool {pool}: prefix {cidr} stays allocated to the node as an orphan"
                ));
            } else if self.is_orphan(pool, *cidr) {
                errors.push(format!(
                    "unable to reuse from pool {pool}: prefix {cidr} is not part of the pool: it stays allocated to the node as an orphan"
                ));
            }
        }
    }

    /// Hands out what the node lacks, if that is allowed; whether it has all now.
    fn supply(&mut self, node: &PoolNode<'_>, allowed: bool, errors: &mut Vec<String>) -> bool {
        let mut complete = true;
        for request in node.requested {
            for family in self.families.clone() {
                let (needed, word) = match family {
                    Family::V4 => (request.v4, "ipv4"),
                    Family::V6 => (request.v6, "ipv6"),
                };
                let mut missing = u128::from(needed).saturating_sub(self.usable(
                    node.name,
                    &request.pool,
                    family,
                ));
                while missing > 0 {
                    if !allowed {
                        complete = false;
                        break;
                    }
                    match self.grant(node.name, &request.pool, family) {
                        Ok(cidr) => missing = missing.saturating_sub(usable(cidr)),
                        Err(cause) => {
                            complete = false;
                            errors.push(format!(
                                "failed to allocate {word} address for node {:?} from pool {:?}: {cause}",
                                node.name, request.pool
                            ));
                            break;
                        }
                    }
                }
            }
        }
        complete
    }

    fn grant(&mut self, node: &str, pool: &str, family: Family) -> Result<IpNet, String> {
        let known = self.pools.get_mut(pool);
        let known =
            known.ok_or_else(|| format!("cannot allocate from non-existing pool: {pool}"))?;
        let cidr = known.next(family, &self.claims).ok_or_else(|| "pool empty".to_owned())?;
        let (name, pool): (Arc<str>, Arc<str>) = (node.into(), pool.into());
        let claim = Claim { cidr, node: name, pool: pool.clone() };
        let taken = |other: Claim| format!("cidr {cidr} belongs to node {}", other.node);
        self.claims.insert(claim).map_err(taken)?;
        let state = self.nodes.entry(node.to_owned()).or_default();
        state.held.push((pool, cidr));
        state.granted.insert(cidr);
        Ok(cidr)
    }

    /// How many addresses of the pool the node can use; orphans don't count.
    fn usable(&self, node: &str, pool: &str, family: Family) -> u128 {
        let held = self.nodes.get(node).into_iter().flat_map(|state| &state.held);
        let counts = held.filter(|(from, cidr)| {
            &**from == pool && Family::of_net(*cidr) == family && !self.is_orphan(from, *cidr)
        });
        counts.map(|(_, cidr)| usable(*cidr)).fold(0, u128::saturating_add)
    }

    fn is_orphan(&self, pool: &str, cidr: IpNet) -> bool {
        !self.pools.get(pool).is_some_and(|pool| pool.contains(cidr))
    }

    fn unfence(&mut self, name: &str) {
        if self.unfenced.remove(name).is_some() && self.unfenced.is_empty() {
            self.news = true;
        }
    }

    fn release(&mut self, cidrs: impl Iterator<Item = IpNet>) {
        let mut any = false;
        for cidr in cidrs {
            self.claims.remove(cidr);
            any = true;
        }
        if any {
            self.news = true;
            self.pools.values_mut().for_each(PodPool::look_again);
        }
    }
}

/// How many addresses of a range pods can have: without the first and the last of more than two.
pub(crate) fn usable(cidr: IpNet) -> u128 {
    let span = bits::number(cidr.broadcast()) - bits::number(cidr.network());
    if span < 2 { span + 1 } else { span - 1 }
}

/// The ranges that a node lists, each once; what is none is an error.
fn parse(allocated: &[Allocation], errors: &mut Vec<String>) -> Vec<(Arc<str>, IpNet)> {
    let mut listed: Vec<(Arc<str>, IpNet)> = Vec::new();
    for Allocation { pool, cidrs } in allocated {
        let pool: Arc<str> = pool.as_str().into();
        for text in cidrs {
            match text.trim().parse::<IpNet>() {
                Ok(cidr) => {
                    let one = (pool.clone(), cidr.trunc());
                    if !listed.contains(&one) {
                        listed.push(one);
                    }
                }
                Err(_) => errors.push(format!(
                    "unable to reuse from pool {pool}: failed to parse CIDR {text:?}: an address, a slash and a prefix length are needed"
                )),
            }
        }
    }
    listed
}

#[cfg(test)]
mod moves;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
