//! Decides when the next write may happen: so many per second, so many at once.

use std::time::{Duration, Instant};

/// A token bucket; it has no clock, every call is told the time.
#[derive(Debug, Clone)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(per_second: f64, burst: f64, now: Instant) -> Self {
        Self { per_second, burst, tokens: burst, at: now }
    }

    /// Changes rate and size; tokens that fit are kept.
    pub fn set(&mut self, per_second: f64, burst: f64, now: Instant) {
        self.refill(now);
        self.per_second = per_second;
        self.burst = burst;
        self.tokens = self.tokens.min(burst);
    }

    /// Writes per second and the most at once.
    pub fn limits(&self) -> (f64, f64) {
        (self.per_second, self.burst)
    }

    /// How long until one token can be taken that leaves `reserve` behind; zero if it can be now.
    pub fn wait(&mut self, reserve: f64, now: Instant) -> Duration {
        self.refill(now);
        // No reserve may be so large that the bucket never holds enough.
        let missing = (1.0 + reserve).min(self.burst.max(1.0)) - self.tokens;
        if missing <= ROUNDING {
            Duration::ZERO
        } else if self.per_second > 0.0 {
            // Added to a moment, and moments have an end: whoever waits may as well look again.
            let wait = Duration::try_from_secs_f64(missing / self.per_second);
            wait.map_or(FOREVER, |wait| wait.min(FOREVER))
        } else {
            FOREVER
        }
    }

    /// Takes a token, on credit when there is none; returns how long the taker must wait for it.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= -ROUNDING {
            Duration::ZERO
        } else if self.per_second > 0.0 {
            Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or(FOREVER)
        } else {
            FOREVER
        }
    }

    /// Puts back a token that was not used.
    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(self.burst);
    }
}

/// Refills are sums of fractions; this much is missing when nothing is.
const ROUNDING: f64 = 1e-9;
const FOREVER: Duration = Duration::from_hours(1);

#[cfg(test)]
mod tests {
    use super::Bucket;
    use std::time::{Duration, Instant};

    #[test]
    fn allows_the_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10.0, 3.0, start);
        let mut now = start;
        let mut taken = 0;
        while now < start + Duration::from_secs(2) {
            while bucket.wait(0.0, now).is_zero() {
                bucket.take(now);
                taken += 1;
            }
            now += bucket.wait(0.0, now);
        }
        assert_eq!(taken, 3 + 19);
    }

    #[test]
    fn a_reserve_is_left_for_others() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 5.0, now);
        for _ in 0..3 {
            assert!(bucket.wait(2.0, now).is_zero());
            bucket.take(now);
        }
        assert_eq!(bucket.wait(2.0, now).as_millis(), 100);
        assert!(bucket.wait(0.0, now).is_zero());
        assert!(!Bucket::new(1.0, 2.0, now).wait(10.0, now).as_secs() > 0);
    }

    #[test]
    fn credit_is_paid_back_and_unused_tokens_return() {
        let now = Instant::now();
        let mut bucket = Bucket::new(2.0, 1.0, now);
        assert_eq!(bucket.take(now), Duration::ZERO);
        assert_eq!(bucket.take(now), Duration::from_millis(500));
        assert_eq!(bucket.take(now), Duration::from_secs(1));
        bucket.give_back();
        assert_eq!(bucket.take(now), Duration::from_secs(1));
        bucket.set(20.0, 2.0, now);
        assert_eq!(bucket.wait(0.0, now).as_millis(), 150);
        assert!(Bucket::new(0.0, 0.0, now).wait(0.0, now) > Duration::from_mins(30));
    }
}
