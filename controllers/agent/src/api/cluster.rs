//! How other clusters are, in Cilium's shapes.

use std::collections::BTreeMap;

use cilia_kvstore::mesh::Remote;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Every cluster, as the status shows it.
pub(super) fn mesh(remotes: &BTreeMap<String, Remote>) -> Value {
    let clusters: Vec<Value> = remotes.iter().map(|(name, remote)| one(name, remote)).collect();
    let services: usize = remotes.values().map(|remote| remote.counts.services).sum();
    json!({"clusters": clusters, "num-global-services": services})
}

fn one(name: &str, remote: &Remote) -> Value {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_kvstore::mesh::{Counts, Remote};

    use super::mesh;

    #[test]
    fn a_cluster_that_was_lost_says_when_and_why() {
        let ready = Remote {
            ready: true,
            synced: true,
            connected: true,
            id: 2,
            status: "ready".into(),
            counts: Counts { nodes: 2, identities: 3, ips: 4, services: 1 },
            ..Remote::default()
        };
        let lost = Remote {
            connected: false,
            ready: false,
            status: "no heartbeat".into(),
            failures: 1,
            last_failure: 60,
            ..ready.clone()
        };
        let said = mesh(&BTreeMap::from([("east".into(), ready), ("west".into(), lost)]));
        let clusters = &said["clusters"];
        assert_eq!(
            (&said["num-global-services"], &clusters[0]["ready"]),
            (&2.into(), &true.into())
        );
        assert_eq!(clusters[0]["last-failure"], "0001-01-01T00:00:00Z");
        assert_eq!(clusters[0]["config"]["cluster-id"], 2);
        let west = &clusters[1];
        assert_eq!((&west["ready"], &west["status"]), (&false.into(), &"no heartbeat".into()));
        assert_eq!(
            (&west["last-failure"], &west["num-endpoints"]),
            (&"1970-01-01T00:01:00Z".into(), &4.into())
        );
    }
}
