//! What is counted of keys that are kept the same here and in a kvstore.

use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

type Of<const N: usize, M> = Family<[(&'static str, String); N], M>;

/// Families that every client and reader of a process shares; to be registered once.
#[derive(Debug, Clone, Default)]
pub struct SyncMetrics {
    errors: Of<2, Counter>,
    queue: Of<2, Gauge>,
    completed: Of<3, Gauge>,
    quorum: Of<1, Counter>,
}

impl SyncMetrics {
    /// Registers them.
    pub fn register(metrics: &Metrics) -> Self {
        let all = Self::default();
        let help = "Keys that could not be written and are tried again";
        metrics.register("kvstore_sync_errors_total", help, all.errors.clone());
        let help = "Keys that are not yet as they should be";
        metrics.register("kvstore_sync_queue_size", help, all.queue.clone());
        let help = "Whether everything that there was at the start was written or read";
        metrics.register("kvstore_initial_sync_completed", help, all.completed.clone());
        metrics.register("kvstore_quorum_errors_total", "Quorum errors", all.quorum.clone());
        all
    }

    pub(crate) fn failed(&self, scope: &str, cluster: &str) {
        self.errors.get_or_create(&keyed(scope, cluster)).inc();
    }

    pub(crate) fn pending(&self, scope: &str, cluster: &str, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.queue.get_or_create(&keyed(scope, cluster)).set(keys);
    }

    /// `action` is `read` or `write`.
    pub(crate) fn completed(&self, scope: &str, cluster: &str, action: &str, is: bool) {
        let [scope, cluster] = keyed(scope, cluster);
        let labels = [scope, cluster, ("action", action.to_owned())];
        self.completed.get_or_create(&labels).set(is.into());
    }

    /// `error` is `lock timeout` or `no event received`.
    pub(crate) fn quorum_error(&self, error: &str) {
        self.quorum.get_or_create(&[("error", error.to_owned())]).inc();
    }
}

/// What `kvstore_operations_duration_seconds` calls an operation: by the names of Cilium's client.
pub(crate) fn action(operation: &'static str) -> &'static str {
    match operation {
        "get" => "Get",
        "list" => "ListPrefix",
        "update" | "claim" => "Update",
        "create" | "return" => "CreateOnly",
        "create under lock" => "CreateOnlyLocked",
        "check lock" => "GetLocked",
        "lock" => "Lock",
        "unlock" => "Unlock",
        "delete" => "Delete",
        "delete under lock" => "DeleteLocked",
        "delete all" => "DeletePrefix",
        other => other,
    }
}

fn keyed(scope: &str, cluster: &str) -> [(&'static str, String); 2] {
    [("scope", scope.to_owned()), ("source_cluster", cluster.to_owned())]
}
