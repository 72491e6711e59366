//! Decides whether a CIDR of one family can be had, over all of the family's cluster CIDRs.

use ipnet::IpNet;

use crate::cidr_set::CidrSet;
use crate::cluster_pool::Refusal;
use crate::family::Family;

/// The cluster CIDRs of one family, served from the first that is not full.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    pub(crate) sets: Vec<CidrSet>,
}

impl Ranges {
    /// Whether the family is configured at all.
    pub(crate) fn exist(&self) -> bool {
        !self.sets.is_empty()
    }

    /// The next free block.
    pub(crate) fn allocate(&mut self, family: Family) -> Result<IpNet, Refusal> {
        self.sets.iter_mut().find_map(CidrSet::allocate).ok_or(Refusal::Full(family))
    }

    /// Puts the CIDR into use, if nobody has any part of it.
    pub(crate) fn occupy(&mut self, cidr: IpNet) -> Result<(), Refusal> {
        let mut touched = self.sets.iter().filter(|set| set.in_range(cidr)).peekable();
        if touched.peek().is_none() {
            return Err(Refusal::NotConfigured(cidr));
        }
        for set in touched {
            if set.free() == 0 {
                return Err(Refusal::SetFull { set: set.cidr(), cidr });
            }
            if set.any_used(cidr) {
                return Err(Refusal::Taken(cidr));
            }
        }
        self.sets.iter_mut().for_each(|set| set.occupy(cidr));
        Ok(())
    }

    /// Frees the CIDR.
    pub(crate) fn release(&mut self, cidr: IpNet) {
        self.sets.iter_mut().for_each(|set| set.release(cidr));
    }
}
