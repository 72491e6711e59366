//! Decides how many requests of a kind are answered at once and per second: `api-rate-limit`.
//!
//! Limits follow how long answers take: where they are quicker than was estimated, more may come.

mod counters;
mod etcd;
mod settings;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use cilia_runtime::config::duration;
use tokio::sync::Notify;

pub use counters::Counters;
pub use settings::check;
pub(super) use settings::{Limit, Limits, call_of, limits};

use counters::Outcome;

/// What lets requests of one kind in.
#[derive(Debug)]
pub(super) struct Gate {
    call: &'static str,
    pace: Mutex<Pace>,
    left: Notify,
    counters: Counters,
}

/// Why a request has no turn.
struct Refused {
    outcome: Outcome,
    why: String,
}

impl Gate {
    pub(super) fn new(call: &'static str, limit: Limit, counters: Counters) -> Arc<Self> {
        let pace = Pace::new(limit, Instant::now());
        counters.show(call, &pace);
        Arc::new(Self { call, pace: Mutex::new(pace), left: Notify::new(), counters })
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of a request.
    async fn enter(&self) -> Result<Pass<'_>, Refused> {
        let arrived = Instant::now();
        let (asked, most) = {
            let mut pace = self.pace();
            (pace.ask(arrived), pace.limit.longest_wait)
        };
        let wait = match asked {
            Asked::Free => return Ok(Pass { gate: self, since: Instant::now(), counted: false }),
            Asked::After(wait) => wait,
            Asked::Never(wait) => {
                let [wait, most] = [wait, most].map(duration::format);
                let why = format!(
                    "request would have to wait {wait} to be served (maximum wait duration: {most})"
                );
                return Err(Refused { outcome: Outcome::RateWait, why });
            }
        };
        tokio::time::sleep(wait).await;
        let turn = async {
            loop {
                let left = self.left.notified();
                if self.pace().begin() {
                    return;
                }
                left.await;
            }
        };
        let remaining = most.saturating_sub(arrived.elapsed());
        tokio::time::timeout(remaining, turn).await.map_err(|_| {
            let places = self.pace().places().unwrap_or_default();
            let why = format!(
                "timed out while waiting to be served with {places} parallel requests: context deadline exceeded"
            );
            Refused { outcome: Outcome::ParallelWait, why }
        })?;
        let waited = arrived.elapsed();
        self.counters.waited(self.call, waited);
        self.pace().wait_of(waited);
        Ok(Pass { gate: self, since: Instant::now(), counted: true })
    }
}

/// A request that is being answered.
struct Pass<'a> {
    gate: &'a Gate,
    since: Instant,
    /// It takes one of the places for requests at once.
    counted: bool,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        {
            let mut pace = self.gate.pace();
            pace.end(self.since.elapsed(), self.counted);
            self.gate.counters.show(self.gate.call, &pace);
        }
        self.gate.left.notify_waiters();
    }
}

/// Lets a request through when it is its turn, or refuses it with 429.
pub(super) async fn limited(
    State(gate): State<Arc<Gate>>,
    request: Request,
    next: Next,
) -> Response {
    let log = gate.pace().limit.log;
    let path = if log { request.uri().path().to_owned() } else { String::new() };
    let entered = gate.enter().await;
    let (outcome, answer) = match entered {
        Ok(pass) => {
            if log {
                tracing::info!(call = gate.call, path, "API call let in by its limit");
            }
            let answer = next.run(request).await;
            drop(pass);
            let well = !answer.status().is_client_error() && !answer.status().is_server_error();
            (if well { Outcome::Success } else { Outcome::Fail }, answer)
        }
        Err(Refused { outcome, why }) => {
            if log {
                tracing::info!(
                    call = gate.call,
                    path,
                    why = why.trim(),
                    "API call refused by its limit"
                );
            }
            (outcome, (StatusCode::TOO_MANY_REQUESTS, why).into_response())
        }
    };
    gate.counters.processed(gate.call, outcome, answer.status().as_u16().into());
    answer
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    /// One of the first, which nothing limits.
    Free,
    After(Duration),
    /// It would have to wait so long.
    Never(Duration),
}

/// How many requests were answered, and how fast.
#[derive(Debug)]
struct Pace {
    limit: Limit,
    seen: u64,
    tokens: f64,
    filled: Instant,
    running: usize,
    /// How long the last answers took.
    took: VecDeque<Duration>,
    /// How long the last requests waited.
    waited: VecDeque<Duration>,
    factor: f64,
}

impl Pace {
    fn new(limit: Limit, now: Instant) -> Self {
        let tokens = f64::from(limit.burst);
        let (took, waited, factor) = (VecDeque::new(), VecDeque::new(), 1.0);
        Self { limit, seen: 0, tokens, filled: now, running: 0, took, waited, factor }
    }

    /// A number of the settings, as the speed of answers has changed it.
    fn adjusted(&self, number: f64) -> f64 {
        number + (number * self.factor - number) * self.limit.delayed_adjustment
    }

