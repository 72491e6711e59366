//! Counts looks at nodes under the names of Cilium's trigger `k8s_sync`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

const BUCKETS: [f64; 16] =
    [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0];

pub(super) struct SyncMetrics {
    queued: Counter,
    folds: Gauge,
    duration: Histogram,
    latency: Histogram,
    /// Asked for since the last run.
    pending: AtomicI64,
}

impl SyncMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let (queued, folds) = (Counter::default(), Gauge::default());
        let (duration, latency) = (Histogram::new(BUCKETS), Histogram::new(BUCKETS));
        metrics.register("ipam_k8s_sync_queued_total", "Looks at nodes asked for", queued.clone());
        let help = "Looks that were asked for between the last two";
        metrics.register("ipam_k8s_sync_folds", help, folds.clone());
        let help = "Seconds that a look at a node took, with its writes";
        metrics.register("ipam_k8s_sync_duration_seconds", help, duration.clone());
        let help = "Seconds from when a look was asked for to when it began";
        metrics.register("ipam_k8s_sync_latency_seconds", help, latency.clone());
        Self { queued, folds, duration, latency, pending: AtomicI64::new(0) }
    }

    /// A look at a node was asked for.
    pub(super) fn asked(&self) {
        self.queued.inc();
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// A node was looked at.
    pub(super) fn ran(&self, waited: Duration, took: Duration) {
        self.folds.set(self.pending.swap(0, Ordering::Relaxed));
        self.latency.observe(waited.as_secs_f64());
        self.duration.observe(took.as_secs_f64());
    }
}
