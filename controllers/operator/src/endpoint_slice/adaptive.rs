//! Decides how many slices may be written a second: more than configured while the API server copes.
//!
//! As many as keep [`UNDER_WAY`] writes under way, going by how long answers take lately: a server that slows
//! down gets fewer, before it is in trouble and others notice. Upwards it goes in steps. An answer that
//! says that the server is busy or broken, or none at all, halves it. It is never less than what is
//! configured, and that again after a while without writes: then nothing is known of the server.
//!
//! When the server halts for a moment, as it does to collect garbage, what is sent meanwhile makes the halt longer,
//! and a priority namespace's write waits behind it. So no more than that are under way then either, unless what is
//! configured needs more.

use std::time::Duration;

use super::rate_limits::MAX_LIMIT as MOST;

/// Writes that the server may be busy with: on one of two cores; the other is for what else it is asked. With two, the
/// slowest of a priority namespace's took half as long again under `make bench ces` with 50,000 endpoints.
const UNDER_WAY: f64 = 1.0;
/// The limit grows at most by this factor at each judgement.
const GROWTH: f64 = 1.5;
/// How long answers are gathered, and how many at least, before they are judged.
const WINDOW: Duration = Duration::from_millis(250);
const FEWEST: usize = 4;
/// Complaints this soon after one are the same: they concern writes sent before the limit was lowered.
const ONE_STRAIN: Duration = Duration::from_secs(1);
/// After this long without an answer nothing is known.
const SILENCE: Duration = Duration::from_secs(30);
/// A write is waited for a little less long than writes are apart at the configured limit: the timer is late, and the
/// budget is to be what counts. And no longer than this, however small the limit.
const PATIENCE: f64 = 0.9;
const LONGEST: Duration = Duration::from_mins(1);

/// The limit, and the answers since it was last judged. Moments are durations since any fixed one.
#[derive(Debug)]
pub(super) struct Adaptive {
    configured: f64,
    limit: f64,
    answers: Vec<Duration>,
    since: Duration,
    last: Duration,
    strained: Option<Duration>,
}

impl Adaptive {
    pub(super) fn new(configured: f64) -> Self {
        Self {
            configured,
            limit: configured,
            answers: Vec::new(),
            since: Duration::ZERO,
            last: Duration::ZERO,
            strained: None,
        }
    }

    /// The configured limit is this now.
    pub(super) fn configure(&mut self, configured: f64) {
        // What was found to be too much for the server stays so.
        let known = if self.limit > self.configured { self.limit } else { 0.0 };
        (self.configured, self.limit) = (configured, configured.max(known));
    }

    /// An answer came after `took`; `well` if it did not complain of the server's own state.
    pub(super) fn answered(&mut self, took: Duration, well: bool, now: Duration) {
        self.pass(now);
        self.last = now;
        if self.strained.is_some_and(|strained| now.saturating_sub(strained) < ONE_STRAIN) {
            return;
        }
        if !well {
            self.limit = (self.limit / 2.0).max(self.configured);
            self.strained = Some(now);
            self.start_again(now);
            return;
        }
        self.answers.push(took);
        if self.answers.len() < FEWEST || now.saturating_sub(self.since) < WINDOW {
            return;
        }
        // The median: one slow answer says little.
        self.answers.sort_unstable();
        let usual = self.answers[self.answers.len() / 2].max(Duration::from_millis(1));
        let bearable = UNDER_WAY / usual.as_secs_f64();
        let most = MOST.max(self.configured);
        self.limit = bearable.min(self.limit * GROWTH).clamp(self.configured, most);
        self.start_again(now);
    }

    /// Time has passed, perhaps without answers.
    pub(super) fn pass(&mut self, now: Duration) {
        if now.saturating_sub(self.last) > SILENCE {
            self.limit = self.configured;
            self.start_again(now);
        }
    }

    /// How long a write is waited for before the next one: what is configured is kept even if none is ever answered.
    pub(super) fn apart(&self) -> Duration {
        let apart = Duration::try_from_secs_f64(UNDER_WAY * PATIENCE / self.configured);
        apart.map_or(LONGEST, |apart| apart.min(LONGEST))
    }

    /// Writes a second.
    pub(super) fn limit(&self) -> f64 {
        self.limit
    }

    fn start_again(&mut self, now: Duration) {
        self.answers.clear();
        self.since = now;
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "limits are products and quotients of small numbers: exact")]
mod tests {
    use super::Adaptive;
    use std::time::Duration;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Answers every 20 ms for `length`; the limit after that.
    fn run(adaptive: &mut Adaptive, now: &mut Duration, length: u64, took: u64, well: bool) -> f64 {
        let end = *now + ms(length);
        while *now < end {
            *now += ms(20);
            adaptive.answered(ms(took), well, *now);
        }
        adaptive.limit()
    }

    #[test]
    fn climbs_while_all_is_well_and_halves_at_the_first_complaint() {
        let (mut adaptive, mut now) = (Adaptive::new(10.0), ms(0));
        let mut limit = |length, took, well| run(&mut adaptive, &mut now, length, took, well);
        assert_eq!(limit(240, 10, true), 10.0);
        assert_eq!(limit(300, 10, true), 22.5, "half as much again each quarter of a second");
        assert_eq!(limit(10_000, 10, true), 50.0, "not above the most");
        assert_eq!(limit(20, 10, false), 25.0);
        assert_eq!(limit(900, 10, false), 25.0, "the same strain");
        assert_eq!(limit(5_000, 10, false), 10.0, "never below what is configured");
        assert_eq!(limit(5_000, 400, true), 10.0, "slow is strained, too");
        assert!(limit(3_000, 10, true) > 20.0);
    }

    #[test]
    fn a_server_that_slows_down_gets_as_much_as_it_bears() {
        let (mut adaptive, mut now) = (Adaptive::new(10.0), ms(0));
        let mut limit = |took| run(&mut adaptive, &mut now, 3_000, took, true);
        assert_eq!([limit(20), limit(50), limit(80), limit(500)], [50.0, 20.0, 12.5, 10.0]);
    }

    #[test]
    fn writes_are_waited_for_as_long_as_the_configured_limit_lets() {
        let apart = |limit| Adaptive::new(limit).apart();
        assert_eq!([10.0, 50.0, 1e-19].map(apart), [ms(90), ms(18), ms(60_000)]);
    }

    #[test]
    fn a_slow_answer_now_and_then_is_no_strain() {
        let (mut adaptive, mut now) = (Adaptive::new(10.0), ms(0));
        for number in 0..200 {
            now += ms(20);
            adaptive.answered(ms(if number % 20 == 0 { 600 } else { 10 }), true, now);
        }
        assert_eq!(adaptive.limit(), 50.0);
    }

    #[test]
    fn starts_from_what_is_configured_after_silence_and_when_that_is_more() {
        let (mut adaptive, mut now) = (Adaptive::new(10.0), ms(0));
        run(&mut adaptive, &mut now, 5_000, 10, true);
        adaptive.configure(20.0);
        assert_eq!(adaptive.limit(), 50.0);
        adaptive.pass(now + ms(29_000));
        assert_eq!(adaptive.limit(), 50.0);
        now += ms(31_000);
        adaptive.pass(now);
        assert_eq!(adaptive.limit(), 20.0, "by itself");
        run(&mut adaptive, &mut now, 5_000, 10, true);
        now += ms(31_000);
        adaptive.answered(ms(10), true, now);
        assert_eq!(adaptive.limit(), 20.0, "with the first answer after it");
        adaptive.configure(5.0);
        assert_eq!(adaptive.limit(), 5.0);
    }
}
