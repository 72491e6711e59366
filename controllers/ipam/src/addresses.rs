//! Decides which address of its node's ranges an endpoint gets.
//!
//! Addresses go round: the next one is looked for behind the last one given out, so that one that
//! was given back rests for as long as there are others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::bits;
use crate::family::Family;

/// Why an address cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The node has no range of this family.
    #[error("allocate {0} address: this node has no {0} pod CIDR (yet)")]
    NoRange(Family),
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
/// About 100 bytes an address in use; nothing for one that is not.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    v4: Pool,
    v6: Pool,
}

#[derive(Debug, Clone, Default)]
struct Pool {
    ranges: Vec<IpNet>,
    /// Who has what; the node itself has its router address.
    owners: BTreeMap<u128, String>,
    /// The address given out last.
    last: Option<u128>,
}

impl Addresses {
    /// No ranges and no addresses.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on addresses come from these ranges. Addresses in use stay with their owners.
    pub fn set_ranges(&mut self, ranges: &[IpNet]) {
        for family in Family::BOTH {
            let of_family = ranges.iter().filter(|net| Family::of_net(**net) == family);
            self.pool_mut(family).ranges = of_family.map(IpNet::trunc).collect();
        }
    }

    /// The ranges, IPv4 first.
    pub fn ranges(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.v4.ranges.iter().chain(&self.v6.ranges).copied()
    }

    /// Gives `owner` an address that nobody has.
    pub fn allocate(&mut self, family: Family, owner: &str) -> Result<IpAddr, AddressError> {
        let pool = self.pool_mut(family);
        if pool.ranges.is_empty() {
            return Err(AddressError::NoRange(family));
        }
        let number = pool.next().ok_or_else(|| AddressError::Exhausted {
            family,
            used: pool.owners.len(),
            ranges: bits::list(&pool.ranges),
        })?;
        pool.owners.insert(number, owner.to_owned());
        pool.last = Some(number);
        Ok(bits::address(family, number))
    }

    /// Gives `owner` this address of the ranges, unless somebody else has it.
    pub fn claim(&mut self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        let usable = self.pool(Family::of(address)).ranges.iter().any(|range| {
            let (first, last) = usable(*range);
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

    /// How many addresses of the family there are to give out, used or not.
    pub fn capacity(&self, family: Family) -> u128 {
        let sizes = self.pool(family).ranges.iter().map(|range| {
            let (first, last) = usable(*range);
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
    /// The first free address behind the last one given out, going round over all ranges.
    fn next(&self) -> Option<u128> {
        let ranges: Vec<(u128, u128)> = self.ranges.iter().map(|range| usable(*range)).collect();
        let current = self.last.and_then(|last| {
            let of = ranges.iter().position(|(first, end)| (*first..=*end).contains(&last))?;
            Some((of, last))
        });
        let Some((of, last)) = current else {
            return ranges.iter().find_map(|(first, end)| self.free(*first, *end));
        };
        let (first, end) = ranges[of];
        let behind = (last < end).then(|| self.free(last + 1, end)).flatten();
        behind
            .or_else(|| {
                let others = ranges[of + 1..].iter().chain(&ranges[..of]);
                others.copied().find_map(|(first, end)| self.free(first, end))
            })
            .or_else(|| self.free(first, last))
    }

    /// The first free number from `first` to `end`.
    fn free(&self, first: u128, end: u128) -> Option<u128> {
        let mut candidate = first;
        for taken in self.owners.range(first..=end).map(|(number, _)| *number) {
            if taken != candidate {
                break;
            }
            candidate = taken.checked_add(1)?;
        }
        (candidate <= end).then_some(candidate)
    }
}

/// The first and the last address that an endpoint may have: not the network's own, nor the
/// broadcast address, unless there are just one or two.
fn usable(range: IpNet) -> (u128, u128) {
    let (first, last) = (bits::number(range.network()), bits::number(range.broadcast()));
    if last - first < 2 { (first, last) } else { (first + 1, last - 1) }
}

#[cfg(test)]
mod tests;
