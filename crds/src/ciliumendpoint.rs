//! `CiliumEndpoint`: one endpoint of one node, as its agent publishes it.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Column, Kind};
use crate::resource::cilium_kind;

pub mod diagnostics;
pub mod networking;
pub mod policy;

use diagnostics::{ControllerStatus, EndpointHealth, EndpointLogEntry};
use networking::{EncryptionSpec, EndpointNetworking, NamedPort};
use policy::EndpointPolicy;

/// An endpoint of a node. Its name and namespace are those of its pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumEndpoint {
    /// Name, labels of the pod, and the pod as owner.
    pub metadata: ObjectMeta,
    /// The endpoint. Written with the object: there is no status subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<EndpointStatus>,
}

cilium_kind! {
    CiliumEndpoint: Namespaced "ciliumendpoints" ["v2"]
    fields { "metadata": metadata }
    optional { "status": status }
    Kind {
        name: "CiliumEndpoint",
        short_names: &["cep", "ciliumep"],
        categories: &["cilium"],
        columns: &[
            Column::new("Security Identity", "integer", ".status.identity.id"),
            Column::new("Ingress Enforcement", "string", ".status.policy.ingress.state").wide(),
            Column::new("Egress Enforcement", "string", ".status.policy.egress.state").wide(),
            Column::new("Endpoint State", "string", ".status.state"),
            Column::new("IPv4", "string", ".status.networking.addressing[0].ipv4"),
            Column::new("IPv6", "string", ".status.networking.addressing[0].ipv6"),
        ],
        ..Kind::EMPTY
    }
}

/// An endpoint. Agents fill what is named first; the boxed parts stay empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EndpointStatus {
    /// The endpoint's number on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// The identity of the endpoint's labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<EndpointIdentity>,
    /// How it is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networking: Option<EndpointNetworking>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<EndpointState>,
    /// What others call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_identifiers: Option<EndpointIdentifiers>,
    /// How traffic to it is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionSpec>,
    /// Its ports that have names, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_ports: Vec<NamedPort>,
    /// The pod's service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Its realized policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<EndpointPolicy>>,
    /// How it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Box<EndpointHealth>>,
    /// Its background tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<ControllerStatus>,
    /// Its last changes of state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<EndpointLogEntry>,
}

/// The identity of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointIdentity {
    /// The identity's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// The identity's labels as `source:key=value`, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// What others call an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EndpointIdentifiers {
    /// The container's and the interface's name to the CNI plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_attachment_id: Option<String>,
    /// The container's name to the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The container's name to people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// The endpoint's name to Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker_endpoint_id: Option<String>,
    /// The network's name to Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker_network_id: Option<String>,
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_pod_name: Option<String>,
    /// The pod as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
}

/// How far an endpoint is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointState {
    /// It is being set up.
    Creating,
    /// It waits for its identity.
    WaitingForIdentity,
    /// It can't carry traffic.
    NotReady,
    /// Its policy is about to be computed.
    WaitingToRegenerate,
    /// Its policy is being computed.
    Regenerating,
    /// It is being taken over from a former agent.
    Restoring,
    /// It carries traffic under its policy.
    Ready,
    /// It is being taken down.
    Disconnecting,
    /// It is gone.
    Disconnected,
    /// It could not be set up.
    Invalid,
}
