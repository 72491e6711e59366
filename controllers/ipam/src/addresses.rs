//! Decides which address of its node's ranges an endpoint gets.
//!
//! Addresses go round: the next one is looked for behind the last one given out, so that one that
//! was given back rests for as long as there are others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::bits;
use crate::family::Family;

/// Why an address cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The node has no range of this family.
    #[error("allocate {0} address: this node has no {0} pod CIDR (yet)")]
    NoRange(Family),
    /// The node has nothing of the pool in this family.
    #[error("allocate {family} address from pool {pool:?}: this node has no range of it (yet)")]
    NoRangeOfPool {
        /// The family asked for.
        family: Family,
        /// The pool asked for.
        pool: String,
    },
    /// Everything that the node has of the pool is in use.
    #[error("allocate {family} address from pool {pool:?}: everything in {ranges} is in use")]
    PoolExhausted {
        /// The family asked for.
        family: Family,
        /// The pool asked for.
        pool: String,
        /// The node's ranges of it, as a list.
        ranges: String,
    },
    /// Everything is in use.
    #[error("allocate {family} address: all {used} addresses of {ranges} are in use")]
    Exhausted {
        /// The family asked for.
        family: Family,
        /// How many addresses are in use.
        used: usize,
        /// The ranges, as a list.
        ranges: String,
    },
    /// Somebody has the address.
    #[error("claim {address}: it belongs to {owner}")]
    Taken {
        /// The address asked for.
        address: IpAddr,
        /// Who has it.
        owner: String,
    },
    /// The address is none that an endpoint of this node could have.
    #[error("claim {0}: it is not a usable address of this node's pod CIDRs")]
    NotUsable(IpAddr),
}

/// The addresses of one node: which may be given out, and who has which.
///
/// Ranges may belong to pools; whatever the pool, an address has one owner.
///
/// About 100 bytes an address in use; nothing for one that is not.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    v4: Pool,
    v6: Pool,
}

#[derive(Debug, Clone, Default)]
struct Pool {
    /// Where addresses come from, by the name of the pool; one that has no pools has it under `""`.
    sources: BTreeMap<Arc<str>, Source>,
    /// Who has what; the node itself has its router address.
    owners: BTreeMap<u128, String>,
}

#[derive(Debug, Clone, Default)]
struct Source {
    ranges: Vec<IpNet>,
    /// The address given out last.
    last: Option<u128>,
}

/// The pool of a node that has no pools.
const WHOLE: &str = "";

impl Addresses {
    /// No ranges and no addresses.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on addresses come from these ranges. Addresses in use stay with their owners.
    pub fn set_ranges(&mut self, ranges: &[IpNet]) {
        self.set_pool(WHOLE, ranges);
    }

    /// From now on addresses of this pool come from these ranges. Addresses in use stay with their owners.
    pub fn set_pool(&mut self, pool: &str, ranges: &[IpNet]) {
        for family in Family::BOTH {
            let of_family = ranges.iter().filter(|net| Family::of_net(**net) == family);
            let ranges: Vec<IpNet> = of_family.map(IpNet::trunc).collect();
            let sources = &mut self.pool_mut(family).sources;
            if ranges.is_empty() {
                sources.remove(pool);
            } else {
                sources.entry(pool.into()).or_default().ranges = ranges;
            }
        }
    }

    /// The ranges, IPv4 first.
    pub fn ranges(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.v4.ranges().chain(self.v6.ranges())
    }

    /// Gives `owner` an address that nobody has.
    pub fn allocate(&mut self, family: Family, owner: &str) -> Result<IpAddr, AddressError> {
        self.allocate_from(WHOLE, family, owner).map_err(|error| match error {
            AddressError::NoRangeOfPool { .. } => AddressError::NoRange(family),
            AddressError::PoolExhausted { ranges, .. } => {
                AddressError::Exhausted { family, used: self.used(family), ranges }
            }
            other => other,
        })
    }

    /// Gives `owner` an address of the pool that nobody has.
    pub fn allocate_from(
        &mut self,
        pool: &str,
        family: Family,
        owner: &str,
    ) -> Result<IpAddr, AddressError> {
        let own = self.pool_mut(family);
        let Some(source) = own.sources.get_mut(pool) else {
            return Err(AddressError::NoRangeOfPool { family, pool: pool.to_owned() });
        };
        let number = source.next(&own.owners).ok_or_else(|| AddressError::PoolExhausted {
            family,
            pool: pool.to_owned(),
            ranges: bits::list(&source.ranges),
        })?;
        own.owners.insert(number, owner.to_owned());
        source.last = Some(number);
        Ok(bits::address(family, number))
    }

