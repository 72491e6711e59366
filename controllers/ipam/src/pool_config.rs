//! Checks the CIDRs and mask sizes that the user gives to the cluster-pool.

use ipnet::IpNet;

use crate::bits;
use crate::cidr_set::CidrSet;
use crate::family::Family;

/// By how much an IPv6 node mask may be longer than its cluster CIDR's.
const MAX_BITS_V6: u8 = 16;
/// The same for IPv4, where it bounds nothing but memory: 16 million nodes.
const MAX_BITS_V4: u8 = 24;

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A family is on, but has no CIDR.
    #[error("{flag} must be set: enable-{family} is true and ipam is cluster-pool")]
    Missing {
        /// The flag without a value.
        flag: String,
        /// The family, as flags spell it.
        family: &'static str,
    },
    /// A family is off, but has CIDRs.
    #[error("{flag} must not be set: enable-{family} is false")]
    Unwanted {
        /// The flag with a value too many.
        flag: String,
        /// The family, as flags spell it.
        family: &'static str,
    },
    /// Not a CIDR of the family.
    #[error("{flag}: {value:?} is not an {family} CIDR")]
    NotACidr {
        /// The flag.
        flag: String,
        /// What it holds.
        value: String,
        /// What it should hold.
        family: Family,
    },
    /// Two CIDRs of a list overlap.
    #[error("{flag}: {second} collides with {first}")]
    Overlap {
        /// The flag.
        flag: String,
        /// The CIDR that comes first.
        first: IpNet,
        /// The one that overlaps it.
        second: IpNet,
    },
    /// The node mask does not fit a cluster CIDR.
    #[error("{flag} {mask} does not fit {cidr}: it must be from {least} to {most}")]
    Mask {
        /// The flag of the mask size.
        flag: String,
        /// Its value.
        mask: i64,
        /// The cluster CIDR it must fit.
        cidr: IpNet,
        /// The smallest value allowed.
        least: u8,
        /// The largest value allowed.
        most: u8,
    },
}

/// One family's part of the configuration.
#[derive(Debug, Clone)]
pub struct PoolConfig<'a> {
    /// `enable-ipv4` or `enable-ipv6`.
    pub enabled: bool,
    /// `cluster-pool-ipv4-cidr` or `cluster-pool-ipv6-cidr`.
    pub cidrs: &'a [String],
    /// `cluster-pool-ipv4-mask-size` or `cluster-pool-ipv6-mask-size`.
    pub mask_size: i64,
}

impl PoolConfig<'_> {
    /// The sets of the family, in the order in which they are used.
    pub(crate) fn sets(&self, family: Family) -> Result<Vec<CidrSet>, ConfigError> {
        let spelled = match family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        let flag = || format!("cluster-pool-{spelled}-cidr");
        match (self.enabled, self.cidrs.is_empty()) {
            (true, true) => {
                return Err(ConfigError::Missing { flag: flag(), family: spelled });
            }
            (false, false) => {
                return Err(ConfigError::Unwanted { flag: flag(), family: spelled });
            }
            _ => {}
        }
        let mut sets: Vec<CidrSet> = Vec::new();
        for value in self.cidrs {
            let cidr = value.trim().parse::<IpNet>().ok().map(|cidr| cidr.trunc());
            let cidr = cidr.filter(|cidr| Family::of_net(*cidr) == family).ok_or_else(|| {
                ConfigError::NotACidr { flag: flag(), value: value.clone(), family }
            })?;
            if let Some(first) =
                sets.iter().map(CidrSet::cidr).find(|set| bits::overlap(*set, cidr))
            {
                return Err(ConfigError::Overlap { flag: flag(), first, second: cidr });
            }
            let bits = if family == Family::V4 { MAX_BITS_V4 } else { MAX_BITS_V6 };
            let (least, most) =
                (cidr.prefix_len(), family.width().min(cidr.prefix_len().saturating_add(bits)));
            let mask = u8::try_from(self.mask_size).ok();
            let mask = mask.filter(|mask| (least..=most).contains(mask)).ok_or_else(|| {
                let flag = format!("cluster-pool-{spelled}-mask-size");
                ConfigError::Mask { flag, mask: self.mask_size, cidr, least, most }
            })?;
            sets.push(CidrSet::new(cidr, mask));
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::PoolConfig;
    use crate::Family;

    #[test]
    fn says_what_is_wrong() {
        let cases: &[(Family, bool, &[&str], i64, &str)] = &[
            (Family::V4, true, &[], 24, "cluster-pool-ipv4-cidr must be set"),
            (Family::V6, false, &["fd00::/104"], 120, "must not be set: enable-ipv6 is false"),
            (Family::V4, true, &["fd00::/104"], 24, "not an IPv4 CIDR"),
            (Family::V4, true, &["10.0.0.0"], 24, "not an IPv4 CIDR"),
            (Family::V4, true, &["10.0.0.0/16", "10.0.0.0/8"], 24, "10.0.0.0/8 collides with"),
            (Family::V6, true, &["fd00::/100", "fd00::/96"], 112, "fd00::/96 collides with"),
            (Family::V4, true, &["10.0.0.0/16"], 33, "must be from 16 to 32"),
            (Family::V4, true, &["10.0.0.0/16"], 8, "must be from 16 to 32"),
            (Family::V6, true, &["fd00::/100"], 117, "must be from 100 to 116"),
            (Family::V4, true, &["10.0.0.0/16", "10.1.0.0/16"], 24, ""),
            (Family::V6, true, &["fd00::/100", "fd00::1:0:0/96"], 112, ""),
            (Family::V6, true, &["fd00::/104"], 120, ""),
            (Family::V6, false, &[], 120, ""),
        ];
        for &(family, enabled, cidrs, mask_size, want) in cases {
            let cidrs: Vec<String> = cidrs.iter().map(|&cidr| cidr.to_owned()).collect();
            let config = PoolConfig { enabled, cidrs: &cidrs, mask_size };
            let got = config.sets(family).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(got.contains(want) && got.is_empty() == want.is_empty(), "{cidrs:?}: {got}");
        }
    }
}
