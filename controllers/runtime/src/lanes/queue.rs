//! Decides which key to process next: by lane, by time, never the same key twice at once.
//!
//! The core of the lanes: no clock, no I/O. A key waits in one lane until it is due, is ready
//! from then on, runs when taken, and is forgotten when it is done and nothing new was said about it.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use super::lane::{Lane, Retry};

/// Room for so many keys is kept while nothing is queued.
const CALM: usize = 1024;

/// Whether it is the turn of a key that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn<R> {
    /// It is; of several, the one that ranks highest goes first.
    Now(R),
    /// Not yet: to be asked again after this time, or when anything is said.
    In(Duration),
}

/// A key handed out by [`Queue::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<K> {
    /// The key.
    pub key: K,
    /// The lane it was in.
    pub lane: usize,
    /// Failures since it last succeeded.
    pub failures: u32,
    /// When it was first asked for.
    pub since: Instant,
    /// When it became ready.
    pub due: Instant,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All is well.
    Done,
    /// All is well; look again after this time.
    After(Duration),
    /// Something failed.
    Failed,
}

/// What becomes of a key after its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Forgotten, or waiting for what it was told.
    Settled,
    /// It will be tried again after this time.
    Retry(Duration),
    /// It failed too often, and is looked at again after this time.
    GivenUp(Duration),
}

#[derive(Debug)]
struct Entry {
    lane: usize,
    state: State,
    failures: u32,
    given_up: bool,
}

#[derive(Debug)]
enum State {
    Waiting {
        due: Instant,
        sequence: u64,
        since: Instant,
    },
    /// `again`: when to run once more, and since when that is asked for.
    Running {
        started: Instant,
        /// The lane it was taken from.
        lane: usize,
        again: Option<(Instant, Instant)>,
    },
}

/// The queue of all lanes.
#[derive(Debug)]
pub struct Queue<K> {
    lanes: Vec<Lane>,
    retry: Retry,
    entries: HashMap<K, Entry>,
    waiting: Vec<BTreeMap<(Instant, u64), K>>,
    /// Runs of other lanes, per lane, while this lane had something ready.
    passed_over: Vec<u32>,
    /// Runs under way, by the lane they were taken from.
    under_way: Vec<usize>,
    /// When the last of them began.
    began: Vec<Option<Instant>>,
    sequence: u64,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue.
    pub fn new(lanes: Vec<Lane>, retry: Retry) -> Self {
        let waiting = lanes.iter().map(|_| BTreeMap::new()).collect();
        let passed_over = vec![0; lanes.len()];
        let under_way = vec![0; lanes.len()];
        let began = vec![None; lanes.len()];
        let entries = HashMap::new();
        Self { lanes, retry, entries, waiting, passed_over, under_way, began, sequence: 0 }
    }

    /// The lanes.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Asks for a run of `key` after the lane's delay; whether it was not asked for already.
    pub fn add(&mut self, lane: usize, key: K, now: Instant) -> bool {
        let due = now + self.lanes[lane].delay;
        self.add_at(lane, key, due, now)
    }

    /// Asks for a run of `key` at `due`, or earlier if it is asked for earlier.
    pub fn add_at(&mut self, lane: usize, key: K, due: Instant, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else {
            self.sequence += 1;
            let state = State::Waiting { due, sequence: self.sequence, since: now };
            self.waiting[lane].insert((due, self.sequence), key.clone());
            self.entries.insert(key, Entry { lane, state, failures: 0, given_up: false });
            return true;
        };
        if entry.given_up {
            // News about a hopeless key: give it all its retries again.
            entry.given_up = false;
            entry.failures = 0;
        }
        let from = std::mem::replace(&mut entry.lane, lane);
        match &mut entry.state {
            State::Waiting { due: old, sequence, .. } => {
                let place = (*old, *sequence);
                *old = due.min(*old);
                let new = (*old, *sequence);
                if place != new || from != lane {
                    self.waiting[from].remove(&place);
                    self.waiting[lane].insert(new, key);
                }
                false
            }
            State::Running { again, .. } => {
                let fresh = again.is_none();
                let (earlier, since) = again.unwrap_or((due, now));
                *again = Some((due.min(earlier), since));
                fresh
            }
        }
    }

