//! How a cluster is, in the shape in which Cilium's APIs show it.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Remote;

/// A cluster of this name.
pub fn shown(name: &str, remote: &Remote) -> Value {
    let (counts, known) = (remote.counts, remote.id != 0);
    let last = Timestamp::from_second(remote.last_failure).ok().filter(|_| remote.failures > 0);
    json!({
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
    })
}
