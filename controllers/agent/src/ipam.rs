//! The addresses of this node's pods: who has which, out of what the node's `CiliumNode` lists.

mod metrics;
mod notes;
mod pools;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_ipam::{AddressError, Addresses, Allocation, Family, NodePools, Request, Wish};
use ipnet::IpNet;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub use metrics::Collector;
pub use pools::{PodPools, Wanted};

use crate::node::{self, IpamMode};
use metrics::Counts;
use notes::Notes;

/// Who has the router's addresses.
pub const ROUTER: &str = "router";
/// The file of an agent's notes for the next one.
const NOTES: &str = "ipam-releasing.json";
/// How long a pod waits for the operator to give its node a range of its pool; kubelet tries again.
const GIVEN_WITHIN: Duration = Duration::from_secs(10);

/// The addresses of this node; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Ipam(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    addresses: Mutex<Source>,
    /// Where notes for the next agent are written down.
    notes: Option<PathBuf>,
    /// What is written down there.
    noted: Mutex<Option<Notes>>,
    started: Instant,
    /// Changes when there may be addresses where there were none.
    supply: watch::Sender<u64>,
    /// Changes when the node's object may have to say something else.
    demand: watch::Sender<u64>,
    counts: Counts,
    pools: PodPools,
}

/// Where addresses come from.
#[derive(Debug)]
enum Source {
    /// The node's ranges, or single addresses.
    Ranges(Addresses),
    /// Pools, of which the node asks for as much as it needs.
    Pools(Box<NodePools>),
}

/// What an endpoint was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pair {
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            addresses: Mutex::new(Source::Ranges(Addresses::new())),
            notes: None,
            noted: Mutex::default(),
            started: Instant::now(),
            supply: watch::Sender::default(),
            demand: watch::Sender::default(),
            counts: Counts::default(),
            pools: PodPools::default(),
        }
    }
}

impl Ipam {
    /// Addresses as the node's mode has it. An agent's notes for the next one are kept in `state_dir`.
    pub fn new(config: &node::Config, state_dir: &Path) -> Self {
        match &config.ipam {
            IpamMode::MultiPool { default_pool, pre_allocation } => Self::of_pools(
                (config.ipv4, config.ipv6),
                pre_allocation.clone(),
                default_pool,
                state_dir.join(NOTES),
            ),
            _ => Self::default(),
        }
    }

    /// Addresses of the families that are on, out of pools. What is being given back is written down
    /// in `notes`.
    fn of_pools(
        (ipv4, ipv6): (bool, bool),
        pre_allocation: BTreeMap<String, u32>,
        default_pool: &str,
        notes: PathBuf,
    ) -> Self {
        let mut source = NodePools::new(ipv4, ipv6, pre_allocation);
        source.set_own_pool(default_pool);
        let former = Notes::read(&notes);
        source.restore_listed(&former.allocations());
        source.restore_releasing(former.version, former.releasing);
        let (addresses, notes) = (Mutex::new(Source::Pools(Box::new(source))), Some(notes));
        let pools = PodPools::new(default_pool);
        Self(Arc::new(Shared { addresses, notes, pools, ..Shared::default() }))
    }

    /// The cluster's pools.
    pub fn pools(&self) -> &PodPools {
        &self.0.pools
    }

    /// Whether addresses come out of pools.
    pub fn has_pools(&self) -> bool {
        matches!(&*self.source(), Source::Pools(_))
    }

    /// From now on addresses come from these ranges, and the routers' are not given out.
    pub fn set_ranges(&self, ranges: &[IpNet], routers: &[IpAddr]) -> Result<(), AddressError> {
        let outcome = {
            let mut source = self.source();
            let addresses = source.addresses_mut();
            addresses.release_all(ROUTER);
            addresses.set_ranges(ranges);
            routers.iter().try_for_each(|router| addresses.restore(*router, ROUTER))
        };
        bump(&self.0.supply);
        outcome
    }