    /// Moves `key`, if it is queued, to another lane; there it waits no longer than a new key would.
    pub fn move_to(&mut self, lane: usize, key: &K, now: Instant) {
        let soonest = now + self.lanes[lane].delay;
        let Some(entry) = self.entries.get_mut(key) else { return };
        let from = std::mem::replace(&mut entry.lane, lane);
        if from == lane {
            return;
        }
        // A key that waits for its retry goes on waiting.
        let hurries = entry.failures == 0;
        match &mut entry.state {
            State::Waiting { due, sequence, .. } => {
                self.waiting[from].remove(&(*due, *sequence));
                if hurries {
                    *due = soonest.min(*due);
                }
                self.waiting[lane].insert((*due, *sequence), key.clone());
            }
            State::Running { again: Some((due, _)), .. } if hurries => *due = soonest.min(*due),
            State::Running { .. } => {}
        }
    }

    /// Takes back every request for `key`; a run that is under way goes on.
    pub fn forget(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failures = 0;
        match &mut entry.state {
            State::Waiting { due, sequence, .. } => {
                self.waiting[entry.lane].remove(&(*due, *sequence));
                self.entries.remove(key);
            }
            State::Running { again, .. } => *again = None,
        }
    }

    /// Changes the tokens that a lane leaves for the lanes before it; whether that is news.
    pub fn set_reserve(&mut self, lane: usize, reserve: f64) -> bool {
        let before = std::mem::replace(&mut self.lanes[lane].reserve, reserve);
        before.to_bits() != reserve.to_bits()
    }

    /// Changes how long a run of a lane keeps the next one from beginning; whether that is news.
    pub fn set_apart(&mut self, lane: usize, apart: Duration) -> bool {
        std::mem::replace(&mut self.lanes[lane].apart, apart) != apart
    }

    /// The lane whose turn it is and the tokens it must leave; `None` when nothing is ready.
    pub fn choose(&self, now: Instant) -> Option<(usize, f64)> {
        self.choose_from(now, |_| true)
    }

    /// The same among lanes that `may`.
    pub fn choose_from(&self, now: Instant, may: impl Fn(usize) -> bool) -> Option<(usize, f64)> {
        let ready = (0..self.lanes.len()).filter(|&lane| {
            let free = || self.free_at(lane, now).is_some_and(|at| at <= now);
            may(lane) && free() && self.ready_first(lane, now)
        });
        let first = ready.clone().next()?;
        // Also if it alone is ready: else those before it could go on taking what it has to leave them.
        let owed = ready.filter(|&lane| {
            let share = self.lanes[lane].share;
            share > 0 && self.passed_over[lane] + 1 >= share
        });
        let owed = owed.max_by_key(|&lane| self.passed_over[lane]);
        Some(owed.map_or((first, self.lanes[first].reserve), |lane| (lane, 0.0)))
    }

    /// Takes the key of `lane` that has been ready longest.
    pub fn take(&mut self, lane: usize, now: Instant) -> Option<Taken<K>> {
        self.take_by(lane, now, |_| Turn::Now(())).ok()
    }

    /// Takes the ready key of `lane` that ranks highest; among equals, the one ready longest. If it
    /// is no key's turn, it says when to ask again, unless nothing is ready at all.
    pub fn take_by<R: Ord>(
        &mut self,
        lane: usize,
        now: Instant,
        turn: impl Fn(&K) -> Turn<R>,
    ) -> Result<Taken<K>, Option<Duration>> {
        let mut wait: Option<Duration> = None;
        let mut best: Option<(R, (Instant, u64))> = None;
        for (&place, key) in self.waiting[lane].range(..=(now, u64::MAX)) {
            match turn(key) {
                Turn::Now(rank) if best.as_ref().is_none_or(|(highest, _)| rank > *highest) => {
                    best = Some((rank, place));
                    // Where all rank alike the first is the one: tens of thousands need not be looked at for each.
                    if size_of::<R>() == 0 {
                        break;
                    }
                }
                Turn::Now(_) => {}
                Turn::In(time) => wait = Some(wait.map_or(time, |wait| wait.min(time))),
            }
        }
        let (_, place) = best.ok_or(wait)?;
        let key = self.waiting[lane].remove(&place).ok_or(None)?;
        for other in 0..self.lanes.len() {
            if self.ready_first(other, now) {
                self.passed_over[other] = self.passed_over[other].saturating_add(1);
            }
        }
        self.passed_over[lane] = 0;
        self.under_way[lane] += 1;
        self.began[lane] = Some(now);
        let entry = self.entries.get_mut(&key).ok_or(None)?;
        let running = State::Running { started: now, lane, again: None };
        let State::Waiting { due, since, .. } = std::mem::replace(&mut entry.state, running) else {
            return Err(None);
        };
        Ok(Taken { key, lane, failures: entry.failures, since, due })
    }

