//! Counts runs of the collections of identities, in Kubernetes and in the kvstore, under the same names.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

type Pair = [(&'static str, &'static str); 2];

/// The metrics of all collections; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collections {
    entries: Family<Pair, Gauge>,
    runs: Family<Pair, Gauge>,
    latency: Family<Pair, Gauge<f64, AtomicU64>>,
}

/// Those of one collection.
#[derive(Debug, Clone)]
pub(crate) struct Collection {
    all: Collections,
    kind: (&'static str, &'static str),
}

impl Collections {
    /// Registers them, once for the process.
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let all = Self::default();
        let help = "Identities after the last run";
        metrics.register("identity_gc_entries", help, all.entries.clone());
        metrics.register("identity_gc_runs", "Runs", all.runs.clone());
        metrics.register("identity_gc_latency", "Seconds of the last run", all.latency.clone());
        all
    }

    /// Those of the collection of identities of this kind, `crd` or `kvstore`, which is `on` or not.
    pub(crate) fn of(&self, kind: &'static str, on: bool) -> Collection {
        let kind = ("identity_type", kind);
        // From zero on, so that rules see the first failure, too.
        for outcome in ["success", "fail"].into_iter().filter(|_| on) {
            drop(self.runs.get_or_create(&[("outcome", outcome), kind]));
        }
        Collection { all: self.clone(), kind }
    }
}

impl Collection {
    /// A run is over.
    pub(crate) fn ran(&self, well: bool, took: Duration) {
        let outcome = ("outcome", if well { "success" } else { "fail" });
        self.all.runs.get_or_create(&[outcome, self.kind]).inc();
        self.all.latency.get_or_create(&[outcome, self.kind]).set(took.as_secs_f64());
    }

    /// So many identities are left, and so many were deleted.
    pub(crate) fn left(&self, alive: usize, deleted: usize) {
        for (status, count) in [("alive", alive), ("deleted", deleted)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.all.entries.get_or_create(&[("status", status), self.kind]).set(count);
        }
    }
}
