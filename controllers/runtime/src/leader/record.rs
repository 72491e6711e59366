//! Decides, from a Lease as last seen, who leads and when that ends.
//!
//! Only the monotonic clock of this process counts: a holder is alive as long as its record
//! changed less than its lease duration ago. The times in the record are for people to read.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// A Lease as last seen.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) spec: LeaseSpec,
    /// With the version that guards the next write, and what others attached to the Lease.
    pub(super) metadata: ObjectMeta,
    /// When `spec` was first seen as it is.
    since: Instant,
}

/// What a candidate may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Take the lease: nobody has it.
    Take,
    /// Somebody else has it at least until then.
    Wait(Instant),
}

impl Seen {
    /// The lease read at `now`, after `before` was known.
    pub(super) fn new(before: Option<&Self>, lease: Lease, now: Instant) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let since = before.filter(|before| before.spec == spec).map_or(now, |before| before.since);
        let metadata = ObjectMeta { managed_fields: None, ..lease.metadata };
        Self { spec, metadata, since }
    }

    /// Whether `identity` holds the lease.
    pub(super) fn held_by(&self, identity: &str) -> bool {
        self.spec.holder_identity.as_deref() == Some(identity)
    }

    /// Whether anybody holds the lease, or did and has not given it up.
    pub(super) fn is_held(&self) -> bool {
        self.spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty())
    }

    /// What `identity` may do at `now`.
    pub(super) fn turn(&self, identity: &str, now: Instant) -> Turn {
        let holder = self.spec.holder_identity.as_deref().unwrap_or_default();
        let seconds =
            u64::try_from(self.spec.lease_duration_seconds.unwrap_or_default()).unwrap_or_default();
        let until = self.since + Duration::from_secs(seconds);
        if holder.is_empty() || holder == identity || now >= until {
            Turn::Take
        } else {
            Turn::Wait(until)
        }
    }
}

/// The record by which `identity` has the lease, from what was there before.
pub(super) fn held(before: Option<&LeaseSpec>, identity: &str, duration: Duration) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let ours = before.filter(|before| before.holder_identity.as_deref() == Some(identity));
    let transitions = before.and_then(|before| before.lease_transitions).unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.into()),
        lease_duration_seconds: Some(seconds(duration)),
        acquire_time: ours.and_then(|ours| ours.acquire_time.clone()).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(if before.is_none() || ours.is_some() {
            transitions
        } else {
            transitions + 1
        }),
        ..before.cloned().unwrap_or_default()
    }
}

/// The record by which nobody has the lease, as client-go writes it on a clean stop.
pub(super) fn released(before: &LeaseSpec) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..before.clone()
    }
}

/// The record by which the holder goes, though writes of its may still be under way: the next one can
/// lead soon, and knows that it was not given up.
pub(super) fn abandoned(before: &LeaseSpec) -> LeaseSpec {
    LeaseSpec {
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..before.clone()
    }
}

