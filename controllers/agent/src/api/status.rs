//! How the agent is, and its settings.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::Parts;
use super::form::on;
use super::query::Pairs;

/// How long the API server may take to say its version.
const ASK: Duration = Duration::from_secs(2);
/// The BPF file system, where `bpf-root` names no other.
const BPF_ROOT: &str = "/sys/fs/bpf";
/// The events' ring, in bytes.
const RING: u32 = 4 << 20;

/// What is asked for, in headers as Cilium's clients send them, or in the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    brief: bool,
    require_kubernetes: bool,
}

impl Asked {
    fn read(query: &Pairs, headers: &HeaderMap) -> Self {
        let asked = |name: &str, otherwise: bool| {
            let in_query = query.iter().find(|(known, _)| known == name).map(|(_, v)| v.as_str());
            let value =
                in_query.or_else(|| headers.get(name).and_then(|value| value.to_str().ok()));
            value.filter(|value| !value.is_empty()).map_or(otherwise, on)
        };
        Self {
            brief: asked("brief", false),
            require_kubernetes: asked("require-k8s-connectivity", true),
        }
    }
}

pub(super) async fn healthz(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    headers: HeaderMap,
) -> Response {
    let asked = Asked::read(&query, &headers);
    if asked.brief {
        return Json(json!({"cilium": cilium(&parts), "cluster": cluster(&parts)})).into_response();
    }
    Json(whole(&parts, asked.require_kubernetes).await).into_response()
}

/// The status of every part; `required`: it is a failure if the API server does not answer.
pub(super) async fn whole(parts: &Parts, required: bool) -> Value {
    let kubernetes = kubernetes(parts, required).await;
    let mut status = own(parts);
    status["kubernetes"] = kubernetes;
    status
}

/// The agent's own state: every gate must be open.
fn cilium(parts: &Parts) -> Value {
    let closed = parts.readiness.closed();
    if closed.is_empty() {
        return json!({"state": "Ok", "msg": env!("CARGO_PKG_VERSION")});
    }
    let reasons: Vec<String> =
        closed.iter().map(|(gate, reason)| format!("{gate}: {reason}")).collect();
    json!({"state": "Failure", "msg": reasons.join("; ")})
}

/// What this node is called; others are not probed.
fn cluster(parts: &Parts) -> Value {
    let local = parts.nodes.local().map(|node| node.name.clone()).unwrap_or_default();
    let name = format!("{}/{local}", parts.config.string("cluster-name"));
    json!({"self": name, "ciliumHealth": {"state": "Disabled", "msg": ""}})
}

/// What this program is.
pub(super) fn version() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// Where the BPF file system is.
pub(super) fn bpf_root(parts: &Parts) -> &str {
    match parts.config.string("bpf-root") {
        "" => BPF_ROOT,
        root => root,
    }
}

fn own(parts: &Parts) -> Value {
    let config = &parts.config;
    let modules: Vec<Value> = parts
        .readiness
        .gates()
        .into_iter()
        .map(|(gate, closed)| {
            let state = if closed.is_none() { "Ok" } else { "Failure" };
            json!({"name": gate, "state": state, "msg": closed.unwrap_or_default()})
        })
        .collect();
    let (masquerade4, masquerade6) =
        (config.bool("enable-ipv4-masquerade"), config.bool("enable-ipv6-masquerade"));
    let tunnel = config.string("routing-mode") != "native";
    let firewall = if config.bool("enable-host-firewall") { "Enabled" } else { "Disabled" };
    let mut status = json!({
        "kvstore": kvstore(parts),
        "kube-proxy-replacement": super::replacement::shown(config),
        "host-firewall": {"mode": firewall},
        "srv6": {"enabled": false},
        "cni-chaining": {"mode": config.string("cni-chaining-mode")},
        "cni-file": cni_file(parts),
        "cilium": cilium(parts),
        "nodeMonitor": monitor(parts),
        "cluster": cluster(parts),
        "ipam": addresses(parts),
        "ipv4-big-tcp": {"enabled": false},
        "ipv6-big-tcp": {"enabled": false},
        "bandwidth-manager": {"enabled": false},
        "routing": {
            "inter-host-routing-mode": if tunnel { "Tunnel" } else { "Native" },
            "tunnel-protocol": if tunnel { config.string("tunnel-protocol") } else { "" },
            "intra-host-routing-mode": "BPF",
        },
        "attach-mode": "tcx",
        "datapath-mode": "veth",
        "masquerading": {
            "enabled": masquerade4 || masquerade6,
            "mode": "iptables",
            "enabledProtocols": {"ipv4": masquerade4, "ipv6": masquerade6},
        },
        "clock-source": {"mode": "ktime", "hertz": 0},
        "identity-range": {"min-identity": 256, "max-identity": 65535},
        "hubble": {"state": "Disabled", "msg": ""},
        "bpf-maps": maps(parts),
        "encryption": {"mode": "Disabled"},
        "modules": modules,
        "policy": {"revision": parts.enforcer.view().borrow().revision},
        "endpoints": {"total": parts.endpoints.list().len()},
    });
    if let Some(clusters) = &parts.clusters {
        status["cluster-mesh"] = super::cluster::mesh(&clusters.borrow());
    }
    status
}

