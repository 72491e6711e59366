//! Keeps the write budget of slices at what the settings, the size of the cluster and the API server allow.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_runtime::config::Config;
use cilia_runtime::lanes::Rate;
use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;
use tracing::{debug, info};

use super::adaptive::Adaptive;
use super::rate_limits::RateLimits;
use crate::failure::Failure;

/// The flag that lets the budget grow above `ces-rate-limits`.
pub(crate) const ADAPTIVE_FLAG: &str = "ces-adaptive-rate";

/// Writes at once that ordinary namespaces do where there are priority namespaces; the rest of the burst,
/// at least half, is left to these. A server that gets many at once lets a priority namespace's wait for all of
/// them, and slices that are written with what is left of a burst are written again soon.
const AT_ONCE: f64 = 4.0;

#[derive(Debug)]
pub(super) struct Budget {
    limits: RateLimits,
    rate: Rate,
    /// `None`: the budget is exactly what `ces-rate-limits` says.
    adaptive: Option<Mutex<Adaptive>>,
    gauge: Gauge<f64, AtomicU64>,
    epoch: Instant,
}

impl Budget {
    pub(super) fn new(limits: RateLimits, config: &Config, metrics: &Metrics) -> Self {
        let (limit, burst) = limits.for_nodes(0);
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(limit);
        let help = "Writes of CiliumEndpointSlices that are allowed per second now";
        metrics.register("ces_write_rate_limit", help, gauge.clone());
        let adaptive = config.bool(ADAPTIVE_FLAG);
        info!(limit, burst, adaptive, "write budget of slices");
        Self {
            limits,
            rate: Rate::new(limit, burst),
            adaptive: adaptive.then(|| Mutex::new(Adaptive::new(limit))),
            gauge,
            epoch: Instant::now(),
        }
    }

    /// What the lanes take their tokens from.
    pub(super) fn rate(&self) -> Rate {
        self.rate.clone()
    }

    /// Writes allowed per second now.
    pub(super) fn per_second(&self) -> f64 {
        self.rate.limits().0
    }

    /// What ordinary namespaces leave in the budget for priority namespaces.
    pub(super) fn reserve(&self) -> f64 {
        let (_, burst) = self.rate.limits();
        (burst - AT_ONCE).max(burst / 2.0)
    }

    /// How long an ordinary namespace's write is waited for before the next one.
    pub(super) fn apart(&self) -> Duration {
        self.adaptive.as_ref().map_or(Duration::ZERO, |adaptive| lock(adaptive).apart())
    }

    /// The cluster has this many nodes now.
    pub(super) fn nodes(&self, nodes: usize) {
        let (limit, burst) = self.limits.for_nodes(nodes);
        self.adapt(burst, |adaptive| adaptive.configure(limit), limit);
    }

    /// A write was answered after `took`.
    pub(super) fn answered(&self, took: Duration, failure: Option<&Failure>) {
        // Other failures are about the slice, not about the server.
        let well = failure.is_none_or(|failure| {
            failure.code().is_some_and(|code| code != TOO_MANY_REQUESTS && code < 500)
        });
        let (now, (limit, burst)) = (self.epoch.elapsed(), self.rate.limits());
        self.adapt(burst, |adaptive| adaptive.answered(took, well, now), limit);
    }

    /// Time has passed, perhaps without writes.
    pub(super) fn pass(&self) {
        let (now, (limit, burst)) = (self.epoch.elapsed(), self.rate.limits());
        self.adapt(burst, |adaptive| adaptive.pass(now), limit);
    }

    fn adapt(&self, burst: f64, change: impl FnOnce(&mut Adaptive), otherwise: f64) {
        let limit = self.adaptive.as_ref().map_or(otherwise, |adaptive| {
            let mut adaptive = lock(adaptive);
            change(&mut adaptive);
            adaptive.limit()
        });
        if self.rate.limits() != (limit, burst) {
            debug!(limit, burst, "write budget of slices changed");
            self.rate.set(limit, burst);
            self.gauge.set(limit);
        }
    }
}

fn lock(adaptive: &Mutex<Adaptive>) -> MutexGuard<'_, Adaptive> {
    adaptive.lock().unwrap_or_else(PoisonError::into_inner)
}

const TOO_MANY_REQUESTS: u16 = 429;