    /// The node's object, as of a version, lists these ranges of pools; nothing if there is no object.
    pub fn observe(&self, object: Option<(&str, &[Allocation])>) {
        if let Source::Pools(pools) = &mut *self.source() {
            match object {
                Some((version, allocated)) => pools.observe(version, allocated),
                None => pools.forgotten(),
            }
        }
        bump(&self.0.supply);
    }

    /// The routers have these addresses.
    pub fn set_routers(&self, routers: &[IpAddr]) -> Result<(), AddressError> {
        let mut source = self.source();
        let addresses = source.addresses_mut();
        addresses.release_all(ROUTER);
        routers.iter().try_for_each(|router| addresses.restore(*router, ROUTER))
    }

    /// What the node's object should say about pools, given what it asks for now; nothing where there
    /// are none. `time`: what nobody waits for may be written, too. What is given back has been written down
    /// when this returns.
    pub fn wish(&self, asked: &[Request], time: bool) -> Result<Option<Wish>, std::io::Error> {
        let now = self.0.started.elapsed().as_secs();
        let mut source = self.source();
        let Source::Pools(pools) = &mut *source else { return Ok(None) };
        if let Some(ranges) = self.0.pools.ranges() {
            pools.set_pools(ranges);
        }
        let wish = pools.wish(asked, now, time);
        if let Some(path) = &self.0.notes {
            let news = Notes::of(pools);
            let mut noted = self.0.noted.lock().unwrap_or_else(PoisonError::into_inner);
            if !noted.as_ref().is_some_and(|noted| noted.says_the_same(&news)) {
                news.write(path)?;
                *noted = Some(news);
            }
        }
        Ok(Some(wish))
    }

    /// The ranges that the node has, of one pool or of all.
    pub fn ranges(&self, pool: Option<&str>) -> Vec<IpNet> {
        match &*self.source() {
            Source::Pools(pools) => pools.ranges(pool).collect(),
            Source::Ranges(addresses) => addresses.ranges().collect(),
        }
    }

    /// The addresses of former pods are known: from now on ranges are given back.
    pub fn restored(&self) {
        if let Source::Pools(pools) = &mut *self.source() {
            pools.restored();
        }
        bump(&self.0.demand);
    }

    /// Gives `owner` an address of each family that is on; all or nothing.
    #[cfg(test)]
    pub fn allocate(&self, owner: &str, ipv4: bool, ipv6: bool) -> Result<Pair, AddressError> {
        let wants = [(ipv4, Family::V4), (ipv6, Family::V6)];
        let wants = wants.into_iter().filter_map(|(on, family)| on.then_some(family));
        self.take(&wants.map(|family| (family, String::new())).collect::<Vec<_>>(), owner, owner)
    }

