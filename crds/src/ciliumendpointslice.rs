//! `CiliumEndpointSlice`: many endpoints of one namespace in one object, as the operator packs them.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ciliumendpoint::networking::{EncryptionSpec, EndpointNetworking, NamedPort};
use crate::kind::Kind;
use crate::resource::cilium_kind;

/// Endpoints of one namespace. Has no spec and no status.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumEndpointSlice {
    /// The slice's name.
    pub metadata: ObjectMeta,
    /// The namespace that all of the endpoints are in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The endpoints.
    pub endpoints: Vec<CoreCiliumEndpoint>,
}

cilium_kind! {
    CiliumEndpointSlice: Cluster "ciliumendpointslices" ["v2alpha1"]
    fields { "metadata": metadata, "endpoints": endpoints }
    optional { "namespace": namespace }
    Kind {
        name: "CiliumEndpointSlice",
        short_names: &["ces"],
        categories: &["cilium"],
        ..Kind::EMPTY
    }
}

/// What other nodes need to know of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CoreCiliumEndpoint {
    /// The `CiliumEndpoint`'s name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The identity's number (not the endpoint's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// How it is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networking: Option<EndpointNetworking>,
    /// How traffic to it is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionSpec>,
    /// Its ports that have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_ports: Vec<NamedPort>,
    /// The pod's service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}
