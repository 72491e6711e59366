//! Decides whether a range is free: no part of an address range ever has two owners.
//!
//! An ordered map of ranges that don't overlap, whatever pool they come from. About 120 bytes a range.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;

use crate::bits;
use crate::family::Family;

/// A range that a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) cidr: IpNet,
    pub(crate) node: Arc<str>,
    /// The pool that the node has it from.
    pub(crate) pool: Arc<str>,
}

/// Every range that a node has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(BTreeMap<(Family, u128), Claim>);

impl Claims {
    /// A claim that has an address in common with the range.
    pub(crate) fn blocker(&self, cidr: IpNet) -> Option<&Claim> {
        let (family, first, last) = bounds(cidr);
        // Claims don't overlap: if any reaches into the range, the last to begin before its end does.
        let (_, claim) = self.0.range((family, 0)..=(family, last)).next_back()?;
        (bits::number(claim.cidr.broadcast()) >= first).then_some(claim)
    }

    /// Notes that a node has the range; who has part of it already is the error.
    pub(crate) fn insert(&mut self, claim: Claim) -> Result<(), Claim> {
        if let Some(other) = self.blocker(claim.cidr) {
            return Err(other.clone());
        }
        let (family, first, _) = bounds(claim.cidr);
        self.0.insert((family, first), claim);
        Ok(())
    }

    /// Nobody has the range any more.
    pub(crate) fn remove(&mut self, cidr: IpNet) {
        let (family, first, _) = bounds(cidr);
        self.0.remove(&(family, first));
    }

    /// The claims within the range, or that contain it.
    pub(crate) fn within(&self, cidr: IpNet) -> impl Iterator<Item = &Claim> {
        let (family, first, last) = bounds(cidr);
        let around = self.blocker(IpNet::from(cidr.network()));
        let around = around.filter(move |claim| bits::number(claim.cidr.network()) < first);
        let inside = self.0.range((family, first)..=(family, last)).map(|(_, claim)| claim);
        around.into_iter().chain(inside)
    }

    /// The first free block of `mask` bits in `range` at or behind the address number `from`, going round.
    ///
    /// Costs a look at each claim that is passed over.
    pub(crate) fn next_free(&self, range: IpNet, mask: u8, from: u128) -> Option<IpNet> {
        let (_, first, last) = bounds(range);
        self.free_between(range, mask, from.max(first), last)
            .or_else(|| self.free_between(range, mask, first, from.checked_sub(1)?.min(last)))
    }

    fn free_between(&self, range: IpNet, mask: u8, first: u128, last: u128) -> Option<IpNet> {
        let family = Family::of_net(range);
        let size = size(family, mask);
        let mut candidate = align_up(first, size)?;
        while candidate <= last {
            let block = IpNet::new(bits::address(family, candidate), mask).ok()?;
            let Some(taken) = self.blocker(block) else { return Some(block) };
            let behind = bits::number(taken.cidr.broadcast()).checked_add(1)?;
            candidate = align_up(behind, size)?;
        }
        None
    }
}

/// How many addresses a block of `mask` bits has; `mask` is at least 1.
pub(crate) fn size(family: Family, mask: u8) -> u128 {
    1 << (family.width() - mask).min(127)
}

fn align_up(number: u128, size: u128) -> Option<u128> {
    Some(number.checked_add(size - 1)? / size * size)
}

fn bounds(cidr: IpNet) -> (Family, u128, u128) {
    (Family::of_net(cidr), bits::number(cidr.network()), bits::number(cidr.broadcast()))
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::{Claim, Claims};

    fn net(text: &str) -> IpNet {
        text.parse().expect("a CIDR")
    }

    fn claim(cidr: IpNet) -> Claim {
        Claim { cidr, node: "n".into(), pool: "p".into() }
    }

    #[test]
    fn agrees_with_a_list() {
        for seed in 0..500 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut claims, mut list) = (Claims::default(), Vec::<IpNet>::new());
            let range = net("10.0.0.0/26");
            for step in 0..40 {
                let mask = rng.random_range(26..=32);
                let address = std::net::Ipv4Addr::from(0x0a00_0000 + rng.random_range(0..64u32));
                let cidr = IpNet::new(address.into(), mask).expect("fits").trunc();
                let free = |block: IpNet| {
                    !list.iter().any(|other| other.contains(&block) || block.contains(other))
                };
                match rng.random_range(0..4) {
                    0 if !list.is_empty() => {
                        let gone = list.swap_remove(rng.random_range(0..list.len()));
                        claims.remove(gone);
                    }
                    1 => {
                        let got =
                            claims.next_free(range, mask, crate::bits::number(cidr.network()));
                        let blocks = range.subnets(mask).expect("fits");
                        let any = blocks.filter(|block| free(*block)).count() > 0;
                        assert_eq!(got.is_some(), any, "seed {seed} step {step}");
                        assert!(got.is_none_or(|block| free(block) && range.contains(&block)));
                    }
                    _ => {
                        let want = free(cidr);
                        assert_eq!(claims.blocker(cidr).is_none(), want, "seed {seed} step {step}");
                        assert_eq!(claims.insert(claim(cidr)).is_ok(), want, "seed {seed}");
                        if want {
                            list.push(cidr);
                        }
                    }
                }
                let within = claims.within(cidr).count();
                let want =
                    list.iter().filter(|other| other.contains(&cidr) || cidr.contains(*other));
                assert_eq!(within, want.count(), "seed {seed} step {step}");
            }
        }
    }

    #[test]
    fn goes_round_and_copes_with_the_ends() {
        let mut claims = Claims::default();
        let range = net("255.255.255.252/30");
        let number = |text: &str| crate::bits::number(net(text).network());
        let next = |claims: &Claims, from: &str| claims.next_free(range, 32, number(from));
        assert_eq!(next(&claims, "255.255.255.255/32"), Some(net("255.255.255.255/32")));
        claims.insert(claim(net("255.255.255.255/32"))).expect("free");
        assert_eq!(next(&claims, "255.255.255.255/32"), Some(net("255.255.255.252/32")));
        assert_eq!(next(&claims, "0.0.0.0/32"), Some(net("255.255.255.252/32")));
        assert_eq!(claims.next_free(net("::/0"), 1, 0), Some(net("::/1")));
    }
}
