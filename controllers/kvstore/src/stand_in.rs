//! The lease on which an operator keeps what silent agents have said: known by its number to all who read.
//!
//! An agent that is frozen, or cut off, for longer than its leases live loses its keys while its pods live on. What
//! an operator puts in their place hangs on one lease for each cluster, whose number says what it is. So readers tell
//! a stand-in from what an agent says, agents take their keys back without asking, and the next leader finds the
//! lease and keeps it alive. etcd gives out numbers that begin with a member's, so none of them is ever like this.

use std::time::Duration;

use crate::Error;
use crate::client::Client;
use crate::messages::{Done, LeaseGrantRequest};
use crate::txn::Txn;

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
/// `stand-`, before a cluster's id.
const MARK: i64 = i64::from_be_bytes(*b"stand-\0\0");
const CLUSTER: i64 = 0xffff;
/// Keys of one transaction: etcd takes 128 operations.
const TOGETHER: usize = 100;

/// The lease of a cluster's stand-ins; ids of clusters are below 512.
pub fn stand_ins_of(cluster_id: u32) -> i64 {
    MARK | (i64::from(cluster_id) & CLUSTER)
}

/// Whether what hangs on this lease stands in for what an agent has said.
pub fn is_stand_in(lease: i64) -> bool {
    lease & !CLUSTER == MARK
}

/// What a key should become, if its last write is still that of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The key.
    pub key: String,
    /// The revision of its last write; 0 if there must be no such key.
    pub since: i64,
    /// Its value then; nothing to delete it.
    pub value: Option<Vec<u8>>,
}

impl Client {
    /// Makes sure that the cluster's lease for stand-ins lives, whoever asked for it first: the lease. To be called
    /// again and again as long as there are stand-ins, see [`Client::stand_in_beat`].
    pub async fn keep_stand_ins(&self, cluster_id: u32) -> Result<i64, Error> {
        let lease = stand_ins_of(cluster_id);
        if self.0.leases.beat(lease).await == Some(true) {
            return Ok(lease);
        }
        let ttl = i64::try_from(self.0.leases.ttl().as_secs()).unwrap_or(i64::MAX).max(1);
        let request = LeaseGrantRequest { ttl, id: lease };
        let granted: Result<Done, Error> =
            self.ask(("set", "grant"), "lease of stand-ins", GRANT, &request).await;
        match granted {
            // Another leader was faster.
            Err(error) if error.is_lease_there() => Ok(lease),
            granted => granted.map(|_| lease),
        }
    }

    /// How often the lease of stand-ins is to be kept alive.
    pub fn stand_in_beat(&self) -> Duration {
        self.0.leases.beat_every()
    }

    /// Does what still can be done of this, on this lease; how many keys were somebody else's by then.
    pub async fn swap(&self, lease: i64, swaps: Vec<Swap>) -> Result<usize, Error> {
        let mut overtaken = 0;
        for part in swaps.chunks(TOGETHER) {
            let mut part = part.to_vec();
            while let Some(first) = part.first() {
                let mut txn = Txn::new();
                for Swap { key, since, value } in &part {
                    txn = txn.if_unchanged_since(key, *since).else_get(key);
                    txn = match value {
                        Some(value) => txn.put(key, value, lease),
                        None => txn.delete(key),
                    };
                }
                let outcome = self.txn("swap", &first.key, txn).await?;
                if outcome.done {
                    break;
                }
                let (before, mut there) = (part.len(), outcome.read.into_iter());
                part.retain(|swap| {
                    let revision = there.next().flatten().map_or(0, |kv| kv.mod_revision);
                    revision == swap.since
                });
                overtaken += before - part.len();
            }
        }
        Ok(overtaken)
    }
}

#[cfg(test)]
mod tests {
    use super::{is_stand_in, stand_ins_of};

    #[test]
    fn the_lease_says_what_it_is() {
        for id in [0, 1, 255, 511] {
            let lease = stand_ins_of(id);
            assert!(lease > 0 && is_stand_in(lease), "{lease:x}");
        }
        assert_eq!(format!("{:x}", stand_ins_of(5)), "7374616e642d0005");
        assert_ne!(stand_ins_of(1), stand_ins_of(2));
        // As etcd makes them.
        for lease in [0, 7_587_895_464_651_131_652, 0x694d_7a3b_0001_0203] {
            assert!(!is_stand_in(lease), "{lease:x}");
        }
    }
}