    fn ask(&mut self, now: Instant) -> Asked {
        self.seen += 1;
        if self.seen <= self.limit.skip_initial {
            return Asked::Free;
        }
        let Some(rate) = self.limit.rate.map(|rate| self.adjusted(rate)) else {
            return Asked::After(self.limit.shortest_wait);
        };
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let burst = self.adjusted(f64::from(self.limit.burst)).max(1.0);
        self.tokens = (self.tokens + passed * rate).min(burst);
        self.filled = now;
        // Those that are not there yet come one after the other.
        let missing = (1.0 - self.tokens).max(0.0) / rate;
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
        let wait = wait.max(self.limit.shortest_wait);
        if wait > self.limit.longest_wait {
            return Asked::Never(wait);
        }
        self.tokens -= 1.0;
        Asked::After(wait)
    }

    /// How many may be answered at once, if that is limited.
    fn places(&self) -> Option<usize> {
        let places = self.limit.parallel?;
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let adjusted = self.adjusted(places as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive; what is too large is cut"
        )]
        let places = (adjusted as usize).max(self.limit.least_parallel.max(1));
        Some(self.limit.most_parallel.map_or(places, |most| places.min(most)))
    }

    /// Takes a place among those that are answered at once, if one is free.
    fn begin(&mut self) -> bool {
        let free = self.places().is_none_or(|places| self.running < places);
        self.running += usize::from(free);
        free
    }

    fn wait_of(&mut self, waited: Duration) {
        self.waited.push_back(waited);
        self.waited.drain(..self.waited.len().saturating_sub(self.limit.mean_over.max(1)));
    }

    fn end(&mut self, took: Duration, counted: bool) {
        self.running -= usize::from(counted);
        self.took.push_back(took);
        self.took.drain(..self.took.len().saturating_sub(self.limit.mean_over.max(1)));
        if !self.limit.auto_adjust {
            return;
        }
        let sum: Duration = self.took.iter().sum();
        let mean = sum / u32::try_from(self.took.len()).unwrap_or(1);
        let most = self.limit.most_adjustment.max(1.0);
        let factor = self.limit.estimated.as_secs_f64() / mean.as_secs_f64().max(1e-9);
        self.factor = factor.clamp(1.0 / most, most);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Asked, Limit, Pace};

    const MS: Duration = Duration::from_millis(1);

    /// In no time are more let in than the burst and what the rate gives.
    #[test]
    fn no_more_than_the_rate_are_let_in() {
        let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(rand::random);
        println!("CILIA_SEED={seed}");
        let mut random = seed | 1;
        let mut below = |most: u32| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            u32::try_from(random % u64::from(most)).expect("small")
        };
        for _ in 0..50 {
            let (rate, burst) = (f64::from(1 + below(20)), 1 + below(8));
            let limit = Limit {
                rate: Some(rate),
                burst,
                longest_wait: MS * below(2000),
                ..Limit::default()
            };
            let start = Instant::now();
            let (mut pace, mut now, mut let_in) = (Pace::new(limit, start), start, Vec::new());
            for _ in 0..200 {
                now += MS * below(200);
                if let Asked::After(wait) = pace.ask(now) {
                    assert!(wait <= limit.longest_wait, "{limit:?}: {wait:?}");
                    let_in.push((now + wait - start).as_secs_f64());
                }
            }
            for (first, from) in let_in.iter().enumerate() {
                for (last, to) in let_in.iter().enumerate().skip(first) {
                    let count = f64::from(u32::try_from(last - first + 1).expect("few"));
                    let most = f64::from(burst) + (to - from) * rate + 1e-3;
                    assert!(count <= most, "{limit:?}: {count} in {} s", to - from);
                }
            }
            assert!(!let_in.is_empty(), "{limit:?}: none was let in");
        }
    }

    #[test]
    fn limits_follow_the_answers() {
        let limit = Limit {
            rate: Some(1.0),
            burst: 1,
            skip_initial: 1,
            parallel: Some(1),
            auto_adjust: true,
            estimated: 100 * MS,
            ..Limit::default()
        };
        let now = Instant::now();
        let mut pace = Pace::new(limit, now);
        assert_eq!(pace.ask(now), Asked::Free);
        assert_eq!(pace.ask(now), Asked::After(Duration::ZERO));
        assert_eq!(pace.ask(now), Asked::After(Duration::from_secs(1)));
        assert!(pace.begin() && !pace.begin(), "one at once");
        pace.end(10 * MS, true);
        // Ten times as fast as was estimated: half of the way there.
        assert!((pace.adjusted(1.0) - 5.5).abs() < 1e-9, "{pace:?}");
        assert!((0..5).all(|_| pace.begin()) && !pace.begin(), "five at once");
        pace.end(Duration::from_mins(1), true);
        assert!(pace.adjusted(1.0) < 0.6, "slow answers: {pace:?}");
    }
}
