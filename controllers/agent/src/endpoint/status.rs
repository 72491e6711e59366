//! Decides what a `CiliumEndpoint` says, and whether one that exists may be taken over.

use cilia_crds::CiliumEndpoint;
use cilia_crds::ciliumendpoint::diagnostics::{EndpointHealth, EndpointLogEntry};
use cilia_crds::ciliumendpoint::networking::{AddressPair, EncryptionSpec, EndpointNetworking};
use cilia_crds::ciliumendpoint::{EndpointIdentifiers, EndpointIdentity, EndpointStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::{EndpointState, LocalEndpoint, PublishedPort};
use crate::policy::Trouble;

/// The object that stands for an endpoint, on a node of this address.
pub fn object(endpoint: &LocalEndpoint, node: &str) -> CiliumEndpoint {
    CiliumEndpoint {
        metadata: ObjectMeta {
            name: Some(endpoint.pod.clone()),
            namespace: Some(endpoint.namespace.clone()),
            labels: (!endpoint.pod_labels.is_empty())
                .then(|| endpoint.pod_labels.clone().into_iter().collect()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: endpoint.pod.clone(),
                uid: endpoint.object_uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        status: Some(status(endpoint, node)),
    }
}

/// Its status; everything else stays empty.
pub fn status(endpoint: &LocalEndpoint, node: &str) -> EndpointStatus {
    let mut labels: Vec<String> =
        endpoint.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort();
    let pair = AddressPair {
        ipv4: endpoint.ipv4.map(|address| address.to_string()),
        ipv6: endpoint.ipv6.map(|address| address.to_string()),
    };
    EndpointStatus {
        id: Some(endpoint.id.into()),
        identity: endpoint
            .identity
            .map(|identity| EndpointIdentity { id: Some(identity.0.into()), labels }),
        networking: Some(EndpointNetworking {
            addressing: vec![pair],
            node: Some(node.to_owned()),
        }),
        state: Some(published(endpoint.state)),
        external_identifiers: Some(EndpointIdentifiers {
            cni_attachment_id: Some(endpoint.attachment()),
            container_id: Some(endpoint.container_id.clone()),
            k8s_namespace: Some(endpoint.namespace.clone()),
            k8s_pod_name: Some(endpoint.pod.clone()),
            pod_name: Some(endpoint.key().to_string()),
            ..EndpointIdentifiers::default()
        }),
        encryption: Some(EncryptionSpec { key: Some(0) }),
        named_ports: endpoint.named_ports.iter().map(PublishedPort::from).collect(),
        service_account: Some(endpoint.service_account.clone())
            .filter(|account| !account.is_empty()),
        ..EndpointStatus::default()
    }
}

/// Adds to a status what is wrong with the endpoint's policy. While nothing is, nothing is said of it.
pub fn tell(status: &mut EndpointStatus, trouble: Trouble) {
    let health = Some(trouble.health().to_owned());
    status.health = Some(Box::new(EndpointHealth {
        bpf: Some("OK".to_owned()),
        policy: health.clone(),
        connected: Some(true),
        overall_health: health.clone(),
    }));
    status.log.push(EndpointLogEntry {
        code: health,
        message: Some(trouble.to_string()),
        ..EndpointLogEntry::default()
    });
}

/// What passes by itself is not worth a write each.
fn published(state: EndpointState) -> EndpointState {
    use EndpointState::{
        Disconnected, Disconnecting, Ready, Regenerating, Restoring, WaitingToRegenerate,
    };
    match state {
        Restoring | WaitingToRegenerate | Regenerating | Disconnecting | Disconnected => Ready,
        other => other,
    }
}

/// What to do about an object that is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takeover {
    /// It is ours.
    Take,
    /// It stood for a pod that is gone: remove it and make a new one.
    Replace,
    /// It is another node's.
    Refuse(String),
}

/// Whether the object that is there may be taken over: it is the one that is on record, or there
/// is none on record and the pod runs on this node.
pub fn takeover(
    endpoint: &LocalEndpoint,
    present: &CiliumEndpoint,
    pod_host: Option<&str>,
    node_addresses: &[String],
) -> Takeover {
    let owners = present.metadata.owner_references.as_deref().unwrap_or_default();
    if owners.iter().any(|owner| owner.kind == "Pod" && owner.uid != endpoint.object_uid) {
        return Takeover::Replace;
    }
    let uid = present.metadata.uid.as_deref();
    if uid.is_some() && uid == endpoint.published_uid.as_deref() {
        return Takeover::Take;
    }
    let here = pod_host.is_some_and(|host| node_addresses.iter().any(|address| address == host));
    match (&endpoint.published_uid, here) {
        (None, true) => Takeover::Take,
        // It was deleted behind our back and made again, by nobody but us or a user.
        (Some(_), true) => Takeover::Replace,
        (_, false) => Takeover::Refuse(format!(
            "its pod is on {}, not here",
            pod_host.unwrap_or("no node yet")
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Takeover, object, takeover};
    use crate::endpoint::EndpointState;
    use crate::endpoint::testing::endpoint;

    #[test]
    fn the_object_is_as_others_expect_it() {
        let mut web = endpoint(7, "c1", "web");
        web.state = EndpointState::Restoring;
        web.labels.insert("k8s", "a", "1");
        assert_eq!(
            serde_json::to_value(object(&web, "192.0.2.1")).unwrap(),
            json!({
                "apiVersion": "cilium.io/v2",
                "kind": "CiliumEndpoint",
                "metadata": {
                    "name": "web",
                    "namespace": "default",
                    "labels": {"app": "web"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-of-web"}],
                },
                "status": {
                    "id": 7,
                    "identity": {"id": 1234, "labels": ["k8s:a=1", "k8s:app=web"]},
                    "networking": {"addressing": [{"ipv4": "10.0.0.2", "ipv6": "fd00::2"}], "node": "192.0.2.1"},
                    "state": "ready",
                    "external-identifiers": {
                        "cni-attachment-id": "c1:eth0",
                        "container-id": "c1",
                        "k8s-namespace": "default",
                        "k8s-pod-name": "web",
                        "pod-name": "default/web",
                    },
                    "encryption": {"key": 0},
                    "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                    "service-account": "default",
                },
            })
        );
    }

    #[test]
    fn an_object_is_taken_over_only_by_whom_it_is_for() {
        let node = ["192.0.2.1".to_owned(), "fd00::1".to_owned()];
        let cases = [
            ("on record", Some("x"), "x", "uid-of-web", None, "take"),
            ("new, pod here", None, "x", "uid-of-web", Some("192.0.2.1"), "take"),
            ("new, pod here by IPv6", None, "x", "uid-of-web", Some("fd00::1"), "take"),
            ("new, pod elsewhere", None, "x", "uid-of-web", Some("192.0.2.2"), "refuse"),
            ("new, pod nowhere yet", None, "x", "uid-of-web", None, "refuse"),
            (
                "another one than on record",
                Some("y"),
                "x",
                "uid-of-web",
                Some("192.0.2.1"),
                "replace",
            ),
            ("of a former pod", None, "x", "uid-of-old", Some("192.0.2.1"), "replace"),
        ];
        for (name, on_record, uid, owner, host, want) in cases {
            let mut web = endpoint(7, "c1", "web");
            let mut present = object(&web, "192.0.2.1");
            present.metadata.uid = Some(uid.into());
            present.metadata.owner_references.as_mut().unwrap()[0].uid = owner.into();
            web.published_uid = on_record.map(str::to_owned);
            let got = match takeover(&web, &present, host, &node) {
                Takeover::Take => "take",
                Takeover::Replace => "replace",
                Takeover::Refuse(_) => "refuse",
            };
            assert_eq!(got, want, "{name}");
        }
    }
}
