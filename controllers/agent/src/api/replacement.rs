//! What of kube-proxy's work is done here, as Cilium's status tells it.

use cilia_runtime::config::Config;
use serde_json::{Value, json};

/// Cluster addresses and session affinity, in the packet's path; the rest is kube-proxy's. Cilium's clients want every part.
pub(super) fn shown(config: &Config) -> Value {
    let off = || json!({"enabled": false});
    json!({
        "mode": if config.bool("kube-proxy-replacement") { "True" } else { "False" },
        "features": {
            "annotations": [],
            "externalIPs": off(),
            "gracefulTermination": off(),
            "hostPort": off(),
            "nat46X64": off(),
            "nodePort": off(),
            "sessionAffinity": {"enabled": true},
            "socketLB": off(),
            "socketLBTracing": off(),
        },
    })
}
