//! Decides how an endpoint reads, with what is in place for it: Cilium's `Endpoint`.

use std::collections::BTreeSet;
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_loader::Datapath;
use serde_json::{Map, Value, json};

use super::super::identity;
use super::super::query::without_nulls;
use super::detail::{health, labels_of, shown_labels, states};
use super::found::Host;
use crate::endpoint::{Endpoints, LocalEndpoint};
use crate::policy::EndpointView;

/// What is in place for an endpoint, and what ought to be; nothing before it has a policy.
fn policy(view: Option<&EndpointView>) -> Option<Value> {
    let policy = view?;
    let enabled = match (policy.ingress, policy.egress, policy.audit) {
        (true, true, false) => "both",
        (true, true, true) => "audit-both",
        (true, false, false) => "ingress",
        (true, false, true) => "audit-ingress",
        (false, true, false) => "egress",
        (false, true, true) => "audit-egress",
        (false, false, _) => "none",
    };
    let realized = json!({
        "id": policy.identity.0,
        "build": policy.revision,
        "policy-enabled": enabled,
        "policy-revision": policy.revision,
        "map-entries": policy.entries,
        "map-entries-needed": policy.needed,
        "map-entries-max": policy.most,
        "audit": policy.audit,
        "error": policy.error,
    });
    Some(json!({"spec": realized, "realized": realized, "proxy-statistics": []}))
}

/// The identities that an endpoint's map lets in and out, and keeps out and in, whatever the port.
pub(super) async fn peers(datapath: &Arc<Datapath>, id: u16) -> Map<String, Value> {
    let datapath = Arc::clone(datapath);
    let read = tokio::task::spawn_blocking(move || datapath.policy(id)?.entries()).await;
    // Whose map can't be read says so as the error of its policy.
    let entries = read.ok().and_then(Result::ok).unwrap_or_default();
    let of = |egress: bool, deny: bool| {
        let all_ports = entries.iter().filter(|(key, _)| key.proto == 0 && key.port == 0);
        let of = all_ports.filter(|(key, entry)| key.egress == egress && entry.deny == deny);
        of.map(|(key, _)| key.identity).collect::<BTreeSet<u32>>()
    };
    let named = [
        ("allowed-ingress-identities", false, false),
        ("denied-ingress-identities", false, true),
        ("allowed-egress-identities", true, false),
        ("denied-egress-identities", true, true),
    ];
    let named = named.map(|(name, egress, deny)| (name.to_owned(), of(egress, deny)));
    named.into_iter().map(|(name, identities)| (name, json!(identities))).collect()
}

/// The configuration of an endpoint.
fn spec(labels: &Value, view: Option<&EndpointView>) -> Value {
    let audit = if view.is_some_and(|policy| policy.audit) { "Enabled" } else { "Disabled" };
    json!({"label-configuration": labels["realized"], "options": {"PolicyAuditMode": audit}})
}

/// An endpoint, with what is in place for it.
pub(in super::super) fn show(
    endpoints: &Endpoints,
    endpoint: &LocalEndpoint,
    view: Option<&EndpointView>,
) -> Value {
    let names: Vec<Value> = endpoint
        .named_ports
        .iter()
        .map(|port| json!({"name": port.name, "port": port.port, "protocol": port.protocol}))
        .collect();
    let labels = labels_of(endpoint);
    let spec = spec(&labels, view);
    let log: Vec<Value> = states(endpoints, endpoint.id).into_iter().take(1).collect();
    without_nulls(json!({
        "id": endpoint.id,
        "spec": spec,
        "status": {
            "controllers": [],
            "external-identifiers": {
                "cni-attachment-id": endpoint.attachment(),
                "container-id": endpoint.container_id,
                "k8s-namespace": endpoint.namespace,
                "k8s-pod-name": endpoint.pod,
                "pod-name": format!("{}/{}", endpoint.namespace, endpoint.pod),
            },
            "health": health(endpoint.state, view),
            "identity": endpoint.identity.map(|identity| identity::show(identity, &endpoint.labels)),
            "labels": labels,
            "log": log,
            "namedPorts": names,
            "networking": {
                "addressing": [{
                    "ipv4": endpoint.ipv4.map(|address| address.to_string()),
                    "ipv6": endpoint.ipv6.map(|address| address.to_string()),
                }],
                "container-interface-name": endpoint.ifname,
                "host-mac": endpoint.node_mac.to_string(),
                "interface-index": endpoint.ifindex,
                "interface-name": endpoint.host_device,
                "mac": endpoint.mac.to_string(),
            },
            "policy": policy(view),
            "realized": spec,
            "state": endpoint.state,
        },
    }))
}

/// The node itself, with what is in place for it.
pub(super) fn show_host(host: &Host, view: Option<&EndpointView>) -> Value {
    let labels = shown_labels(&[], &host.labels, &[]);
    let spec = spec(&labels, view);
    without_nulls(json!({
        "id": host.id,
        "spec": spec,
        "status": {
            "controllers": [],
            "external-identifiers": {},
            "health": health(host.state, view),
            "identity": identity::show(NumericIdentity::HOST, &host.set),
            "labels": labels,
            "namedPorts": [],
            "networking": {"addressing": [{}], "interface-name": "cilium_host"},
            "policy": policy(view),
            "realized": spec,
            "state": host.state,
        },
    }))
}
