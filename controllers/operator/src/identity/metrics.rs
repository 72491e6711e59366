//! Counts pods and identities that were looked at, and how long that took.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

const BUCKETS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0, 1800.0,
    3600.0,
];

type Labels = [(&'static str, &'static str); 2];

pub(super) struct Metrics {
    events: Family<Labels, Counter>,
    latency: Family<Labels, Histogram>,
}

impl Metrics {
    pub(super) fn new(metrics: &cilia_runtime::metrics::Metrics) -> Self {
        let events: Family<Labels, Counter> = Family::default();
        let latency: Family<Labels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        let help = "Pods and identities looked at, by outcome";
        metrics.register("cid_controller_work_queue_event_count", help, events.clone());
        // From zero on, so that rules see the first failure, too.
        for resource in ["pod", "cid"].map(|resource| ("resource", resource)) {
            for outcome in ["success", "fail"] {
                drop(events.get_or_create(&[resource, ("outcome", outcome)]));
            }
            for phase in ["enqueued", "processing"] {
                drop(latency.get_or_create(&[resource, ("phase", phase)]));
            }
        }
        let help = "Seconds in the queue, and of the work itself";
        metrics.register("cid_controller_work_queue_latency", help, latency.clone());
        Self { events, latency }
    }

    /// An item is done with: well, or for good although it failed.
    pub(super) fn ended(
        &self,
        resource: &'static str,
        well: bool,
        waited: Duration,
        took: Duration,
    ) {
        let outcome = if well { "success" } else { "fail" };
        let resource = ("resource", resource);
        self.events.get_or_create(&[resource, ("outcome", outcome)]).inc();
        for (phase, time) in [("enqueued", waited), ("processing", took)] {
            self.latency.get_or_create(&[resource, ("phase", phase)]).observe(time.as_secs_f64());
        }
    }
}
