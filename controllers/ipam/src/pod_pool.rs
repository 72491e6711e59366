//! Checks a `CiliumPodIPPool` and decides which of its blocks is handed out next.

use ipnet::IpNet;

use crate::bits;
use crate::claims::{Claims, size};
use crate::family::Family;

/// What a pool says about one family.
#[derive(Debug, Clone, Copy)]
pub struct FamilySpec<'a> {
    /// `cidrs`.
    pub cidrs: &'a [String],
    /// `maskSize`.
    pub mask_size: u8,
}

/// What a pool says.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSpec<'a> {
    /// `spec.ipv4`.
    pub v4: Option<FamilySpec<'a>>,
    /// `spec.ipv6`.
    pub v6: Option<FamilySpec<'a>>,
}

/// Why a pool is not used as it is now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Nodes have blocks of the size that was.
    #[error(
        "cannot change {family} mask size in existing pool {pool:?}: it is {known}; make a new pool for blocks of {asked}"
    )]
    MaskChanged {
        /// The family.
        family: Family,
        /// The pool.
        pool: String,
        /// The size in use.
        known: u8,
        /// The size asked for.
        asked: u8,
    },
    /// Not a CIDR of the family.
    #[error(
        "invalid {family} CIDR in pool {pool:?}: {value:?}: an address, a slash and a prefix length are needed"
    )]
    NotACidr {
        /// The family.
        family: Family,
        /// The pool.
        pool: String,
        /// What it says.
        value: String,
    },
    /// The blocks do not fit the range.
    #[error(
        "invalid {family} maskSize {mask} in pool {pool:?}: {cidr} needs one from {least} to {most}"
    )]
    Mask {
        /// The family.
        family: Family,
        /// The pool.
        pool: String,
        /// What it says.
        mask: u8,
        /// The range that it must fit.
        cidr: IpNet,
        /// The smallest value allowed.
        least: u8,
        /// The largest value allowed.
        most: u8,
    },
    /// Two ranges of the pool overlap.
    #[error("{second} collides with {first} in pool {pool:?}")]
    Overlap {
        /// The pool.
        pool: String,
        /// The range that comes first.
        first: IpNet,
        /// The one that overlaps it.
        second: IpNet,
    },
}

/// The ranges of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodPool {
    v4: Option<Share>,
    v6: Option<Share>,
}

/// What a pool has of one family.
#[derive(Debug, Clone)]
struct Share {
    mask: u8,
    ranges: Vec<Range>,
    /// Nothing was free when last looked, and nothing has come free since.
    exhausted: bool,
}

#[derive(Debug, Clone)]
struct Range {
    cidr: IpNet,
    /// The address number behind the block handed out last.
    next: u128,
}

impl PodPool {
    /// The pool that `spec` describes; `former` is what it was before, whose ranges stay in front.
    pub(crate) fn new(
        name: &str,
        spec: &PoolSpec<'_>,
        former: Option<&Self>,
    ) -> Result<Self, PoolError> {
        let of = |family: Family, spec: Option<FamilySpec<'_>>| {
            let former = former.and_then(|former| former.of(family));
            spec.map(|spec| Share::new(name, family, spec, former)).transpose()
        };
        Ok(Self { v4: of(Family::V4, spec.v4)?, v6: of(Family::V6, spec.v6)? })
    }

    /// Whether the range lies in the pool.
    pub(crate) fn contains(&self, cidr: IpNet) -> bool {
        let ranges = self.of(Family::of_net(cidr));
        ranges.is_some_and(|own| own.ranges.iter().any(|range| bits::contains(range.cidr, cidr)))
    }

    /// The next block that nobody has any part of; served from the first range that is not full.
    pub(crate) fn next(&mut self, family: Family, claims: &Claims) -> Option<IpNet> {
        let own = match family {
            Family::V4 => self.v4.as_mut(),
            Family::V6 => self.v6.as_mut(),
        }?;
        if own.exhausted {
            return None;
        }
        for range in &mut own.ranges {
            if let Some(block) = claims.next_free(range.cidr, own.mask, range.next) {
                range.next = bits::number(block.network()).saturating_add(size(family, own.mask));
                return Some(block);
            }
        }
        own.exhausted = true;
        None
    }

    /// Something came free somewhere.
    pub(crate) fn look_again(&mut self) {
        for own in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            own.exhausted = false;
        }
    }

    /// The ranges of the pool, IPv4 first.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = IpNet> {
        let own = [&self.v4, &self.v6].into_iter().flatten();
        own.flat_map(|own| own.ranges.iter().map(|range| range.cidr))
    }

    fn of(&self, family: Family) -> Option<&Share> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }
}

impl Share {
    fn new(
        pool: &str,
        family: Family,
        spec: FamilySpec<'_>,
        former: Option<&Self>,
    ) -> Result<Self, PoolError> {
        let (pool_name, mask) = (|| pool.to_owned(), spec.mask_size);
        if let Some(former) = former.filter(|former| former.mask != mask) {
            let (known, asked) = (former.mask, mask);
            return Err(PoolError::MaskChanged { family, pool: pool_name(), known, asked });
        }
        let mut cidrs: Vec<IpNet> = Vec::new();
        for value in spec.cidrs {
            let cidr = value.trim().parse::<IpNet>().ok().map(|cidr| cidr.trunc());
            let cidr = cidr.filter(|cidr| Family::of_net(*cidr) == family);
            let cidr = cidr.ok_or_else(|| {
                let value = value.clone();
                PoolError::NotACidr { family, pool: pool_name(), value }
            })?;
            let (least, most) = (cidr.prefix_len().max(1), family.width());
            if !(least..=most).contains(&mask) {
                let pool = pool_name();
                return Err(PoolError::Mask { family, pool, mask, cidr, least, most });
            }
            let first = cidrs.iter().copied().find(|other| bits::overlap(*other, cidr));
            if let Some(first) = first {
                return Err(PoolError::Overlap { pool: pool_name(), first, second: cidr });
            }
            cidrs.push(cidr);
        }
        let kept = former.iter().flat_map(|former| &former.ranges);
        let mut ranges: Vec<Range> =
            kept.filter(|range| cidrs.contains(&range.cidr)).cloned().collect();
        for cidr in cidrs {
            if !ranges.iter().any(|range| range.cidr == cidr) {
                ranges.push(Range { cidr, next: bits::number(cidr.network()) });
            }
        }
        Ok(Self { mask, ranges, exhausted: false })
    }
}
