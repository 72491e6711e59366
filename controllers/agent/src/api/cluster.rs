//! How other clusters are, in Cilium's shapes.

use std::collections::BTreeMap;

use cilia_kvstore::mesh::{Remote, shown};
use serde_json::{Value, json};

/// Every cluster, as the status shows it.
pub(super) fn mesh(remotes: &BTreeMap<String, Remote>) -> Value {
    let clusters: Vec<Value> = remotes.iter().map(|(name, remote)| shown(name, remote)).collect();
    let services: usize = remotes.values().map(|remote| remote.counts.services).sum();
    json!({"clusters": clusters, "num-global-services": services})
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
