//! Decides what a node asks of each pool, which of its ranges it gives back, and which address a pod
//! gets out of them.
//!
//! * A range is given back when nobody has an address of it and the others are enough. From that
//!   decision on it is not used until the object has another version: the write, which names the version,
//!   may arrive late. The decisions outlive the agent ([`NodePools::releasing`]), because the writes may.
//! * What somebody else takes off the list although pods have addresses of it is put back, once; also what went
//!   while no agent ran ([`NodePools::restore_listed`]).
//! * Nothing is given back before the addresses of former pods are known ([`NodePools::restored`]), and the
//!   ranges of the pools ([`NodePools::set_pools`]): what the operator would give anew at once is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::addresses::{AddressError, Addresses};
use crate::bits;
use crate::demand::demand;
use crate::family::Family;
use crate::multi_pool::{Allocation, Request, usable};

/// How long, in seconds, a pod that got no address counts: so long kubelet tries again.
const WAITS: u64 = 300;

/// What a node's object should say under `spec.ipam.pools`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// `requested`, sorted by pool.
    pub requested: Vec<Request>,
    /// There is more to give back, when the time for it has come.
    pub later: bool,
    /// `allocated`, if it has to change.
    pub allocated: Option<Vec<Allocation>>,
    /// A pod waits for this, or ranges of pools that nobody here wants are given back.
    pub urgent: bool,
}

/// The ranges and addresses of one node.
#[derive(Debug, Clone)]
pub struct NodePools {
    families: Vec<Family>,
    pre_allocation: BTreeMap<String, u32>,
    addresses: Addresses,
    /// The object's version.
    version: String,
    listed: BTreeMap<String, Vec<IpNet>>,
    releasing: BTreeSet<(String, IpNet)>,
    /// In use, taken off the list by somebody else, to be put back.
    missing: BTreeSet<(String, IpNet)>,
    /// What has been missing before: it is not put back again.
    tried: BTreeSet<(String, IpNet)>,
    /// The ranges of every pool; nothing before they are known.
    pools: Option<BTreeMap<String, Vec<IpNet>>>,
    /// The pool of the node's own addresses.
    own: Option<String>,
    /// Pods that got no address: out of which pools, and until when they count.
    pending: BTreeMap<String, (Vec<(Family, String)>, u64)>,
    /// What the object listed for a former agent, until what is missing of it is known.
    former: Vec<(String, IpNet)>,
    restored: bool,
}

impl NodePools {
    /// No ranges yet; pods get addresses of these families.
    pub fn new(v4: bool, v6: bool, pre_allocation: BTreeMap<String, u32>) -> Self {
        let families = [(v4, Family::V4), (v6, Family::V6)];
        let families = families.into_iter().filter_map(|(on, family)| on.then_some(family));
        Self {
            families: families.collect(),
            pre_allocation,
            addresses: Addresses::new(),
            version: String::new(),
            listed: BTreeMap::new(),
            releasing: BTreeSet::new(),
            missing: BTreeSet::new(),
            tried: BTreeSet::new(),
            pools: None,
            own: None,
            pending: BTreeMap::new(),
            former: Vec::new(),
            restored: false,
        }
    }

    /// The node itself has an address out of this pool: one is asked for whatever pods there are.
    pub fn set_own_pool(&mut self, pool: &str) {
        self.own = Some(pool.to_owned());
    }

    /// The node's object, as of this version, lists this; what is no CIDR is passed over.
    pub fn observe(&mut self, version: &str, allocated: &[Allocation]) {
        let listed = ranges_of(allocated);
        let lists =
            |pool: &str, cidr: &IpNet| listed.get(pool).is_some_and(|cidrs| cidrs.contains(cidr));
        for (pool, cidr) in Self::pairs(&self.listed) {
            let lost = !lists(&pool, &cidr)
                && !self.releasing.contains(&(pool.clone(), cidr))
                && self.addresses.used_in(cidr) > 0;
            if lost && self.tried.insert((pool.clone(), cidr)) {
                self.missing.insert((pool, cidr));
            }
        }
        let addresses = &self.addresses;
        self.missing.retain(|(pool, cidr)| !lists(pool, cidr) && addresses.used_in(*cidr) > 0);
        self.tried.retain(|(_, cidr)| addresses.used_in(*cidr) > 0);
        if self.version != version {
            // What was sent under the other version has arrived, or never will.
            self.releasing.clear();
            version.clone_into(&mut self.version);
        }
        let former = std::mem::replace(&mut self.listed, listed);
        for pool in former.keys() {
            self.refresh(pool);
        }
        self.refresh_all();
    }

    /// The object is gone: nothing is the node's any more but what pods have addresses of.
    pub fn forgotten(&mut self) {
        for (pool, cidr) in Self::pairs(&self.listed) {
            if self.addresses.used_in(cidr) > 0 {
                self.missing.insert((pool, cidr));
            }
        }
        self.tried.clear();
        self.releasing.clear();
        self.version.clear();
        let former = std::mem::take(&mut self.listed);
        for pool in former.keys() {
            self.refresh(pool);
        }
    }

