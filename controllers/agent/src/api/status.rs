//! How the agent is, and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::Parts;

/// How long the API server may take to say its version.
const ASK: Duration = Duration::from_secs(2);

pub(super) async fn healthz(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let closed = parts.readiness.closed();
    let version = env!("CARGO_PKG_VERSION");
    let cilium = if closed.is_empty() {
        json!({"state": "Ok", "msg": version})
    } else {
        let reasons: Vec<String> =
            closed.iter().map(|(gate, reason)| format!("{gate}: {reason}")).collect();
        json!({"state": "Failure", "msg": reasons.join("; ")})
    };
    let config = &parts.config;
    let endpoints = parts.endpoints.list();
    let local = parts.nodes.local();
    let allocated = |v4: bool| {
        let of = |endpoint: &Arc<crate::endpoint::LocalEndpoint>| {
            let address = if v4 {
                endpoint.ipv4.map(|a| a.to_string())
            } else {
                endpoint.ipv6.map(|a| a.to_string())
            };
            address.map(|address| {
                (address, Value::from(format!("{}/{}", endpoint.namespace, endpoint.pod)))
            })
        };
        endpoints.iter().filter_map(of).collect::<Map<String, Value>>()
    };
    let (v4, v6) = (allocated(true), allocated(false));
    let ranges: Vec<String> =
        local.iter().flat_map(|node| &node.pod_cidrs).map(ToString::to_string).collect();
    let ipam = format!(
        "IPv4: {} allocated, IPv6: {} allocated, from {}",
        v4.len(),
        v6.len(),
        ranges.join(", ")
    );
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mode = |on: bool| if on { "Enabled" } else { "Disabled" };
    let (masquerade4, masquerade6) =
        (config.bool("enable-ipv4-masquerade"), config.bool("enable-ipv6-masquerade"));
    Json(json!({
        "kubernetes": kubernetes(&parts).await,
        "kube-proxy-replacement": {"mode": if config.bool("kube-proxy-replacement") { "True" } else { "False" }},
        "host-firewall": {"mode": mode(false)},
        "cni-chaining": {"mode": "none"},
        "cilium": cilium,
        "nodeMonitor": {"cpus": cpus, "npages": 1, "pagesize": 4 << 20, "lost": parts.bus.lost(), "unknown": 0},
        "ipam": {"status": ipam, "ipv4": v4, "ipv6": v6},
        "routing": {"inter-host-routing-mode": "Tunnel", "tunnel-protocol": "vxlan", "intra-host-routing-mode": "BPF"},
        "attach-mode": "tcx",
        "datapath-mode": "veth",
        "masquerading": {
            "enabled": masquerade4 || masquerade6,
            "mode": "iptables",
            "enabled-protocols": {"ipv4": masquerade4, "ipv6": masquerade6},
        },
        "identity-range": {"min-identity": 256, "max-identity": 65535},
        "policy": {"revision": parts.enforcer.view().borrow().revision},
        "endpoints": {"total": endpoints.len()},
    }))
}

/// What the API server says of itself.
async fn kubernetes(parts: &Parts) -> Value {
    match tokio::time::timeout(ASK, parts.client.apiserver_version()).await {
        Ok(Ok(version)) => json!({
            "state": "Ok",
            "msg": format!("{}.{} ({}) [{}]", version.major, version.minor, version.git_version, version.platform),
            "k8s-api-versions": versions(&parts.config),
        }),
        Ok(Err(error)) => json!({"state": "Failure", "msg": error.to_string()}),
        Err(_) => json!({"state": "Failure", "msg": "no answer within 2 s"}),
    }
}

/// The kinds that the agent watches.
fn versions(config: &cilia_runtime::config::Config) -> Vec<&'static str> {
    let kinds = [
        (true, "cilium/v2::CiliumIdentity"),
        (true, "cilium/v2::CiliumNode"),
        (config.bool("enable-cilium-network-policy"), "cilium/v2::CiliumNetworkPolicy"),
        (
            config.bool("enable-cilium-clusterwide-network-policy"),
            "cilium/v2::CiliumClusterwideNetworkPolicy",
        ),
        (config.bool("enable-cilium-endpoint-slice"), "cilium/v2alpha1::CiliumEndpointSlice"),
        (!config.bool("enable-cilium-endpoint-slice"), "cilium/v2::CiliumEndpoint"),
        (true, "core/v1::Pods"),
        (true, "core/v1::Service"),
        (true, "discovery/v1::EndpointSlice"),
        (config.bool("enable-k8s-networkpolicy"), "networking.k8s.io/v1::NetworkPolicy"),
    ];
    kinds.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect()
}

pub(super) async fn config(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let values: Map<String, Value> = parts
        .config
        .iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value.to_string())))
        .collect();
    Json(json!({"spec": {"options": {}}, "status": {"daemonConfigurationMap": values}}))
}
