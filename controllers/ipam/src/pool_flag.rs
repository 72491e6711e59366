//! Decides which pool an entry of `auto-create-cilium-pod-ip-pools` describes.

use cilia_crds::ciliumpodippool::{Ipv4PoolSpec, Ipv6PoolSpec, PodIpPoolSpec};

use crate::pod_pool::{FamilySpec, PodPool, PoolError, PoolSpec};

/// What an entry looks like.
const SHAPE: &str = "ipv4-cidrs:CIDR,...;ipv4-mask-size:N;ipv6-cidrs:CIDR,...;ipv6-mask-size:N, of which a family may be left out";

/// An entry that describes no pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A part has no name, or one that means nothing.
    #[error("pool {pool:?}: {part:?} is not understood: wanted is {SHAPE}")]
    Part {
        /// The pool.
        pool: String,
        /// The part.
        part: String,
    },
    /// A family has ranges and no mask size, or the other way round.
    #[error("pool {pool:?}: {missing} is missing beside {present}")]
    Half {
        /// The pool.
        pool: String,
        /// What is not there.
        missing: &'static str,
        /// What is.
        present: &'static str,
    },
    /// It has no ranges.
    #[error("pool {pool:?} has no ranges: wanted is {SHAPE}")]
    Empty {
        /// The pool.
        pool: String,
    },
    /// The pool would not be accepted.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A pool that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPool {
    /// Its name.
    pub name: String,
    /// What it says.
    pub spec: PodIpPoolSpec,
}

/// The pool that `name=value` describes.
pub fn parse_new_pool(name: &str, value: &str) -> Result<NewPool, FlagError> {
    let pool = || name.to_owned();
    let (mut cidrs4, mut mask4, mut cidrs6, mut mask6) = (Vec::new(), None, Vec::new(), None);
    for part in value.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = || FlagError::Part { pool: pool(), part: part.to_owned() };
        let (key, value) = part.split_once(':').ok_or_else(wrong)?;
        let list =
            || value.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty());
        let mask = || value.trim().parse::<u8>().map_err(|_| wrong());
        match key.trim() {
            "ipv4-cidrs" => cidrs4.extend(list()),
            "ipv6-cidrs" => cidrs6.extend(list()),
            "ipv4-mask-size" => mask4 = Some(mask()?),
            "ipv6-mask-size" => mask6 = Some(mask()?),
            _ => return Err(wrong()),
        }
    }
    let half = |cidrs: &[String], mask: Option<u8>, cidrs_name, mask_name| match (cidrs, mask) {
        ([], None) => Ok(None),
        ([], Some(_)) => {
            Err(FlagError::Half { pool: pool(), missing: cidrs_name, present: mask_name })
        }
        (_, None) => Err(FlagError::Half { pool: pool(), missing: mask_name, present: cidrs_name }),
        (_, Some(mask)) => Ok(Some(mask)),
    };
    let mask4 = half(&cidrs4, mask4, "ipv4-cidrs", "ipv4-mask-size")?;
    let mask6 = half(&cidrs6, mask6, "ipv6-cidrs", "ipv6-mask-size")?;
    if mask4.is_none() && mask6.is_none() {
        return Err(FlagError::Empty { pool: pool() });
    }
    let checked = PoolSpec {
        v4: mask4.map(|mask_size| FamilySpec { cidrs: &cidrs4, mask_size }),
        v6: mask6.map(|mask_size| FamilySpec { cidrs: &cidrs6, mask_size }),
    };
    PodPool::new(name, &checked, None)?;
    let spec = PodIpPoolSpec {
        ipv4: mask4.map(|mask_size| Ipv4PoolSpec { cidrs: cidrs4, mask_size }),
        ipv6: mask6.map(|mask_size| Ipv6PoolSpec { cidrs: cidrs6, mask_size }),
        ..PodIpPoolSpec::default()
    };
    Ok(NewPool { name: pool(), spec })
}

#[cfg(test)]
mod tests {
    use super::parse_new_pool;

    #[test]
    fn reads_pools_and_says_what_is_wrong() {
        let pool = parse_new_pool(
            "red",
            "ipv4-cidrs:10.0.0.0/8,11.0.0.0/8;ipv4-mask-size:24;ipv6-cidrs:fd00::/48;ipv6-mask-size:64",
        )
        .expect("a pool");
        let (v4, v6) = (pool.spec.ipv4.expect("IPv4"), pool.spec.ipv6.expect("IPv6"));
        assert_eq!((v4.cidrs.len(), v4.mask_size), (2, 24));
        assert_eq!((v6.cidrs.as_slice(), v6.mask_size), (&["fd00::/48".to_owned()][..], 64));
        let cases = [
            ("", "has no ranges"),
            ("ipv4-cidrs:10.0.0.0/8", "ipv4-mask-size is missing beside ipv4-cidrs"),
            ("ipv6-mask-size:64", "ipv6-cidrs is missing beside ipv6-mask-size"),
            (
                "ipv4-cidrs:10.0.0.0/8;ipv4-mask-size:many",
                "\"ipv4-mask-size:many\" is not understood",
            ),
            ("cidrs:10.0.0.0/8", "\"cidrs:10.0.0.0/8\" is not understood"),
            ("ipv4-cidrs:fd00::/8;ipv4-mask-size:24", "invalid IPv4 CIDR in pool \"red\""),
            ("ipv4-cidrs:10.0.0.0/26;ipv4-mask-size:24", "needs one from 26 to 32"),
            (
                "ipv4-cidrs:10.0.0.0/8,10.1.0.0/16;ipv4-mask-size:24",
                "10.1.0.0/16 collides with 10.0.0.0/8",
            ),
        ];
        for (value, want) in cases {
            let error = parse_new_pool("red", value).expect_err(value).to_string();
            assert!(error.contains(want), "{value}: {error}");
        }
    }
}
