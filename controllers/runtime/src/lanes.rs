//! The one way to queue: named lanes with priorities, one entry per key, retries and a write budget.
//!
//! ```no_run
//! # async fn duty(workqueues: cilia_runtime::lanes::Workqueues, stop: tokio_util::sync::CancellationToken) {
//! use cilia_runtime::lanes::{Lane, Lanes, Next, Retry};
//! let lanes: Lanes<String> = Lanes::new(vec![Lane::new("node-queue")], Retry::default(), None, &workqueues);
//! lanes.add(0, "node-1".into());
//! lanes.run(10, &stop, async |job| {
//!     // look at the node, decide, and if there is something to write:
//!     job.write().await;
//!     Ok::<_, std::io::Error>(Next::Done)
//! }).await;
//! # }
//! ```

mod bucket;
mod job;
mod lane;
mod queue;
mod rate;
mod workqueues;

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

pub use bucket::Bucket;
pub use job::Job;
pub use lane::{Lane, Retry};
pub use queue::{Ended, Queue, Taken, Turn, Verdict};
pub use rate::Rate;
pub use workqueues::Workqueues;

use job::Permit;
use workqueues::{Counts, Probe};

/// How long runs under way may take to end when the process shuts down.
const LAST_RUNS: Duration = Duration::from_secs(1);
const FOREVER: Duration = Duration::from_hours(1);

/// What a worker says about a key that it processed without failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing is left to do.
    Done,
    /// Look again after this time, even if nothing happens.
    After(Duration),
}

/// The lanes of one reconciler; cheap to clone.
#[derive(Debug)]
pub struct Lanes<K>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    queue: Mutex<Queue<K>>,
    changed: Notify,
    rate: Option<Rate>,
    counts: Vec<Arc<Counts>>,
}

impl<K> Clone for Lanes<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Lanes<K> {
    /// Lanes in the order of their priority, with the write budget of their jobs.
    pub fn new(
        lanes: Vec<Lane>,
        retry: Retry,
        rate: Option<Rate>,
        workqueues: &Workqueues,
    ) -> Self {
        let names: Vec<&'static str> = lanes.iter().map(|lane| lane.name).collect();
        let queue = Mutex::new(Queue::new(lanes, retry));
        Self(Arc::new_cyclic(|shared| {
            let probe = |lane| Box::new(LaneProbe { shared: shared.clone(), lane });
            let counts =
                names.iter().enumerate().map(|(lane, name)| workqueues.queue(name, probe(lane)));
            Shared { queue, changed: Notify::new(), rate, counts: counts.collect() }
        }))
    }

    /// Asks for a run of `key` after the lane's delay.
    pub fn add(&self, lane: usize, key: K) {
        if self.queue().add(lane, key, now()) {
            self.0.counts[lane].added();
        }
        self.0.changed.notify_one();
    }

    /// Asks for a run of `key` after `delay`, or earlier if it is asked for earlier.
    pub fn add_after(&self, lane: usize, key: K, delay: Duration) {
        let now = now();
        if self.queue().add_at(lane, key, now + delay, now) {
            self.0.counts[lane].added();
        }
        self.0.changed.notify_one();
    }

    /// Moves every queued key for which `belongs` is true to `lane`.
    pub fn move_to(&self, lane: usize, belongs: impl Fn(&K) -> bool) {
        let mut queue = self.queue();
        let others = (0..queue.lanes().len()).filter(|&other| other != lane);
        let keys: Vec<K> = others
            .flat_map(|other| queue.keys(other))
            .filter(|key| belongs(key))
            .cloned()
            .collect();
        for key in keys {
            queue.move_to(lane, &key, now());
        }
        drop(queue);
        self.0.changed.notify_one();
    }

    /// Takes back every request for `key`.
    pub fn forget(&self, key: &K) {
        self.queue().forget(key);
    }

    /// Changes the tokens of the write budget that a lane leaves for the lanes before it.
    pub fn set_reserve(&self, lane: usize, reserve: f64) {
        if self.queue().set_reserve(lane, reserve) {
            self.0.changed.notify_one();
        }
    }

    /// Changes how long a run of a lane keeps the next one from beginning.
    pub fn set_apart(&self, lane: usize, apart: Duration) {
        if self.queue().set_apart(lane, apart) {
            self.0.changed.notify_one();
        }
    }

    /// Whether nothing is queued or running.
    pub fn is_idle(&self) -> bool {
        self.queue().is_empty()
    }

    /// Processes keys with at most `workers` at once until `stop`. To be called once.
    ///
    /// `handle` looks at the key as it is now, does what is needed and says what is next; an error
    /// means that the key is tried again later, less and less often.
    pub async fn run<E: Display, F: Future<Output = Result<Next, E>>>(
        &self,
        workers: usize,
        stop: &CancellationToken,
        handle: impl Fn(Job<K>) -> F,
    ) {
        self.run_by(workers, stop, |_| Turn::Now(()), handle).await;
    }

