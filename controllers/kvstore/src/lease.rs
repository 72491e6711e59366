//! Keeps the leases alive on which a process's keys hang, and says when one is lost.
//!
//! A lease takes 1000 keys, then there is another; places that become free are used again. About
//! 100 bytes a key. A lease is lost when etcd says so: as long as no member answers nobody knows,
//! and nothing is given up. All leases of a process give signs of life at the same moments, so they end together
//! when it falls silent: who reads the keys can tell that from keys that are given up.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::connection::Connection;
use crate::messages::{LeaseGrantRequest, LeaseRequest, LeaseResponse};

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// Keys on one lease.
const KEYS: usize = 1000;
/// The longest time between two signs of life, so that a revoked lease is noticed.
const BEAT: Duration = Duration::from_secs(30);
/// After a sign of life that nobody answered.
const AGAIN: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Leases {
    connection: Arc<Connection>,
    ttl: Duration,
    began: Instant,
    state: Mutex<State>,
    /// One at a time asks for another lease.
    granting: tokio::sync::Mutex<()>,
    lost: watch::Sender<u64>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    /// How many keys hang on each.
    leases: BTreeMap<i64, usize>,
    keys: HashMap<String, i64>,
}

impl State {
    fn attach(&mut self, key: &str) -> Option<i64> {
        if let Some(lease) = self.keys.get(key) {
            return Some(*lease);
        }
        let (lease, keys) = self.leases.iter_mut().find(|(_, keys)| **keys < KEYS)?;
        *keys += 1;
        self.keys.insert(key.into(), *lease);
        Some(*lease)
    }

    fn release(&mut self, key: &str) {
        if let Some(lease) = self.keys.remove(key)
            && let Some(keys) = self.leases.get_mut(&lease)
        {
            *keys -= 1;
        }
    }

    /// How many keys were on it; `None` if it was not ours.
    fn lost(&mut self, lease: i64) -> Option<usize> {
        let keys = self.leases.remove(&lease)?;
        self.keys.retain(|_, on| *on != lease);
        Some(keys)
    }
}

impl Leases {
    pub(crate) fn new(connection: Arc<Connection>, ttl: Duration, stop: CancellationToken) -> Self {
        let (state, granting) = (Mutex::default(), tokio::sync::Mutex::default());
        let (began, lost) = (Instant::now(), watch::Sender::new(0));
        Self { connection, ttl, began, state, granting, lost, stop }
    }

    /// The lease that a key hangs on.
    pub(crate) fn of(&self, key: &str) -> Option<i64> {
        self.state().keys.get(key).copied()
    }

    /// The lease that a key is to hang on, with a place for it.
    pub(crate) async fn attach(self: &Arc<Self>, key: &str) -> Result<i64, Error> {
        if let Some(lease) = self.state().attach(key) {
            return Ok(lease);
        }
        let _one = self.granting.lock().await;
        if let Some(lease) = self.state().attach(key) {
            return Ok(lease);
        }
        let ttl = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let request = LeaseGrantRequest { ttl, id: 0 };
        let granted: LeaseResponse =
            self.connection.ask("grant lease for", key, GRANT, &request).await?;
        let lease = granted.id;
        self.state().leases.insert(lease, 0);
        tokio::spawn(Arc::clone(self).keep_alive(lease));
        self.state().attach(key).ok_or_else(|| Error::LeaseLost(key.into()))
    }

    pub(crate) fn release(&self, key: &str) {
        self.state().release(key);
    }

    /// The lease is gone, and with it its keys.
    pub(crate) fn lost(&self, lease: i64) {
        let lost = self.state().lost(lease);
        if let Some(keys) = lost {
            tracing::warn!(lease = format!("{lease:x}"), keys, "Lease expired");
            self.lost.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.lost.subscribe()
    }

    pub(crate) fn count(&self) -> usize {
        self.state().leases.len()
    }

    /// How long what hangs on a lease outlives its process.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Between two signs of life.
    pub(crate) fn beat_every(&self) -> Duration {
        (self.ttl / 3).min(BEAT)
    }

    async fn keep_alive(self: Arc<Self>, lease: i64) {
        let beat = self.beat_every();
        let mut pause = until_next(self.began.elapsed(), beat);
        let mut rewinds = self.connection.rewinds();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                // Keys that were given up may have come back: they go with this lease, on which
                // nothing is written any more.
                Ok(()) = rewinds.changed() => {
                    self.lost(lease);
                    return;
                }
                () = tokio::time::sleep(pause) => {}
            }
            if !self.state().leases.contains_key(&lease) {
                return;
            }
            match self.beat(lease).await {
                Some(true) => pause = until_next(self.began.elapsed(), beat),
                Some(false) => {
                    self.lost(lease);
                    return;
                }
                None => pause = AGAIN.min(beat),
            }
        }
    }

    /// Whether the lease is alive; `None` if nobody answered.
    pub(crate) async fn beat(&self, lease: i64) -> Option<bool> {
        let asked = async {
            // The stream stays open until the answer is there.
            let requests = futures::stream::iter([LeaseRequest { id: lease }])
                .chain(futures::stream::pending());
            let (member, mut answers) =
                self.connection.stream::<_, LeaseResponse>(KEEP_ALIVE, requests).await.ok()?;
            if let Ok(Some(answer)) = answers.message().await {
                return Some(answer.ttl > 0);
            }
            self.connection.failed(&member);
            None
        };
        tokio::time::timeout(ANSWER, asked).await.ok().flatten()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long it is until the next whole number of beats.
fn until_next(elapsed: Duration, beat: Duration) -> Duration {
    let over = elapsed.as_nanos() % beat.as_nanos().max(1);
    beat.saturating_sub(Duration::from_nanos(u64::try_from(over).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{KEYS, State, until_next};

    #[test]
    fn all_leases_beat_at_the_same_moments() {
        let beat = Duration::from_secs(30);
        for elapsed in [0, 1, 29_999, 30_000, 30_001, 86_400_007] {
            let elapsed = Duration::from_millis(elapsed);
            let pause = until_next(elapsed, beat);
            assert!(!pause.is_zero() && pause <= beat, "{pause:?}");
            assert_eq!((elapsed + pause).as_nanos() % beat.as_nanos(), 0, "{elapsed:?}");
        }
    }

    #[test]
    fn keys_share_leases_and_free_places_are_used_again() {
        let mut state = State::default();
        assert_eq!(state.attach("a"), None, "there is no lease yet");
        state.leases.insert(7, 0);
        for key in 0..KEYS {
            assert_eq!(state.attach(&format!("k{key}")), Some(7));
        }
        assert_eq!(state.attach("k0"), Some(7), "it has its place");
        assert_eq!(state.attach("more"), None);
        state.release("k5");
        assert_eq!(state.attach("more"), Some(7));
        state.leases.insert(8, 0);
        assert_eq!(state.attach("other"), Some(8));
        assert_eq!(state.lost(7), Some(KEYS));
        assert_eq!((state.lost(7), state.keys.len()), (None, 1));
    }
}
