//! The metrics of slices, by Cilium's names.

use std::time::Duration;

use cilia_runtime::metrics::{DEFAULT_BUCKETS, Metrics as Registry};
use cilia_slices::{Action, Write};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::FAST;

type Label = [(&'static str, &'static str); 1];
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

const COUNT_BUCKETS: [f64; 8] = [1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
const CHANGE_BUCKETS: [f64; 9] = [1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const LONG_BUCKETS: [f64; 5] = [60.0, 300.0, 900.0, 1800.0, 3600.0];

#[derive(Debug)]
pub(super) struct Metrics {
    endpoints: Histogram,
    changes: Histograms,
    syncs: Family<[(&'static str, &'static str); 2], Counter>,
    delays: Histograms,
}

/// How an attempt to write a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sync {
    Success,
    /// It will be tried again.
    Transient,
    /// It was tried so often that it will only be looked at much later.
    Fatal,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Self {
        let changes = || Histogram::new(CHANGE_BUCKETS);
        let delays = || Histogram::new(DEFAULT_BUCKETS.into_iter().chain(LONG_BUCKETS));
        let metrics = Self {
            endpoints: Histogram::new(COUNT_BUCKETS),
            changes: Histograms::new_with_constructor(changes),
            syncs: Family::default(),
            delays: Histograms::new_with_constructor(delays),
        };
        registry.register(
            "number_of_ceps_per_ces",
            "CiliumEndpoints that belong in a CiliumEndpointSlice, at each look at it",
            metrics.endpoints.clone(),
        );
        registry.register(
            "number_of_cep_changes_per_ces",
            "Entries inserted or updated, and removed, at each look at a CiliumEndpointSlice",
            metrics.changes.clone(),
        );
        registry.register(
            "ces_sync_total",
            "Looks at a CiliumEndpointSlice, with a write if it needs one, by how they ended",
            metrics.syncs.clone(),
        );
        registry.register(
            "ces_queueing_delay_seconds",
            "Time from the first change of a CiliumEndpointSlice until it is looked at",
            metrics.delays.clone(),
        );
        // An increase is seen only of what has been 0, and the first fatal failure is one to warn of.
        for sync in [Sync::Success, Sync::Transient, Sync::Fatal] {
            metrics.syncs(sync);
        }
        metrics
    }

    /// A slice in which so many endpoints belong needed no write; whether there is an object.
    pub(super) fn at_rest(&self, mapped: usize, exists: bool, lane: usize, waited: Duration) {
        self.looked_at(mapped, lane, waited);
        for opcode in ["cepinserted", "cepremoved"].into_iter().filter(|_| exists) {
            self.changes.get_or_create(&[("opcode", opcode)]).observe(0.0);
        }
        self.ended(Sync::Success);
    }

    fn looked_at(&self, mapped: usize, lane: usize, waited: Duration) {
        let queue = if lane == FAST { "fast" } else { "standard" };
        self.delays.get_or_create(&[("queue", queue)]).observe(waited.as_secs_f64());
        self.endpoints.observe(count(mapped));
    }

    pub(super) fn planned(&self, write: &Write, lane: usize, waited: Duration) {
        self.looked_at(write.mapped, lane, waited);
        let (inserted, removed) = (count(write.inserted), count(write.removed));
        if !matches!(write.action, Action::Delete { .. }) {
            self.changes.get_or_create(&[("opcode", "cepinserted")]).observe(inserted);
        }
        if !matches!(write.action, Action::Create { .. }) {
            self.changes.get_or_create(&[("opcode", "cepremoved")]).observe(removed);
        }
    }

    pub(super) fn ended(&self, sync: Sync) {
        self.syncs(sync).inc();
    }

    fn syncs(&self, sync: Sync) -> Counter {
        let (outcome, failure) = match sync {
            Sync::Success => ("success", ""),
            Sync::Transient => ("fail", "transient"),
            Sync::Fatal => ("fail", "fatal"),
        };
        self.syncs.get_or_create_owned(&[("outcome", outcome), ("failure_type", failure)])
    }
}

fn count(number: usize) -> f64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {
    use cilia_runtime::metrics::Metrics as Registry;

    use super::{Metrics, Sync};

    #[test]
    fn failures_count_from_zero() {
        let registry = Registry::new("cilium_operator");
        let metrics = Metrics::register(&registry);
        let says = |series: &str| {
            let text = registry.render();
            let name = format!("cilium_operator_ces_sync_total{{{series}");
            assert!(text.contains(&name), "{name} is not in\n{text}");
        };
        says(r#"outcome="success",failure_type=""} 0"#);
        says(r#"outcome="fail",failure_type="transient"} 0"#);
        says(r#"outcome="fail",failure_type="fatal"} 0"#);
        metrics.ended(Sync::Fatal);
        says(r#"outcome="fail",failure_type="fatal"} 1"#);
    }
}
