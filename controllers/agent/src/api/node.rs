//! The cluster's nodes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::Parts;
use crate::node::NodeInfo;

pub(super) async fn list(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let own = parts.nodes.local().map(|node| node.name.clone()).unwrap_or_default();
    let nodes = parts.nodes.list();
    let show = |node: &Arc<NodeInfo>| {
        let range =
            |v4: bool| node.pod_cidrs.iter().find(|range| matches!(range, IpNet::V4(_)) == v4);
        let family = |address: Option<String>, v4: bool| {
            json!({
                "enabled": address.is_some(),
                "ip": address,
                "alloc-range": range(v4).map(ToString::to_string),
            })
        };
        json!({
            "name": node.name,
            "primary-address": {
                "ipv4": family(node.internal_ipv4.map(|a| a.to_string()), true),
                "ipv6": family(node.internal_ipv6.map(|a| a.to_string()), false),
            },
            "source": if node.name == own { "local" } else { "custom-resource" },
        })
    };
    let shown: Vec<Value> = nodes.iter().map(show).collect();
    Json(json!({"client-id": 0, "nodes-added": shown, "nodes-removed": [], "self": own}))
}
