//! Shares one write budget among all who write.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::bucket::Bucket;

/// A token bucket that many hold; cheap to clone.
#[derive(Debug, Clone)]
pub struct Rate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bucket: Mutex<Bucket>,
    changed: Notify,
}

impl Rate {
    /// So many writes per second, so many at once.
    pub fn new(per_second: f64, burst: f64) -> Self {
        let bucket = Mutex::new(Bucket::new(per_second, burst, Instant::now().into_std()));
        Self(Arc::new(Shared { bucket, changed: Notify::new() }))
    }

    /// Changes the budget at once.
    pub fn set(&self, per_second: f64, burst: f64) {
        self.with(|bucket, now| bucket.set(per_second, burst, now));
        self.0.changed.notify_waiters();
    }

    /// Writes per second and the most at once.
    pub fn limits(&self) -> (f64, f64) {
        self.with(|bucket, _| bucket.limits())
    }

    /// Waits for one more write.
    pub async fn write(&self) {
        let wait = self.with(Bucket::take);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// How long to wait before asking again, if no token can be taken now that leaves `reserve` behind.
    pub(super) fn lacks(&self, reserve: f64) -> Option<Duration> {
        let wait = self.with(|bucket, now| bucket.wait(reserve, now));
        // The timer's resolution is a millisecond.
        (!wait.is_zero()).then(|| wait.max(Duration::from_millis(1)))
    }

    /// Takes a token; whoever shares the budget may have taken the last one meanwhile, and waits longer then.
    pub(super) fn take(&self) {
        self.with(Bucket::take);
    }

    pub(super) fn give_back(&self) {
        self.with(|bucket, _| bucket.give_back());
        self.0.changed.notify_waiters();
    }

    /// Completes when, after this call, the budget is changed or a token comes back.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Bucket, std::time::Instant) -> T) -> T {
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut bucket, Instant::now().into_std())
    }
}
