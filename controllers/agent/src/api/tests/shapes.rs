//! What answers consist of, held against Cilium 1.19's definitions: no member has another type, none that is required
//! is missing, and what Cilium's have not is known to be an addition of ours.

use axum::Router;
use cilia_loader::testing::BpfFs;
use http::Method;
use serde_json::{Value, json};

use super::super::{router, shaped};
use super::{ask, json_of, parts};
use crate::endpoint::testing::endpoint;

/// What is wrong with a value. A shape is the name of a type, a list with the shape of its items, or an object: `!`
/// before a member says that it is required, `+` that it is ours, and `*` stands for any name.
fn faults(value: &Value, shape: &Value, place: &str) -> Vec<String> {
    match (value, shape) {
        (Value::Array(items), Value::Array(shape)) => {
            items.iter().flat_map(|item| faults(item, &shape[0], &format!("{place}[]"))).collect()
        }
        (Value::Object(members), Value::Object(shape)) => {
            let known = |name: &str| {
                let names = [name.to_owned(), format!("!{name}"), format!("+{name}"), "*".into()];
                names.iter().find_map(|name| shape.get(name))
            };
            let required = shape.keys().filter_map(|name| name.strip_prefix('!'));
            let missing = required.filter(|name| !members.contains_key(*name));
            let missing = missing.map(|name| format!("{place}.{name} is missing"));
            let present = members.iter().flat_map(|(name, member)| {
                let place = format!("{place}.{name}");
                match known(name) {
                    Some(shape) => faults(member, shape, &place),
                    None => vec![format!("{place} is unknown")],
                }
            });
            missing.chain(present).collect()
        }
        (value, Value::String(kind)) => {
            let fits = match kind.as_str() {
                "string" => value.is_string(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "boolean" => value.is_boolean(),
                "any" => true,
                choice => value.as_str().is_some_and(|value| choice.split('|').any(|c| c == value)),
            };
            if fits { Vec::new() } else { vec![format!("{place} is no {kind}: {value}")] }
        }
        (value, shape) => vec![format!("{place} is not like {shape}: {value}")],
    }
}

const STATE: &str = "Ok|Warning|Failure|Disabled";
const ENDPOINT_STATE: &str = "waiting-for-identity|not-ready|waiting-to-regenerate|regenerating|restoring|ready|\
                              disconnecting|disconnected|invalid";

fn status() -> Value {
    json!({"state": STATE, "msg": "string"})
}

fn identity() -> Value {
    json!({"id": "integer", "labels": ["string"], "labelsSHA256": "string"})
}

fn labels() -> Value {
    json!({"realized": {"user": ["string"]}, "security-relevant": ["string"], "derived": ["string"],
        "disabled": ["string"]})
}

fn log() -> Value {
    json!([{"timestamp": "string", "code": "OK|Warning|Failure|Disabled", "message": "string", "state": ENDPOINT_STATE}])
}

fn health() -> Value {
    let one = "OK|Bootstrap|Pending|Warning|Failure|Disabled";
    json!({"overallHealth": one, "bpf": one, "policy": one, "connected": "boolean"})
}

fn addressing() -> Value {
    let one = json!({"enabled": "boolean", "ip": "string", "alloc-range": "string", "address-type": "string"});
    json!({"ipv4": one, "ipv6": one})
}

fn whole_endpoint() -> Value {
    let spec = json!({"options": {"*": "string"}, "label-configuration": {"user": ["string"]}});
    let policy = json!({"policy-revision": "integer", "id": "integer", "build": "integer",
        "policy-enabled": "none|ingress|egress|both|audit-ingress|audit-egress|audit-both",
        "allowed-ingress-identities": ["integer"], "denied-ingress-identities": ["integer"],
        "allowed-egress-identities": ["integer"], "denied-egress-identities": ["integer"],
        "+map-entries": "integer", "+map-entries-needed": "integer", "+map-entries-max": "integer",
        "+audit": "boolean", "+error": "string"});
    let pair = json!({"ipv4": "string", "ipv4-pool-name": "string", "ipv6": "string", "ipv6-pool-name": "string"});
    json!({"!id": "integer", "!spec": spec, "!status": {
        "external-identifiers": {"*": "string"},
        "identity": identity(),
        "labels": labels(),
        "realized": spec,
        "networking": {"addressing": [pair], "host-addressing": addressing(), "host-mac": "string", "mac": "string",
            "interface-name": "string", "interface-index": "integer", "container-interface-name": "string"},
        "policy": {"spec": policy, "realized": policy, "proxy-policy-revision": "integer", "proxy-statistics": ["any"]},
        "!log": log(),
        "controllers": ["any"],
        "!state": ENDPOINT_STATE,
        "!health": health(),
        "namedPorts": [{"protocol": "TCP|UDP|SCTP", "port": "integer", "name": "string"}],
    }})
}

fn monitor() -> Value {
    ["cpus", "npages", "pagesize", "lost", "unknown"]
        .map(|name| (name, json!("integer")))
        .into_iter()
        .collect()
}

fn whole_status() -> Value {
    let on = json!({"enabled": "boolean"});
    json!({
        "!cilium": status(), "!kvstore": status(), "!cni-file": status(), "!hubble": status(),
        "!kubernetes": {"state": STATE, "k8s-api-versions": ["string"], "msg": "string"},
        "!host-firewall": {"mode": "Disabled|Enabled", "devices": ["string"]},
        "datapath-mode": "veth|netkit|netkit-l2",
        "attach-mode": "tc|tcx",
        "!kube-proxy-replacement": {"mode": "True|False", "devices": ["string"], "deviceList": ["any"],
            "directRoutingDevice": "string", "features": "any"},
        "!ipam": {"allocations": {"*": "string"}, "ipv4": ["string"], "ipv6": ["string"], "status": "string"},
        "!nodeMonitor": monitor(),
        "!cluster": {"ciliumHealth": status(), "self": "string"},
        "controllers": ["any"],
        "proxy": "any",
        "identity-range": {"min-identity": "integer", "max-identity": "integer"},
        "ipv4-big-tcp": on, "ipv6-big-tcp": on, "bandwidth-manager": on, "srv6": on,
        "!masquerading": {"enabled": "boolean", "enabledProtocols": {"ipv4": "boolean", "ipv6": "boolean"},
            "mode": "BPF|iptables", "ip-masq-agent": "boolean", "snat-exclusion-cidr-v4": "string",
            "snat-exclusion-cidr-v6": "string"},
        "!routing": {"inter-host-routing-mode": "Native|Tunnel", "intra-host-routing-mode": "BPF|Legacy",
            "tunnel-protocol": "string"},
        "clock-source": {"mode": "ktime|jiffies", "hertz": "integer"},
        "stale": {"*": "string"},
        "cluster-mesh": "any",
        "bpf-maps": {"dynamic-size-ratio": "number", "maps": [{"name": "string", "size": "integer"}]},
        "encryption": {"mode": "Disabled|IPsec|Wireguard|Ztunnel", "msg": "string"},
        "cni-chaining": {"mode": "none|aws-cni|flannel|generic-veth|portmap"},
        "container-runtime": status(),
        "+modules": "any", "+policy": "any", "+endpoints": "any",
    })
}

fn settings() -> Value {
    let spec = json!({"options": {"*": "string"}, "policy-enforcement": "default|always|never"});
    json!({"!spec": spec, "!status": {
        "!realized": spec, "!immutable": {"*": "string"}, "!addressing": addressing(), "k8s-endpoint": "string",
        "k8s-configuration": "string", "!nodeMonitor": monitor(),
        "!kvstoreConfiguration": {"type": "string", "options": {"*": "string"}},
        "deviceMTU": "integer", "routeMTU": "integer", "!datapathMode": "veth", "!ipam-mode": "string",
        "!masquerade": "boolean", "!masqueradeProtocols": {"ipv4": "boolean", "ipv6": "boolean"},
        "!daemonConfigurationMap": {"*": "any"},
        "+daemonVersion": "string", "+nodeName": "string", "+routers": ["string"],
    }})
}

fn node() -> Value {
    json!({"name": "string", "primary-address": addressing(), "source": "string",
        "secondary-addresses": [{"enabled": "boolean", "ip": "string", "alloc-range": "string"}]})
}

async fn check(router: &Router, path: &str, shape: &Value) {
    let (status, text) = ask(router, Method::GET, path).await;
    assert_eq!(status, 200, "{path}: {text}");
    let faults = faults(&json_of(&text), shape, "");
    assert!(faults.is_empty(), "{path}: {faults:#?}\n{text}");
}

#[tokio::test]
async fn answers_are_shaped_as_cilium_s() {
    let bpf = BpfFs::mount();
    let mut unidentified = endpoint(8, "c2", "new");
    (unidentified.identity, unidentified.ipv6) = (None, None);
    let flags = ["--api-rate-limit=endpoint-get=skip-initial:99,endpoint-list=skip-initial:99"];
    let parts = parts(&bpf, &flags, vec![endpoint(7, "c1", "web"), unidentified]);
    let remote = cilia_loader::RemoteEndpoint { identity: 9, ..Default::default() };
    parts.datapath.ipcache().upsert(&("10.0.0.9".parse().unwrap(), 32), &remote).unwrap();
    let router = shaped(router(parts));
    let entry = json!({"key": "string", "value": "string", "desired-action": "sync|to-be-inserted|to-be-deleted",
        "last-error": "string"});
    let debuginfo = json!({"!cilium-version": "string", "!kernel-version": "string", "!cilium-status": whole_status(),
        "!endpoint-list": [whole_endpoint()], "!service-list": ["any"], "!environment-variables": ["string"],
        "!policy": {"revision": "integer", "policy": "string", "+faults": "any"}, "!subsystem": {"*": "string"},
        "encryption": "any"});
    let cases = [
        ("/v1/healthz", whole_status()),
        ("/v1/config", settings()),
        ("/v1/endpoint", json!([whole_endpoint()])),
        ("/v1/endpoint/7", whole_endpoint()),
        (
            "/v1/endpoint/7/config",
            json!({"realized": {"options": {"*": "string"}}, "immutable": {}, "error": "string"}),
        ),
        ("/v1/endpoint/7/labels", json!({"!spec": {"user": ["string"]}, "!status": labels()})),
        ("/v1/endpoint/7/log", log()),
        ("/v1/endpoint/8/healthz", health()),
        ("/v1/identity", json!([identity()])),
        ("/v1/identity/1", identity()),
        ("/v1/identity/endpoints", json!([{"identity": identity(), "refCount": "integer"}])),
        (
            "/v1/cluster/nodes",
            json!({"self": "string", "nodes-added": [node()], "nodes-removed": [node()],
            "client-id": "integer"}),
        ),
        (
            "/v1/policy",
            json!({"!revision": "integer", "!policy": "string", "+faults": ["any"], "+rules": ["any"]}),
        ),
        (
            "/v1/map",
            json!({"maps": [{"path": "string", "cache": [entry], "+name": "string", "+num-entries": "integer",
            "+num-errors": "integer", "+cache-enabled": "boolean"}], "+filesystem": "any"}),
        ),
        (
            "/v1/map/cilium_ipcache_v2",
            json!({"path": "string", "cache": [entry], "+name": "string", "+entries": ["any"]}),
        ),
        ("/v1/fqdn/names", json!({"DNSPollNames": ["string"], "FQDNPolicySelectors": ["any"]})),
        ("/v1/cgroup-dump-metadata", json!({"pod-metadatas": ["any"]})),
        ("/v1/debuginfo", debuginfo),
    ];
    for (path, shape) in &cases {
        check(&router, path, shape).await;
    }
    let wrong = json!({"id": "7", "more": null});
    let told = faults(&wrong, &json!({"id": "integer", "!labels": ["string"]}), "");
    assert_eq!(told, [".labels is missing", ".id is no integer: \"7\"", ".more is unknown"]);
}