    /// Like [`Lanes::run`], but when a worker and a token are free `turn` says which of the keys
    /// that are ready may go now, and the one goes that ranks highest.
    ///
    /// `turn` is called with the lanes locked: it must not call them.
    pub async fn run_by<R: Ord, E: Display, F: Future<Output = Result<Next, E>>>(
        &self,
        workers: usize,
        stop: &CancellationToken,
        turn: impl Fn(&K) -> Turn<R>,
        handle: impl Fn(Job<K>) -> F,
    ) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(()) = running.next(), if !running.is_empty() => {}
                job = self.next(&turn), if running.len() < workers => {
                    let (key, lane, failures) = (job.key.clone(), job.lane, job.failures);
                    running.push(self.clone().process(key, lane, failures, handle(job)));
                }
            }
        }
        let last = async { while running.next().await.is_some() {} };
        if tokio::time::timeout(LAST_RUNS, last).await.is_err() {
            debug!("gave up waiting for the last runs");
        }
    }

    /// Sees one run to its end.
    async fn process<E: Display>(
        self,
        key: K,
        lane: usize,
        failures: u32,
        run: impl Future<Output = Result<Next, E>>,
    ) {
        let started = Instant::now();
        let result = run.await;
        let counts = &self.0.counts[lane];
        counts.finished(started.elapsed());
        let ended = match &result {
            Ok(Next::Done) => Ended::Done,
            Ok(Next::After(wait)) => Ended::After(*wait),
            Err(_) => Ended::Failed,
        };
        let (verdict, queue) = {
            let mut queue = self.queue();
            (queue.finish(&key, ended, now()), queue.lanes()[lane].name)
        };
        self.0.changed.notify_one();
        match (verdict, result) {
            (Verdict::Retry(wait), Err(error)) => {
                counts.retried();
                let failures = failures + 1;
                warn!(queue, ?key, %error, retry_in = ?wait, failures, "failed, will be retried");
            }
            (Verdict::GivenUp(wait), Err(error)) => {
                counts.retried();
                error!(queue, ?key, %error, check_in = ?wait, "failed too often, will be looked at later");
            }
            _ => {}
        }
    }

    /// Waits for the next job: something ready, and a token for it.
    async fn next<R: Ord>(&self, turn: &impl Fn(&K) -> Turn<R>) -> Job<K> {
        loop {
            // Registered before looking, so that nothing said in between is missed.
            let changed = self.0.changed.notified();
            let rate_changed = self.0.rate.as_ref().map(Rate::changed);
            let deadline = match self.try_next(turn) {
                Ok(job) => return job,
                Err(deadline) => deadline,
            };
            let rate_changed = async {
                match rate_changed {
                    Some(changed) => changed.await,
                    None => std::future::pending().await,
                }
            };
            let due = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = rate_changed => {}
                () = due => {}
            }
        }
    }

    /// The next job, or when to look again if nothing is said.
    fn try_next<R: Ord>(&self, turn: &impl Fn(&K) -> Turn<R>) -> Result<Job<K>, Option<Instant>> {
        let now = now();
        let mut queue = self.queue();
        let mut look_again = queue.next_due(now);
        let mut sooner = |wait: Duration| {
            let at = now + wait;
            look_again = Some(look_again.map_or(at, |earlier| earlier.min(at)));
            look_again.map(Instant::from_std)
        };
        let mut passed = Vec::new();
        let (taken, lane) = loop {
            let Some((lane, reserve)) = queue.choose_from(now, |lane| !passed.contains(&lane))
            else {
                return Err(look_again.map(Instant::from_std));
            };
            // Ranks are asked for only when there is a token.
            if let Some(wait) = self.0.rate.as_ref().and_then(|rate| rate.lacks(reserve)) {
                return Err(sooner(wait));
            }
            match queue.take_by(lane, now, turn) {
                Ok(taken) => break (taken, lane),
                Err(wait) => {
                    passed.push(lane);
                    // The timer's resolution is a millisecond.
                    sooner(wait.unwrap_or(FOREVER).max(Duration::from_millis(1)));
                }
            }
        };
        let permit = self.0.rate.as_ref().map(|rate| {
            rate.take();
            Permit::new(rate.clone())
        });
        drop(queue);
        self.0.counts[lane].taken(now.saturating_duration_since(taken.due));
        let waited = now.saturating_duration_since(taken.since);
        Ok(Job { key: taken.key, lane, failures: taken.failures, waited, permit })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<K>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[derive(Debug)]
struct LaneProbe<K> {
    shared: std::sync::Weak<Shared<K>>,
    lane: usize,
}

impl<K: Clone + Eq + Hash + Debug + Send + Sync> Probe for LaneProbe<K> {
    fn look(&self, now: std::time::Instant) -> (usize, Vec<std::time::Instant>) {
        let Some(shared) = self.shared.upgrade() else { return (0, Vec::new()) };
        let queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (queue.depth(self.lane, now), queue.running(self.lane).collect())
    }
}

#[cfg(test)]
mod tests;
