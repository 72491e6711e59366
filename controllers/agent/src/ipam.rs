//! The addresses of this node's pods: who has which, out of the ranges of the node's `CiliumNode`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_ipam::{AddressError, Addresses, Family};
use ipnet::IpNet;

/// Who has the router's addresses.
pub const ROUTER: &str = "router";

/// The addresses of this node; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Ipam(Arc<Mutex<Addresses>>);

/// What an endpoint was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pair {
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl Ipam {
    /// From now on addresses come from these ranges, and the routers' are not given out.
    pub fn set_ranges(&self, ranges: &[IpNet], routers: &[IpAddr]) -> Result<(), AddressError> {
        let mut addresses = self.addresses();
        addresses.release_all(ROUTER);
        addresses.set_ranges(ranges);
        routers.iter().try_for_each(|router| addresses.restore(*router, ROUTER))
    }

    /// Gives `owner` an address of each family that is on; all or nothing.
    pub fn allocate(&self, owner: &str, ipv4: bool, ipv6: bool) -> Result<Pair, AddressError> {
        let mut addresses = self.addresses();
        let mut pair = Pair::default();
        for family in [(ipv4, Family::V4), (ipv6, Family::V6)]
            .into_iter()
            .filter_map(|(on, family)| on.then_some(family))
        {
            match addresses.allocate(family, owner) {
                Ok(IpAddr::V4(address)) => pair.ipv4 = Some(address),
                Ok(IpAddr::V6(address)) => pair.ipv6 = Some(address),
                Err(error) => {
                    addresses.release_all(owner);
                    return Err(error);
                }
            }
        }
        Ok(pair)
    }

    /// Notes that `owner` has this address already.
    pub fn restore(&self, address: IpAddr, owner: &str) -> Result<(), AddressError> {
        self.addresses().restore(address, owner)
    }

    /// Takes back what `owner` has.
    pub fn release(&self, owner: &str) {
        self.addresses().release_all(owner);
    }

    /// Every address in use with its owner.
    #[cfg(test)]
    pub fn list(&self) -> Vec<(IpAddr, String)> {
        self.addresses().iter().map(|(address, owner)| (address, owner.to_owned())).collect()
    }

    /// How many addresses of a family are in use, and how many there are.
    #[cfg(test)]
    pub fn usage(&self, ipv6: bool) -> (usize, u128) {
        let family = if ipv6 { Family::V6 } else { Family::V4 };
        let addresses = self.addresses();
        (addresses.used(family), addresses.capacity(family))
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Ipam;

    #[test]
    fn an_endpoint_gets_both_families_or_nothing() {
        let ipam = Ipam::default();
        let nets = ["10.0.0.0/29".parse().unwrap(), "fd00::/126".parse().unwrap()];
        ipam.set_ranges(&nets, &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]).unwrap();
        let pair = ipam.allocate("a", true, true).unwrap();
        assert_eq!(
            (pair.ipv4, pair.ipv6),
            (Some("10.0.0.2".parse().unwrap()), Some("fd00::2".parse().unwrap()))
        );
        let error = ipam.allocate("b", true, true).unwrap_err();
        assert!(error.to_string().contains("fd00::/126"), "{error}");
        assert_eq!(ipam.usage(false).0, 2, "the IPv4 address was taken back");
        ipam.release("a");
        assert!(ipam.allocate("b", true, true).is_ok());
        assert!(ipam.restore("10.0.0.1".parse().unwrap(), "c").is_err());
    }
}