    /// Gives `owner` this address of the ranges, unless somebody else has it.
    pub fn claim(&mut self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        let usable = self.pool(Family::of(address)).ranges().any(|range| {
            let (first, last) = usable(range);
            (first..=last).contains(&bits::number(address)) && range.contains(&address)
        });
        if usable { self.restore(address, owner) } else { Err(AddressError::NotUsable(address)) }
    }

    /// Like [`claim`](Self::claim), but for an address that is in use already: wherever it comes
    /// from, it must not be given to another.
    pub fn restore(&mut self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        let pool = self.pool_mut(Family::of(address));
        let holder = pool.owners.entry(bits::number(address)).or_insert_with(|| owner.to_owned());
        if holder == owner {
            return Ok(());
        }
        Err(AddressError::Taken { address, owner: holder.clone() })
    }

    /// Takes the address back from `owner`; `false` if it is not theirs.
    pub fn release(&mut self, address: IpAddr, owner: &str) -> bool {
        let pool = self.pool_mut(Family::of(address));
        let number = bits::number(address);
        let theirs = pool.owners.get(&number).is_some_and(|holder| holder == owner);
        if theirs {
            pool.owners.remove(&number);
        }
        theirs
    }

    /// Takes back everything `owner` has.
    pub fn release_all(&mut self, owner: &str) -> Vec<IpAddr> {
        let theirs: Vec<IpAddr> = self
            .iter()
            .filter_map(|(address, holder)| (holder == owner).then_some(address))
            .collect();
        for address in &theirs {
            self.release(*address, owner);
        }
        theirs
    }

    /// Who has the address.
    pub fn owner(&self, address: IpAddr) -> Option<&str> {
        self.pool(Family::of(address)).owners.get(&bits::number(address)).map(String::as_str)
    }

    /// Every address in use with its owner, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        Family::BOTH.into_iter().flat_map(|family| {
            let owners = self.pool(family).owners.iter();
            owners.map(move |(number, owner)| (bits::address(family, *number), owner.as_str()))
        })
    }

    /// How many addresses of the family are in use.
    pub fn used(&self, family: Family) -> usize {
        self.pool(family).owners.len()
    }

    /// How many addresses of the range are in use.
    pub fn used_in(&self, range: IpNet) -> usize {
        let owners = &self.pool(Family::of_net(range)).owners;
        owners.range(bits::number(range.network())..=bits::number(range.broadcast())).count()
    }

    /// How many addresses of the family there are to give out, used or not.
    pub fn capacity(&self, family: Family) -> u128 {
        let sizes = self.pool(family).ranges().map(|range| {
            let (first, last) = usable(range);
            (last - first).saturating_add(1)
        });
        sizes.fold(0, u128::saturating_add)
    }

    fn pool(&self, family: Family) -> &Pool {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn pool_mut(&mut self, family: Family) -> &mut Pool {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

impl Pool {
    fn ranges(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.sources.values().flat_map(|source| &source.ranges).copied()
    }
}

impl Source {
    /// The first free address behind the last one given out, going round over all ranges.
    fn next(&self, owners: &BTreeMap<u128, String>) -> Option<u128> {
        let ranges: Vec<(u128, u128)> = self.ranges.iter().map(|range| usable(*range)).collect();
        let current = self.last.and_then(|last| {
            let of = ranges.iter().position(|(first, end)| (*first..=*end).contains(&last))?;
            Some((of, last))
        });
        let Some((of, last)) = current else {
            return ranges.iter().find_map(|(first, end)| free(owners, *first, *end));
        };
        let (first, end) = ranges[of];
        let behind = (last < end).then(|| free(owners, last + 1, end)).flatten();
        behind
            .or_else(|| {
                let others = ranges[of + 1..].iter().chain(&ranges[..of]);
                others.copied().find_map(|(first, end)| free(owners, first, end))
            })
            .or_else(|| free(owners, first, last))
    }
}

/// The first number from `first` to `end` that nobody has.
fn free(owners: &BTreeMap<u128, String>, first: u128, end: u128) -> Option<u128> {
    let mut candidate = first;
    for taken in owners.range(first..=end).map(|(number, _)| *number) {
        if taken != candidate {
            break;
        }
        candidate = taken.checked_add(1)?;
    }
    (candidate <= end).then_some(candidate)
}

/// The first and the last address that an endpoint may have: not the network's own, nor the
/// broadcast address, unless there are just one or two.
fn usable(range: IpNet) -> (u128, u128) {
    let (first, last) = (bits::number(range.network()), bits::number(range.broadcast()));
    if last - first < 2 { (first, last) } else { (first + 1, last - 1) }
}

#[cfg(test)]
mod tests;
