//! How a cluster is, in the shape in which Cilium's APIs show it.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Remote;

/// A cluster of this name.
pub fn shown(name: &str, remote: &Remote) -> Value {
    let (counts, known) = (remote.counts, remote.id != 0);
    let last = Timestamp::from_second(remote.last_failure).ok().filter(|_| remote.failures > 0);
    let mut shown = json!({
        "name": name,
        "ready": remote.ready && remote.connected,
        "connected": remote.connected,
        "status": remote.status,
        "num-nodes": counts.nodes,
        "num-endpoints": counts.ips,
        "num-identities": counts.identities,
        "num-shared-services": counts.services,
        "num-service-exports": 0,
        "num-failures": remote.failures,
        "last-failure": last.map_or_else(|| "0001-01-01T00:00:00Z".into(), |last| last.to_string()),
        "config": {
            "required": true,
            "retrieved": known,
            "cluster-id": remote.id,
            "kvstoremesh": remote.cached,
            "sync-canaries": remote.canaries,
        },
        "synced": {
            "nodes": remote.synced,
            "endpoints": remote.synced,
            "identities": remote.synced,
            "services": remote.synced,
        },
    });
    // Nothing is said of what a cluster does not know. Who exports services has none for us: nobody here imports any.
    if let Some(exports) = remote.exports {
        shown["config"]["service-exports-enabled"] = json!(exports);
        shown["synced"]["service-exports"] = json!(remote.synced);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{Remote, shown};

    #[test]
    fn exports_are_told_of_by_those_who_know_them() {
        for exports in [None, Some(false), Some(true)] {
            let remote = Remote { id: 3, synced: true, exports, ..Remote::default() };
            let shown = shown("west", &remote);
            assert_eq!(shown["num-service-exports"], 0);
            assert_eq!(shown["config"]["service-exports-enabled"].as_bool(), exports);
            assert_eq!(shown["synced"]["service-exports"].as_bool(), exports.map(|_| true));
        }
    }
}