    /// Gives `owner`, which is for `pod`, an address of each family wanted; all or nothing. Where there
    /// are pools, it asks for more of them and waits for a while.
    pub async fn allocate_out_of(
        &self,
        wants: &[(Family, String)],
        owner: &str,
        pod: &str,
    ) -> Result<Pair, AddressError> {
        let mut supply = self.0.supply.subscribe();
        let deadline = Instant::now() + GIVEN_WITHIN;
        let mut asked = false;
        loop {
            supply.borrow_and_update();
            let error = match self.take(wants, owner, pod) {
                Ok(pair) => {
                    bump(&self.0.demand);
                    return Ok(pair);
                }
                Err(error) if self.has_pools() => error,
                Err(error) => return Err(error),
            };
            // Once: whoever looks at the demand says what there is, and that is heard here.
            if !std::mem::replace(&mut asked, true) {
                bump(&self.0.demand);
            }
            if timeout_at(deadline, supply.changed()).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Notes that `owner` has this address already.
    pub fn restore(&self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        self.source().addresses_mut().restore(address, owner)
    }

    /// Gives `owner` this address of the node's ranges, unless somebody has it.
    pub fn claim(&self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        {
            let mut source = self.source();
            let addresses = source.addresses_mut();
            if let Some(holder) = addresses.owner(address) {
                return Err(AddressError::Taken { address, owner: holder.to_owned() });
            }
            addresses.claim(address, owner)?;
        }
        self.0.counts.given(&[address]);
        bump(&self.0.demand);
        Ok(())
    }

    /// Gives `to` an address that `from` has, without anybody else having it in between.
    pub fn pass(&self, address: IpAddr, from: &str, to: &str) -> Result<(), AddressError> {
        let mut source = self.source();
        let addresses = source.addresses_mut();
        match addresses.owner(address) {
            Some(owner) if owner == from => {
                addresses.release(address, from);
                addresses.claim(address, to)
            }
            Some(owner) => Err(AddressError::Taken { address, owner: owner.to_owned() }),
            None => Err(AddressError::NotUsable(address)),
        }
    }

    /// Takes one address back from `owner`; whether it was theirs.
    pub fn release_one(&self, address: IpAddr, owner: &str) -> bool {
        let released = self.source().addresses_mut().release(address, owner);
        if released {
            self.0.counts.released(&[address]);
            bump(&self.0.supply);
            bump(&self.0.demand);
        }
        released
    }

    /// Takes back what `owner` has.
    pub fn release(&self, owner: &str) {
        let released = self.source().addresses_mut().release_all(owner);
        if !released.is_empty() {
            self.0.counts.released(&released);
            bump(&self.0.supply);
            bump(&self.0.demand);
        }
    }

    /// The pod is gone, and waits for no address any more.
    pub fn forget(&self, pod: &str) {
        let forgotten = match &mut *self.source() {
            Source::Pools(pools) => pools.forget(pod),
            Source::Ranges(_) => false,
        };
        if forgotten {
            bump(&self.0.demand);
        }
    }

    /// Who has the address.
    pub fn owner(&self, address: IpAddr) -> Option<String> {
        self.source().addresses().owner(address).map(str::to_owned)
    }

    /// Changes when the node's object may have to say something else.
    pub fn demand(&self) -> watch::Receiver<u64> {
        self.0.demand.subscribe()
    }

    /// Every address in use with its owner.
    pub fn list(&self) -> Vec<(IpAddr, String)> {
        let source = self.source();
        source.addresses().iter().map(|(address, owner)| (address, owner.to_owned())).collect()
    }

    /// How many addresses of a family are in use, and how many there are.
    pub fn usage(&self, ipv6: bool) -> (usize, u128) {
        let family = if ipv6 { Family::V6 } else { Family::V4 };
        let source = self.source();
        (source.addresses().used(family), source.addresses().capacity(family))
    }

    fn take(
        &self,
        wants: &[(Family, String)],
        owner: &str,
        pod: &str,
    ) -> Result<Pair, AddressError> {
        let now = self.0.started.elapsed().as_secs();
        let given = match &mut *self.source() {
            Source::Pools(pools) => pools.allocate(wants, owner, pod, now),
            Source::Ranges(addresses) => {
                let given = wants.iter().map(|(family, _)| addresses.allocate(*family, owner));
                given.collect::<Result<Vec<_>, _>>().inspect_err(|_| {
                    addresses.release_all(owner);
                })
            }
        }?;
        self.0.counts.given(&given);
        let mut pair = Pair::default();
        for address in given {
            match address {
                IpAddr::V4(address) => pair.ipv4 = Some(address),
                IpAddr::V6(address) => pair.ipv6 = Some(address),
            }
        }
        Ok(pair)
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn addresses(&self) -> &Addresses {
        match self {
            Self::Ranges(addresses) => addresses,
            Self::Pools(pools) => pools.addresses(),
        }
    }

    fn addresses_mut(&mut self) -> &mut Addresses {
        match self {
            Self::Ranges(addresses) => addresses,
            Self::Pools(pools) => pools.addresses_mut(),
        }
    }
}

fn bump(version: &watch::Sender<u64>) {
    version.send_modify(|version| *version += 1);
}
