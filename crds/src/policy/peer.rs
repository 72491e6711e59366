//! The other side of a rule: address ranges, entities, services, DNS names, cloud groups.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;
use crate::selector::LabelSelector;

/// An address range, given outright or through `CiliumCIDRGroup`s, minus exceptions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::one_of(&["cidr", "cidrGroupRef", "cidrGroupSelector"]))]
pub struct CidrRule {
    /// The range itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "cidr"))]
    pub cidr: Option<String>,
    /// The name of a `CiliumCIDRGroup` whose ranges are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::DNS_SUBDOMAIN))]
    pub cidr_group_ref: Option<String>,
    /// Selects the `CiliumCIDRGroup`s whose ranges are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr_group_selector: Option<LabelSelector>,
    /// Ranges inside that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::cidrs")]
    pub except: Vec<String>,
}

/// Peers with a name of their own.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Entity {
    /// Everybody.
    All,
    /// Everything outside the cluster.
    World,
    /// Everything inside the cluster.
    Cluster,
    /// The subject's own node.
    Host,
    /// Endpoints whose labels are not known yet.
    Init,
    /// The ingress proxy.
    Ingress,
    /// Endpoints that are not managed.
    Unmanaged,
    /// The other nodes.
    RemoteNode,
    /// The health endpoints.
    Health,
    /// Nobody.
    None,
    /// Where the API server runs.
    KubeApiserver,
    /// Outside, by IPv4. Known to agents, not admitted by the schema.
    #[serde(rename = "world-ipv4")]
    #[schemars(skip)]
    WorldIpv4,
    /// Outside, by IPv6. Known to agents, not admitted by the schema.
    #[serde(rename = "world-ipv6")]
    #[schemars(skip)]
    WorldIpv6,
}

/// A group of machines that a cloud provider knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerGroup {
    /// Instances of Amazon Web Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsGroup>,
}

/// Which instances of Amazon Web Services belong to a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsGroup {
    /// Tags that the instances carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Identifiers of security groups that the instances are in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups_ids: Vec<String>,
    /// Names of security groups that the instances are in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups_names: Vec<String>,
    /// The region to look in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// A service, by name or by labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// The service of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_service: Option<K8sServiceName>,
    /// The services with such labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_service_selector: Option<K8sServiceSelector>,
}

/// A service by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct K8sServiceName {
    /// The service's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// The service's namespace; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Services by their labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct K8sServiceSelector {
    /// What the labels of the services must be.
    pub selector: LabelSelector,
    /// The services' namespace; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// DNS names, as peers or as names that may be asked for.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::one_of(&["matchName", "matchPattern"]))]
pub struct FqdnSelector {
    /// Just this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255), regex(pattern = "^([-a-zA-Z0-9_]+[.]?)+$"))]
    pub match_name: Option<String>,
    /// Names of this pattern; `*` stands for any characters within one label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255), regex(pattern = "^([-a-zA-Z0-9_*]+[.]?)+$"))]
    pub match_pattern: Option<String>,
}

/// What a peer must prove before traffic passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Authentication {
    /// How the peer proves who it is.
    pub mode: AuthenticationMode,
}

/// How a peer proves who it is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AuthenticationMode {
    /// It need not.
    Disabled,
    /// By mutual authentication.
    Required,
    /// Not at all: for tests of what happens then.
    TestAlwaysFail,
}