/// How many entries the maps have room for.
fn maps(parts: &Parts) -> Value {
    let size = |(name, size): (&str, u32)| json!({"name": name, "size": size});
    let maps: Vec<Value> = parts.datapath.capacities().into_iter().map(size).collect();
    // The field's 0 says that sizes don't depend on the node's memory.
    let ratio = parts.config.float("bpf-map-dynamic-size-ratio");
    json!({"dynamic-size-ratio": ratio, "maps": maps})
}

/// How the kvstore is.
fn kvstore(parts: &Parts) -> Value {
    let Some(health) = &parts.kvstore else { return json!({"state": "Disabled", "msg": ""}) };
    let health = health.borrow();
    json!({"state": if health.ok { "Ok" } else { "Failure" }, "msg": health.message})
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How events come.
pub(super) fn monitor(parts: &Parts) -> Value {
    json!({"cpus": cpus(), "npages": 1, "pagesize": RING, "lost": parts.bus.lost(), "unknown": 0})
}

/// What those who listen to events are told first.
pub(super) fn listening() -> String {
    format!("Listening for events on {} CPUs with 1x{RING} of shared memory", cpus())
}

fn cni_file(parts: &Parts) -> Value {
    let path = parts.config.string("write-cni-conf-when-ready");
    if path.is_empty() {
        return json!({"state": "Disabled", "msg": "not written by the agent"});
    }
    if parts.readiness.closed().iter().any(|(gate, _)| *gate == "cni") {
        return json!({"state": "Failure", "msg": format!("{path} is not written yet")});
    }
    json!({"state": "Ok", "msg": format!("successfully wrote CNI configuration file to {path}")})
}

fn addresses(parts: &Parts) -> Value {
    let endpoints = parts.endpoints.list();
    let mut allocations = Map::new();
    for endpoint in &endpoints {
        let owner = Value::from(format!("{}/{}", endpoint.namespace, endpoint.pod));
        for address in endpoint.addresses() {
            allocations.insert(address.to_string(), owner.clone());
        }
    }
    let local = parts.nodes.local();
    let (mut ranges, mut routers) = (Vec::new(), Vec::new());
    if let Some(local) = &local {
        ranges.clone_from(&local.pod_cidrs);
        routers.clone_from(&local.routers);
    }
    for router in &routers {
        allocations.insert(router.to_string(), "router".into());
    }
    let lent = parts.loans.list().into_iter();
    allocations.extend(lent.map(|(address, owner)| (address.to_string(), owner.into())));
    let used = |v4: bool| {
        let addresses = allocations.keys().filter(|address| address.contains('.') == v4);
        addresses.cloned().collect::<Vec<String>>()
    };
    let (ipv4, ipv6) = (used(true), used(false));
    let family = |name: &str, used: usize, v4: bool| {
        let of = ranges.iter().filter(|range| matches!(range, IpNet::V4(_)) == v4);
        let shown: Vec<String> = of.clone().map(ToString::to_string).collect();
        let total = of.map(size).fold(0, u128::saturating_add);
        (!shown.is_empty())
            .then(|| format!("{name}: {used}/{total} allocated from {}", shown.join(", ")))
    };
    let families = [family("IPv4", ipv4.len(), true), family("IPv6", ipv6.len(), false)];
    let status = match families.into_iter().flatten().collect::<Vec<_>>() {
        none if none.is_empty() => "no range yet".to_owned(),
        families => families.join(", "),
    };
    json!({"status": status, "ipv4": ipv4, "ipv6": ipv6, "allocations": allocations})
}

/// How many addresses of a range may be given out: its first and last are not.
fn size(range: &IpNet) -> u128 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    1u128.checked_shl(bits).map_or(u128::MAX, |all| if all > 2 { all - 2 } else { all })
}

/// What the API server says of itself.
async fn kubernetes(parts: &Parts, required: bool) -> Value {
    let fault = |why: String| {
        // Whoever does not need it is told, and not alarmed.
        json!({"state": if required { "Failure" } else { "Ok" }, "msg": why})
    };
    match tokio::time::timeout(ASK, parts.client.apiserver_version()).await {
        Ok(Ok(version)) => json!({
            "state": "Ok",
            "msg": format!("{}.{} ({}) [{}]", version.major, version.minor, version.git_version, version.platform),
            "k8s-api-versions": versions(&parts.config),
        }),
        Ok(Err(error)) => fault(error.to_string()),
        Err(_) => fault("no answer within 2 s".into()),
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

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::{Asked, size};

    #[test]
    fn headers_and_queries_ask_the_same() {
        let mut headers = HeaderMap::new();
        let asked = |query: &[(&str, &str)], headers: &HeaderMap| {
            let query = query.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            Asked::read(&query, headers)
        };
        assert_eq!(asked(&[], &headers), Asked { brief: false, require_kubernetes: true });
        assert!(asked(&[("brief", "true")], &headers).brief);
        headers.insert("require-k8s-connectivity", "false".parse().expect("a value"));
        assert!(!asked(&[], &headers).require_kubernetes);
        assert!(!asked(&[("brief", "maybe")], &headers).brief, "as Cilium reads it");
    }

    #[test]
    fn ranges_lose_their_ends() {
        let sizes = ["10.0.0.0/24", "10.0.0.0/31", "fd00::/116", "::/0"]
            .map(|range| size(&range.parse().expect("a range")));
        assert_eq!(sizes, [254, 2, 4094, u128::MAX]);
    }
}
