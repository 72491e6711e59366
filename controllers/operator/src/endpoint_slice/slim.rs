//! Reads of an endpoint or slice only what slices are made of: the rest is never allocated.
//!
//! Of an endpoint that is a tenth, of the metadata most of it (managed fields) is left out.

use std::borrow::Cow;

use cilia_crds::ciliumendpoint::networking::{EncryptionSpec, EndpointNetworking, NamedPort};
use cilia_crds::ciliumendpoint::{EndpointIdentity, EndpointStatus};
use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CoreCiliumEndpoint};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object of which only the part that matters here was read.
#[derive(Debug, Clone)]
pub(super) struct Slim<K>(pub(super) K);

impl<K: Resource> Resource for Slim<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[derive(Deserialize)]
struct Endpoint {
    metadata: Metadata,
    status: Option<Status>,
}

/// A slice whose entries are read only when they are asked for: most that a watch tells of are the
/// operator's own writes, of which everything is known.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) metadata: ObjectMeta,
    pub(super) namespace: Option<String>,
    endpoints: Option<Box<RawValue>>,
}

impl Slice {
    /// Its entries. Nobody could store one that is not of this shape.
    pub(super) fn endpoints(&self) -> Vec<CoreCiliumEndpoint> {
        let text = self.endpoints.as_ref().map_or("[]", |endpoints| endpoints.get());
        serde_json::from_str(text).unwrap_or_default()
    }
}

impl Resource for Slice {
    type DynamicType = <CiliumEndpointSlice as Resource>::DynamicType;
    type Scope = <CiliumEndpointSlice as Resource>::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        CiliumEndpointSlice::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        CiliumEndpointSlice::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        CiliumEndpointSlice::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        CiliumEndpointSlice::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<'de> Deserialize<'de> for Slice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Metadata,
            namespace: Option<String>,
            endpoints: Option<Box<RawValue>>,
        }
        let Whole { metadata, namespace, endpoints } = Whole::deserialize(deserializer)?;
        Ok(Self { metadata: metadata.into(), namespace, endpoints })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    /// Bookmarks say by one that a streamed list is complete.
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Status {
    identity: Option<Identity>,
    networking: Option<EndpointNetworking>,
    encryption: Option<EncryptionSpec>,
    #[serde(default)]
    named_ports: Vec<NamedPort>,
    service_account: Option<String>,
}

#[derive(Deserialize)]
struct Identity {
    id: Option<i64>,
}

impl From<Metadata> for ObjectMeta {
    fn from(slim: Metadata) -> Self {
        Self {
            name: slim.name,
            namespace: slim.namespace,
            uid: slim.uid,
            resource_version: slim.resource_version,
            annotations: slim.annotations,
            ..Self::default()
        }
    }
}

impl From<Status> for EndpointStatus {
    fn from(slim: Status) -> Self {
        let identity = |slim: Identity| EndpointIdentity { id: slim.id, ..Default::default() };
        Self {
            identity: slim.identity.map(identity),
            networking: slim.networking,
            encryption: slim.encryption,
            named_ports: slim.named_ports,
            service_account: slim.service_account,
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for Slim<CiliumEndpoint> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Endpoint { metadata, status } = Endpoint::deserialize(deserializer)?;
        let (metadata, status) = (metadata.into(), status.map(EndpointStatus::from));
        Ok(Self(CiliumEndpoint { metadata, status }))
    }
}

#[cfg(test)]
mod tests {
    use super::Slim;
    use cilia_crds::CiliumEndpoint;
    use serde_json::json;

    #[test]
    fn keeps_what_slices_are_made_of_and_nothing_else() {
        let needed = json!({
            "metadata": { "name": "pod", "namespace": "ns", "uid": "u", "resourceVersion": "7" },
            "status": {
                "identity": { "id": 1234 },
                "networking": {
                    "addressing": [{ "ipv4": "10.0.0.1", "ipv6": "fd00::1" }], "node": "192.0.2.1",
                },
                "encryption": { "key": 3 },
                "named-ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
                "service-account": "default",
            },
        });
        let mut whole = needed.clone();
        whole["metadata"]["managedFields"] =
            json!([{ "manager": "cilium", "operation": "Update" }]);
        whole["status"]["identity"]["labels"] = json!(["k8s:app=a"]);
        whole["status"]["state"] = json!("ready");
        whole["status"]["external-identifiers"] = json!({ "pod-name": "ns/pod" });
        let slim = serde_json::from_value::<Slim<CiliumEndpoint>>(whole).unwrap().0;
        let want: CiliumEndpoint = serde_json::from_value(needed).unwrap();
        assert_eq!(slim, want);
    }
}
