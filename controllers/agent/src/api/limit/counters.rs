//! Tells how the API's limits let requests in: `api_limiter_*`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cilia_runtime::metrics::{DEFAULT_BUCKETS, Metrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::Pace;

type Float = Gauge<f64, AtomicU64>;
type ByCall = [(&'static str, String); 1];
type ByValue = [(&'static str, String); 2];
type ByOutcome = [(&'static str, String); 3];

/// The metrics of all limits; clones share them.
#[derive(Debug, Clone)]
pub struct Counters(Arc<Families>);

#[derive(Debug)]
struct Families {
    factor: Family<ByCall, Float>,
    processed: Family<ByOutcome, Counter>,
    duration: Family<ByValue, Float>,
    rate: Family<ByValue, Float>,
    in_flight: Family<ByValue, Float>,
    wait: Family<ByValue, Float>,
    waits: Family<ByCall, Histogram, fn() -> Histogram>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was answered, well.
    Success,
    /// It was answered with an error.
    Fail,
    /// It would have had to wait too long for the rate.
    RateWait,
    /// It waited too long for others to end.
    ParallelWait,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Fail => "fail",
            Self::RateWait => "fail-limit-wait",
            Self::ParallelWait => "fail-parallel-wait",
        }
    }
}

impl Counters {
    /// Registers the metrics. To be called once for each registry.
    pub fn register(metrics: &Metrics) -> Self {
        let families = Families {
            factor: Family::default(),
            processed: Family::default(),
            duration: Family::default(),
            rate: Family::default(),
            in_flight: Family::default(),
            wait: Family::default(),
            waits: Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS)),
        };
        let f = &families;
        metrics.register(
            "api_limiter_adjustment_factor",
            "By how much limits are adjusted, as answers are quicker or slower than estimated",
            f.factor.clone(),
        );
        metrics.register(
            "api_limiter_processed_requests_total",
            "Requests by how they ended",
            f.processed.clone(),
        );
        metrics.register(
            "api_limiter_processing_duration_seconds",
            "How long answers take",
            f.duration.clone(),
        );
        metrics.register(
            "api_limiter_rate_limit",
            "Requests per second, and at once after a pause",
            f.rate.clone(),
        );
        metrics.register(
            "api_limiter_requests_in_flight",
            "Requests that are answered now, and how many may be",
            f.in_flight.clone(),
        );
        metrics.register(
            "api_limiter_wait_duration_seconds",
            "How long requests waited for their turn",
            f.wait.clone(),
        );
        metrics.register_off(
            "api_limiter_wait_history_duration_seconds",
            "How long requests waited for their turn",
            f.waits.clone(),
        );
        Self(Arc::new(families))
    }

    /// A request has ended.
    pub(super) fn processed(&self, call: &str, outcome: Outcome, code: i32) {
        let labels = [
            ("api_call", call.to_owned()),
            ("outcome", outcome.name().to_owned()),
            ("return_code", code.to_string()),
        ];
        self.0.processed.get_or_create(&labels).inc();
    }

    /// A request has waited for so long.
    pub(super) fn waited(&self, call: &str, wait: Duration) {
        self.0.waits.get_or_create(&[("api_call", call.to_owned())]).observe(wait.as_secs_f64());
    }

    /// What a limit is like now.
    pub(super) fn show(&self, call: &str, pace: &Pace) {
        self.0.factor.get_or_create(&[("api_call", call.to_owned())]).set(pace.factor);
        let gauge = |family: &Family<ByValue, Float>, value: &str, number: f64| {
            let labels = [("api_call", call.to_owned()), ("value", value.to_owned())];
            family.get_or_create(&labels).set(number);
        };
        let seconds = |duration: Duration| duration.as_secs_f64();
        let mean = |list: &std::collections::VecDeque<Duration>| {
            let count = u32::try_from(list.len()).unwrap_or(u32::MAX).max(1);
            seconds(list.iter().sum::<Duration>() / count)
        };
        gauge(&self.0.duration, "estimated", seconds(pace.limit.estimated));
        gauge(&self.0.duration, "mean", mean(&pace.took));
        gauge(&self.0.rate, "limit", pace.limit.rate.map_or(0.0, |rate| pace.adjusted(rate)));
        gauge(&self.0.rate, "burst", pace.adjusted(f64::from(pace.limit.burst)));
        let count = |number: usize| u32::try_from(number).map_or(f64::MAX, f64::from);
        gauge(&self.0.in_flight, "in-flight", count(pace.running));
        gauge(&self.0.in_flight, "limit", pace.places().map_or(0.0, count));
        gauge(&self.0.wait, "mean", mean(&pace.waited));
        gauge(&self.0.wait, "min", seconds(pace.limit.shortest_wait));
        gauge(&self.0.wait, "max", seconds(pace.limit.longest_wait));
    }
}