    /// Ends the run of `key`.
    pub fn finish(&mut self, key: &K, ended: Ended, now: Instant) -> Verdict {
        let Some(entry) = self.entries.get_mut(key) else { return Verdict::Settled };
        let State::Running { again, lane, .. } = entry.state else { return Verdict::Settled };
        self.under_way[lane] -= 1;
        let (wait, verdict) = match ended {
            Ended::Done => (None, Verdict::Settled),
            Ended::After(wait) => (Some(wait), Verdict::Settled),
            Ended::Failed if entry.failures >= self.retry.max => {
                (Some(self.retry.recheck), Verdict::GivenUp(self.retry.recheck))
            }
            Ended::Failed => {
                let doubled = self.retry.base.saturating_mul(1 << entry.failures.min(20));
                let wait = doubled.min(self.retry.cap);
                (Some(wait), Verdict::Retry(wait))
            }
        };
        match verdict {
            Verdict::Settled => entry.failures = 0,
            Verdict::Retry(_) => entry.failures += 1,
            Verdict::GivenUp(_) => {}
        }
        // With news since the run began, the key starts afresh.
        entry.given_up = matches!(verdict, Verdict::GivenUp(_)) && again.is_none();
        if matches!(verdict, Verdict::GivenUp(_)) && again.is_some() {
            entry.failures = 0;
        }
        let due = match (wait.map(|wait| now + wait), again) {
            (None, None) => {
                self.entries.remove(key);
                self.shrink();
                return verdict;
            }
            (Some(due), None) => (due, now),
            (None, Some(again)) => again,
            (Some(due), Some((again, since))) => (due.min(again), since),
        };
        self.sequence += 1;
        entry.state = State::Waiting { due: due.0, sequence: self.sequence, since: due.1 };
        self.waiting[entry.lane].insert((due.0, self.sequence), key.clone());
        verdict
    }

    /// Gives back the room of a burst that is over: a start looks at everything that there is.
    fn shrink(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > CALM {
            self.entries = HashMap::new();
        }
    }

    /// When the next key becomes ready that is not ready now, or the runs under way let one begin that is.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let first_after = |lane: &BTreeMap<(Instant, u64), K>| {
            lane.range((now, u64::MAX)..).next().map(|(&(due, _), _)| due)
        };
        let ready = (0..self.lanes.len()).filter(|&lane| self.ready_first(lane, now));
        let free = ready.filter_map(|lane| self.free_at(lane, now)).filter(|&at| at > now);
        self.waiting.iter().filter_map(first_after).chain(free).min()
    }

    /// How many keys of `lane` are ready.
    pub fn depth(&self, lane: usize, now: Instant) -> usize {
        self.waiting[lane].range(..=(now, u64::MAX)).count()
    }

    /// When the runs under way began that were taken from `lane`.
    pub fn running(&self, lane: usize) -> impl Iterator<Item = Instant> {
        self.entries.values().filter_map(move |entry| match entry.state {
            State::Running { started, lane: from, .. } if from == lane => Some(started),
            _ => None,
        })
    }

    /// Every key that is queued in `lane`.
    pub fn keys(&self, lane: usize) -> impl Iterator<Item = &K> {
        self.entries.iter().filter(move |(_, entry)| entry.lane == lane).map(|(key, _)| key)
    }

    /// Whether nothing is queued or running.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the runs of `lane` that are under way let the next one begin, unless they end before; `None` if
    /// one has to end.
    fn free_at(&self, lane: usize, now: Instant) -> Option<Instant> {
        let Lane { most, apart, .. } = self.lanes[lane];
        match self.under_way[lane] {
            0 => Some(now),
            some if some < most => Some(self.began[lane].map_or(now, |began| began + apart)),
            _ => None,
        }
    }

    fn ready_first(&self, lane: usize, now: Instant) -> bool {
        self.waiting[lane].first_key_value().is_some_and(|(&(due, _), _)| due <= now)
    }
}

#[cfg(test)]
mod tests;
