//! What a node says about a policy, as former releases of Cilium kept it in the kvstore.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The status of one policy on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicyNodeStatus {
    /// The policy's uid.
    #[serde(rename = "UID")]
    pub uid: String,
    /// Its namespace; empty for one of the whole cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node.
    pub node: String,
    /// `ok`, `enforcing`, `error`, `lastUpdated`, ...: passed on as they are.
    #[serde(flatten)]
    pub status: serde_json::Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::PolicyNodeStatus;
    use crate::value::{decode, encode};

    #[test]
    fn keeps_what_it_does_not_know() {
        let text = r#"{"UID":"u-1","Namespace":"default","Name":"web","Node":"n1","ok":true,"enforcing":true,"localPolicyRevision":4}"#;
        let status: PolicyNodeStatus = decode("k", text.as_bytes()).unwrap();
        assert_eq!((status.uid.as_str(), status.node.as_str()), ("u-1", "n1"));
        assert_eq!(status.status["localPolicyRevision"], 4);
        assert_eq!(encode(&status), text.as_bytes());
    }
}