    /// A former agent had decided, under this version of the object, to give this back.
    pub fn restore_releasing(&mut self, version: String, releasing: BTreeSet<(String, IpNet)>) {
        (self.version, self.releasing) = (version, releasing);
        self.refresh_all();
    }

    /// The object listed this when a former agent saw it last.
    pub fn restore_listed(&mut self, listed: &[Allocation]) {
        self.former = Self::pairs(&ranges_of(listed));
    }

    /// What the object lists: to be written down before addresses of it are given out.
    pub fn listed(&self) -> Vec<Allocation> {
        let listed = self.listed.iter().map(|(pool, cidrs)| Allocation {
            pool: pool.clone(),
            cidrs: cidrs.iter().map(ToString::to_string).collect(),
        });
        listed.collect()
    }

    /// What is being given back under which version of the object: to be written down before the object
    /// is written.
    pub fn releasing(&self) -> (&str, &BTreeSet<(String, IpNet)>) {
        (&self.version, &self.releasing)
    }

    /// The addresses of former pods are known: from now on ranges are given back.
    pub fn restored(&mut self) {
        self.restored = true;
    }

    /// These are the ranges of every pool.
    pub fn set_pools(&mut self, pools: BTreeMap<String, Vec<IpNet>>) {
        self.pools = Some(pools);
    }

    /// What the object should say, given what it asks for now. Decides what is given back: if it is
    /// `time` for that, or something else has to be written at once.
    pub fn wish(&mut self, asked: &[Request], now: u64, time: bool) -> Wish {
        self.pending.retain(|_, (_, until)| *until > now);
        if self.restored {
            self.miss_former();
        }
        let mut requested = self.requested();
        let before = |pool: &str| asked.iter().find(|one| one.pool == pool);
        if !self.restored {
            // What a former agent asked for is not given up before its pods are known.
            for former in asked {
                match requested.iter_mut().find(|one| one.pool == former.pool) {
                    Some(one) => (one.v4, one.v6) = (one.v4.max(former.v4), one.v6.max(former.v6)),
                    None => requested.push(former.clone()),
                }
            }
            requested.sort_by(|a, b| a.pool.cmp(&b.pool));
        }
        let more = requested.iter().any(|one| {
            before(&one.pool).is_none_or(|former| one.v4 > former.v4 || one.v6 > former.v6)
        });
        let excess = if self.restored { self.excess() } else { Vec::new() };
        let unwanted = |pool: &str| !requested.iter().any(|one| one.pool == pool);
        let mut giving = self.releasing.iter().chain(&excess);
        let urgent = more || giving.any(|(pool, _)| unwanted(pool)) || !self.missing.is_empty();
        let later = !urgent && !time && !excess.is_empty();
        if !later && !excess.is_empty() {
            self.releasing.extend(excess);
            self.refresh_all();
        }
        let changes = !self.releasing.is_empty() || !self.missing.is_empty();
        Wish { urgent, later, allocated: changes.then(|| self.kept()), requested }
    }

    /// Gives `owner` an address of each family out of the pools named; all or nothing. Without one,
    /// the pod counts as waiting until [`forget`](Self::forget) or for some minutes.
    pub fn allocate(
        &mut self,
        wants: &[(Family, String)],
        owner: &str,
        pod: &str,
        now: u64,
    ) -> Result<Vec<IpAddr>, AddressError> {
        let mut given = Vec::new();
        for (family, pool) in wants {
            match self.addresses.allocate_from(pool, *family, owner) {
                Ok(address) => given.push(address),
                Err(error) => {
                    for address in given {
                        self.addresses.release(address, owner);
                    }
                    self.pending.insert(pod.to_owned(), (wants.to_vec(), now + WAITS));
                    return Err(error);
                }
            }
        }
        self.pending.remove(pod);
        Ok(given)
    }

    /// The pod waits no more.
    pub fn forget(&mut self, pod: &str) -> bool {
        self.pending.remove(pod).is_some()
    }

