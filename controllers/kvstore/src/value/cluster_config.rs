//! What a cluster says about itself.

use serde::{Deserialize, Serialize};

/// How many clusters can be told apart where nothing else is said.
const FEW: u32 = 255;

/// A cluster's id and what its etcd has to offer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// Its id; 0 where it has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub id: u32,
    /// What readers can count on.
    #[serde(default)]
    pub capabilities: Capabilities,
}

/// What readers of a cluster's etcd can count on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// A prefix is complete once its canary is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synced_canaries: bool,
    /// The etcd holds copies, made by a kvstoremesh.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// How many clusters can be told apart: 255 or 511.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_connected_clusters: u32,
    /// Whether services are exported; absent where that is unknown to the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_exports_enabled: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ClusterConfig {
    /// Errors for a cluster that this one, with `max` connected clusters and the id `own`, cannot join. Where this
    /// one has 255, the other may have more: its nodes and services are of use, and of its identities those
    /// that are numbered in the same way.
    pub fn check(&self, own: u32, max: u32) -> Result<(), String> {
        let theirs = match self.capabilities.max_connected_clusters {
            0 => FEW,
            theirs => theirs,
        };
        if max != FEW && theirs != max {
            return Err(format!("max-connected-clusters is {theirs} there, and {max} here"));
        }
        match self.id {
            0 => Err("it has no cluster id".into()),
            id if id > max => Err(format!("its cluster id {id} is more than {max}")),
            id if id == own => Err(format!("its cluster id {id} is this cluster's own")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capabilities, ClusterConfig};
    use crate::value::{decode, encode};

    #[test]
    fn is_the_example_byte_for_byte() {
        let text = r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,"serviceExportsEnabled":false}}"#;
        let config = ClusterConfig {
            id: 1,
            capabilities: Capabilities {
                synced_canaries: true,
                max_connected_clusters: 255,
                service_exports_enabled: Some(false),
                ..Capabilities::default()
            },
        };
        assert_eq!(encode(&config), text.as_bytes());
        assert_eq!(decode::<ClusterConfig>("k", text.as_bytes()).unwrap(), config);
        assert_eq!(encode(&ClusterConfig::default()), br#"{"capabilities":{}}"#);
    }

    #[test]
    fn clusters_that_clash_are_refused() {
        let config = |id, max| ClusterConfig {
            id,
            capabilities: Capabilities { max_connected_clusters: max, ..Capabilities::default() },
        };
        for (config, own, max, want) in [
            (config(2, 255), 1, 255, None),
            (config(2, 0), 1, 255, None),
            (config(1, 255), 1, 255, Some("own")),
            (config(0, 255), 1, 255, Some("no cluster id")),
            (config(300, 255), 1, 255, Some("more than 255")),
            (config(2, 511), 1, 255, None),
            (config(300, 511), 1, 255, Some("more than 255")),
            (config(300, 511), 1, 511, None),
            (config(2, 255), 1, 511, Some("max-connected-clusters is 255")),
        ] {
            let got = config.check(own, max).err();
            assert_eq!(got.is_some(), want.is_some(), "{config:?}: {got:?}");
            let got = got.unwrap_or_default();
            assert!(got.contains(want.unwrap_or_default()), "{got}");
        }
    }
}
