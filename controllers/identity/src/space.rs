//! Decides which numbers a cluster may give to its identities.

use std::ops::RangeInclusive;

use cilia_crds::NumericIdentity;

use crate::Error;

/// Bits of a number that are not its scope.
const SCOPED_BITS: u32 = 24;
const DEFAULT_CLUSTERS: u32 = 255;
const EXTENDED_CLUSTERS: u32 = 511;

/// The numbers of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    cluster_id: u32,
    shift: u32,
    /// How many numbers are given at most.
    most: u32,
}

impl Space {
    /// The numbers of the cluster with this id, where clusters are told apart by as many bits
    /// as `max-connected-clusters` asks for.
    pub fn new(cluster_id: u32, max_connected_clusters: u32) -> Result<Self, Error> {
        let shift = match max_connected_clusters {
            DEFAULT_CLUSTERS | EXTENDED_CLUSTERS => {
                SCOPED_BITS - (max_connected_clusters + 1).ilog2()
            }
            other => return Err(Error::MaxConnectedClusters(other)),
        };
        if cluster_id > max_connected_clusters {
            return Err(Error::ClusterId { id: cluster_id, max: max_connected_clusters });
        }
        Ok(Self { cluster_id, shift, most: u32::MAX })
    }

    /// The same, but only so many numbers are given, the first ones: to try what happens when they are used up.
    #[must_use]
    pub fn narrowed(self, most: u32) -> Self {
        Self { most, ..self }
    }

    /// The id of the cluster whose numbers these are.
    pub fn cluster_id(self) -> u32 {
        self.cluster_id
    }

    /// The first and the last number.
    pub fn range(self) -> RangeInclusive<u32> {
        let first = self.cluster_id << self.shift;
        let last = ((self.cluster_id + 1) << self.shift) - 1;
        let first = first.max(NumericIdentity::FIRST_ALLOCATED.0);
        first..=last.min(first.saturating_add(self.most) - 1)
    }

    /// Whether the number is one of this cluster's.
    pub fn contains(self, number: NumericIdentity) -> bool {
        self.range().contains(&number.0)
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::NumericIdentity;

    use super::Space;

    #[test]
    fn ranges() {
        for (id, max, first, last) in [
            (0, 255, 256, 65_535),
            (0, 511, 256, 32_767),
            (1, 255, 1 << 16, (2 << 16) - 1),
            (3, 511, 3 << 15, (4 << 15) - 1),
            (255, 255, 255 << 16, (1 << 24) - 1),
            (511, 511, 511 << 15, (1 << 24) - 1),
        ] {
            let space = Space::new(id, max).expect("allowed");
            assert_eq!(space.range(), first..=last, "{id} of {max}");
            assert!(space.contains(NumericIdentity(last)), "{id} of {max}");
        }
    }

    #[test]
    fn a_narrow_one_begins_as_the_whole_one_does() {
        let space = Space::new(1, 255).expect("allowed").narrowed(10);
        assert_eq!(space.range(), 65_536..=65_545);
        assert!(!space.contains(NumericIdentity(65_546)));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert!(Space::new(256, 255).is_err());
        assert!(Space::new(512, 511).is_err());
        assert!(Space::new(0, 100).is_err());
    }
}