    /// Who has which address.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The same, to restore and release addresses.
    pub fn addresses_mut(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// The ranges of a pool, or of all, that the node has, with those that it is giving back.
    pub fn ranges<'a>(&'a self, pool: Option<&'a str>) -> impl Iterator<Item = IpNet> + 'a {
        let of = move |name: &str| pool.is_none_or(|pool| pool == name);
        let listed = self.listed.iter().filter(move |(name, _)| of(name));
        let missing = self.missing.iter().filter(move |(name, _)| of(name)).map(|(_, cidr)| *cidr);
        listed.flat_map(|(_, cidrs)| cidrs.iter().copied()).chain(missing)
    }

    /// What the node asks for, sorted by pool.
    fn requested(&self) -> Vec<Request> {
        let mut pools: BTreeSet<&str> = self.pre_allocation.keys().map(String::as_str).collect();
        pools.extend(self.own.as_deref());
        pools.extend(self.listed.keys().map(String::as_str));
        pools.extend(self.missing.iter().map(|(pool, _)| pool.as_str()));
        pools.extend(
            self.pending.values().flat_map(|(wants, _)| wants).map(|(_, pool)| pool.as_str()),
        );
        let request = |pool: &str| Request {
            pool: pool.to_owned(),
            v4: self.needed(pool, Family::V4),
            v6: self.needed(pool, Family::V6),
        };
        pools.into_iter().map(request).filter(|one| one.v4 > 0 || one.v6 > 0).collect()
    }

    fn needed(&self, pool: &str, family: Family) -> u32 {
        if !self.families.contains(&family) {
            return 0;
        }
        let ranges = self.ranges(Some(pool)).filter(|cidr| Family::of_net(*cidr) == family);
        let used: usize = ranges.map(|cidr| self.addresses.used_in(cidr)).sum();
        let wants = self.pending.values().flat_map(|(wants, _)| wants);
        let waiting = wants.filter(|(of, from)| *of == family && from == pool).count();
        let pre_allocation = self.pre_allocation.get(pool).copied().unwrap_or_default();
        let needed = demand(u32::try_from(used + waiting).unwrap_or(u32::MAX), pre_allocation);
        needed.max(u32::from(self.own.as_deref() == Some(pool)))
    }

    /// Ranges that nobody uses, the last first, while the others of their pool and family are enough. As for
    /// the operator, what its pool does not contain any more does not count.
    fn excess(&self) -> Vec<(String, IpNet)> {
        let (mut excess, Some(pools)) = (Vec::new(), &self.pools) else { return Vec::new() };
        for (pool, cidrs) in &self.listed {
            let counts = |cidr: &IpNet| {
                let own = pools.get(pool);
                own.is_some_and(|ranges| ranges.iter().any(|range| bits::contains(*range, *cidr)))
            };
            let worth = |cidr: &IpNet| if counts(cidr) { usable(*cidr) } else { 0 };
            for family in Family::BOTH {
                let mut kept: Vec<IpNet> = cidrs
                    .iter()
                    .copied()
                    .filter(|cidr| Family::of_net(*cidr) == family)
                    .filter(|cidr| !self.releasing.contains(&(pool.clone(), *cidr)))
                    .collect();
                let needed = u128::from(self.needed(pool, family));
                let mut total = kept.iter().map(worth).fold(0, u128::saturating_add);
                while let Some(cidr) = kept.pop() {
                    let rest = total - worth(&cidr);
                    if rest >= needed && self.addresses.used_in(cidr) == 0 {
                        total = rest;
                        excess.push((pool.clone(), cidr));
                    }
                }
            }
        }
        excess
    }

    /// Now that the pods are known: what they use of what the object listed before, and lists no more, is missing.
    fn miss_former(&mut self) {
        for (pool, cidr) in std::mem::take(&mut self.former) {
            let listed = self.listed.get(&pool).is_some_and(|cidrs| cidrs.contains(&cidr));
            let lost = !listed && self.addresses.used_in(cidr) > 0;
            if lost && self.tried.insert((pool.clone(), cidr)) {
                self.missing.insert((pool, cidr));
            }
        }
    }

    /// What the object should list: what it lists, without what is given back, with what is missing.
    fn kept(&self) -> Vec<Allocation> {
        let mut pools = self.listed.clone();
        for (pool, cidr) in &self.missing {
            pools.entry(pool.clone()).or_default().push(*cidr);
        }
        let kept = pools.into_iter().map(|(pool, cidrs)| {
            let cidrs =
                cidrs.into_iter().filter(|cidr| !self.releasing.contains(&(pool.clone(), *cidr)));
            Allocation { cidrs: cidrs.map(|cidr| cidr.to_string()).collect(), pool: pool.clone() }
        });
        kept.filter(|one| !one.cidrs.is_empty()).collect()
    }

    /// Addresses of the pool come from what it lists and is not given back.
    fn refresh(&mut self, pool: &str) {
        let cidrs = self.listed.get(pool).into_iter().flatten().copied();
        let usable = cidrs.filter(|cidr| !self.releasing.contains(&(pool.to_owned(), *cidr)));
        let usable: Vec<IpNet> = usable.collect();
        self.addresses.set_pool(pool, &usable);
    }

    fn refresh_all(&mut self) {
        let pools: Vec<String> = self.listed.keys().cloned().collect();
        for pool in &pools {
            self.refresh(pool);
        }
    }

    fn pairs(listed: &BTreeMap<String, Vec<IpNet>>) -> Vec<(String, IpNet)> {
        let of = |(pool, cidrs): (&String, &Vec<IpNet>)| {
            let pool = pool.clone();
            cidrs.clone().into_iter().map(move |cidr| (pool.clone(), cidr)).collect::<Vec<_>>()
        };
        listed.iter().flat_map(of).collect()
    }
}

/// The ranges of each pool; what is no CIDR is passed over.
fn ranges_of(allocated: &[Allocation]) -> BTreeMap<String, Vec<IpNet>> {
    let mut listed: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for Allocation { pool, cidrs } in allocated {
        let cidrs = cidrs.iter().filter_map(|text| text.trim().parse::<IpNet>().ok());
        listed.entry(pool.clone()).or_default().extend(cidrs.map(|cidr| cidr.trunc()));
    }
    listed
}

#[cfg(test)]
mod tests;
