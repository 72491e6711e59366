//! Decides which identities of this node's endpoints must still be claimed in the kvstore, and claims them.
//!
//! Who allocates an identity has claimed it. This is for all others: endpoints of a former agent, or of
//! this one in another mode, and claims that failed because the kvstore was away. Without it their
//! identities would go with the former agent's lease.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry, Workqueues};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;
use crate::identity::{Error, Identities};

const WORKERS: usize = 4;
/// When to look again at an identity that is another's: its endpoint gets another one meanwhile.
const AGAIN: Duration = Duration::from_mins(5);

/// What is claimed, and what is to be; about 50 bytes an identity.
#[derive(Debug)]
pub(super) struct Claims {
    lanes: Lanes<NumericIdentity>,
    claimed: Mutex<BTreeSet<NumericIdentity>>,
}

impl Claims {
    pub(super) fn new(workqueues: &Workqueues) -> Self {
        let retry = Retry {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(10),
            max: u32::MAX,
            ..Retry::default()
        };
        let lanes = Lanes::new(vec![Lane::new("kvstore-claims")], retry, None, workqueues);
        Self { lanes, claimed: Mutex::default() }
    }

    /// These identities are used here; of these, the allocator holds all but `unclaimed`.
    pub(super) fn look(
        &self,
        used: &BTreeSet<NumericIdentity>,
        unclaimed: &BTreeSet<NumericIdentity>,
    ) {
        for number in open(&mut self.claimed(), used, unclaimed) {
            self.lanes.add(0, number);
        }
    }

    /// Claims until `stop`.
    pub(super) async fn run(
        &self,
        identities: &Identities,
        endpoints: &Endpoints,
        stop: &CancellationToken,
    ) {
        let claim = async |job: Job<NumericIdentity>| {
            let Some(labels) = labels_of(endpoints, job.key) else { return Ok(Next::Done) };
            if !identities.claim(&labels, job.key).await? {
                return Ok(Next::After(AGAIN));
            }
            self.claimed().insert(job.key);
            Ok::<_, Error>(Next::Done)
        };
        self.lanes.run(WORKERS, stop, claim).await;
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeSet<NumericIdentity>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The labels of an identity, as an endpoint has them.
fn labels_of(endpoints: &Endpoints, number: NumericIdentity) -> Option<Labels> {
    let endpoints = endpoints.list();
    let endpoint = endpoints.iter().find(|endpoint| endpoint.identity == Some(number))?;
    Some(endpoint.labels.clone())
}

/// What is to be claimed. What is used no more, or was lost, is claimed no more.
fn open(
    claimed: &mut BTreeSet<NumericIdentity>,
    used: &BTreeSet<NumericIdentity>,
    unclaimed: &BTreeSet<NumericIdentity>,
) -> Vec<NumericIdentity> {
    claimed.retain(|number| used.contains(number) && !unclaimed.contains(number));
    used.difference(claimed).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cilia_crds::NumericIdentity;

    use super::open;

    fn numbers(numbers: &[u32]) -> BTreeSet<NumericIdentity> {
        numbers.iter().copied().map(NumericIdentity).collect()
    }

    #[test]
    fn what_is_used_is_claimed_once_and_again_when_it_is_lost() {
        let mut claimed = numbers(&[1, 2, 3]);
        let open = |claimed: &mut _, used: &[u32], unclaimed: &[u32]| {
            let open = open(claimed, &numbers(used), &numbers(unclaimed));
            open.into_iter().map(|number| number.0).collect::<Vec<_>>()
        };
        assert_eq!(open(&mut claimed, &[1, 2, 4], &[4]), [4]);
        assert_eq!(claimed, numbers(&[1, 2]), "nobody uses 3 any more");
        assert_eq!(open(&mut claimed, &[1, 2, 3], &[2]), [2, 3]);
        assert_eq!(claimed, numbers(&[1]));
    }
}