/// Whole seconds, rounded up: others must not think that a lease is shorter than it is.
fn seconds(duration: Duration) -> i32 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(whole.max(1)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Seen, Turn, held, released};
    use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::time::{Duration, Instant};

    fn seen_as(before: Option<&Seen>, spec: LeaseSpec, now: Instant) -> Seen {
        Seen::new(before, Lease { spec: Some(spec), ..Lease::default() }, now)
    }

    const LEASE: Duration = Duration::from_secs(15);
    const RENEW_DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn a_lease_is_free_when_released_or_silent_for_its_duration() {
        let start = Instant::now();
        let theirs = held(None, "them", LEASE);
        let seen = seen_as(None, theirs.clone(), start);
        assert_eq!(seen.turn("us", start), Turn::Wait(start + LEASE));
        assert_eq!(seen.turn("us", start + LEASE), Turn::Take);
        assert_eq!(seen.turn("them", start), Turn::Take);
        let later = start + Duration::from_secs(9);
        let unchanged = seen_as(Some(&seen), theirs.clone(), later);
        assert_eq!(unchanged.turn("us", later), Turn::Wait(start + LEASE));
        let renewed = LeaseSpec { lease_transitions: Some(7), ..theirs.clone() };
        let renewed = seen_as(Some(&seen), renewed, later);
        assert_eq!(renewed.turn("us", later), Turn::Wait(later + LEASE));
        assert_eq!(seen_as(Some(&seen), released(&theirs), later).turn("us", later), Turn::Take);
        assert_eq!(seen_as(None, LeaseSpec::default(), start).turn("us", start), Turn::Take);
    }

    #[test]
    fn records_are_those_of_client_go() {
        let first = held(None, "a", Duration::from_millis(14_500));
        assert_eq!((first.lease_duration_seconds, first.lease_transitions), (Some(15), Some(0)));
        let renewed = held(Some(&first), "a", LEASE);
        assert_eq!(
            (&renewed.acquire_time, renewed.lease_transitions),
            (&first.acquire_time, Some(0))
        );
        let taken = held(Some(&renewed), "b", LEASE);
        assert_eq!(taken.lease_transitions, Some(1));
        let free = released(&taken);
        assert_eq!(
            (free.holder_identity.as_deref(), free.lease_duration_seconds),
            (Some(""), Some(1))
        );
        assert_eq!(held(Some(&free), "a", LEASE).lease_transitions, Some(2));
    }

    /// A candidate that sees the lease late, writes late, freezes and forgets.
    struct Candidate {
        name: String,
        seen: Option<Seen>,
        /// Sent at, with what, and arriving at.
        write: Option<(Instant, LeaseSpec, u64, Instant)>,
        leads_until: Option<Instant>,
        version: u64,
        frozen_until: Instant,
    }

    #[test]
    fn there_are_never_two_leaders() {
        let mut elections = 0;
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let start = Instant::now();
            let (mut lease, mut version) = (None::<LeaseSpec>, 0_u64);
            let mut candidates: Vec<Candidate> = (0..3)
                .map(|n| Candidate {
                    name: format!("c{n}"),
                    seen: None,
                    write: None,
                    leads_until: None,
                    version: 0,
                    frozen_until: start,
                })
                .collect();
            let mut last_leader = String::new();
            for tick in 0..600_u64 {
                let now = start + Duration::from_millis(tick * 250);
                for candidate in &mut candidates {
                    // Writes arrive whether or not the sender still runs.
                    if let Some((sent, spec, expected, arrives)) = candidate.write.clone()
                        && now >= arrives
                    {
                        candidate.write = None;
                        if expected == version {
                            version += 1;
                            // Renew times of one test all look alike; the transition count stands in.
                            lease = Some(LeaseSpec {
                                renew_time: None,
                                strategy: Some(version.to_string()),
                                ..spec
                            });
                            if random.random_range(0..4) > 0 {
                                candidate.version = version;
                                candidate.leads_until = Some(sent + RENEW_DEADLINE);
                            }
                        }
                    }
                    if now < candidate.frozen_until {
                        continue;
                    }
                    if random.random_range(0..60) == 0 {
                        candidate.frozen_until =
                            now + Duration::from_secs(random.random_range(1..30));
                        continue;
                    }
                    if random.random_range(0..3) > 0 {
                        let spec = lease.clone();
                        candidate.version = version;
                        candidate.seen =
                            spec.map(|spec| seen_as(candidate.seen.as_ref(), spec, now));
                    }
                    let leads = candidate.leads_until.is_some_and(|until| now < until);
                    let turn = candidate
                        .seen
                        .as_ref()
                        .map_or(Turn::Take, |seen| seen.turn(&candidate.name, now));
                    // As long as a write is under way, no other is sent; one that led and lost it is gone.
                    let lost = candidate.leads_until.is_some() && !leads;
                    if lost {
                        candidate.leads_until = None;
                        candidate.name.push('x');
                        candidate.seen = None;
                        candidate.version = u64::MAX;
                        candidate.write = None;
                    } else if candidate.write.is_none()
                        && (leads || turn == Turn::Take)
                        && random.random_range(0..4) == 0
                    {
                        let before = candidate.seen.as_ref().map(|seen| &seen.spec);
                        let spec = held(before, &candidate.name, LEASE);
                        let delay = Duration::from_millis(random.random_range(0..4_000));
                        candidate.write = Some((now, spec, candidate.version, now + delay));
                    }
                }
                let leaders: Vec<&str> = candidates
                    .iter()
                    .filter(|c| c.leads_until.is_some_and(|until| now < until))
                    .map(|c| c.name.as_str())
                    .collect();
                assert!(leaders.len() <= 1, "seed {seed} tick {tick}: {leaders:?}");
                if let [leader] = leaders[..]
                    && leader != last_leader
                {
                    last_leader = leader.into();
                    elections += 1;
                }
            }
        }
        assert!(elections > 1_000, "the test elects too few: {elections}");
    }
}
