//! `ClusterNetworkPolicy` as Kubernetes' network policy API v0.3.0 has it
//! (policy.networking.k8s.io/v1beta1). Users install the definition, not Cilia.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Rules of the cluster's administrators, before or after those of namespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterNetworkPolicy {
    /// The policy's name.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: ClusterPolicySpec,
}

impl Resource for ClusterNetworkPolicy {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ClusterNetworkPolicy".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "policy.networking.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "clusternetworkpolicies".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What a `ClusterNetworkPolicy` says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPolicySpec {
    /// `Admin` or `Baseline`.
    pub tier: String,
    /// From 0 to 1000; the lowest comes first in its tier.
    pub priority: i32,
    /// Whom it concerns.
    pub subject: ClusterSubject,
    /// What may come; the first rule that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<ClusterRule>,
    /// What may leave; the first rule that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<ClusterRule>,
}

/// Whom a policy concerns: one of both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSubject {
    /// All pods of these namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// These pods of these namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<NamespacedPods>,
}

/// Pods of namespaces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespacedPods {
    /// The namespaces; empty for all.
    #[serde(default)]
    pub namespace_selector: LabelSelector,
    /// The pods in them; empty for all.
    #[serde(default)]
    pub pod_selector: LabelSelector,
}

/// A rule of one direction; `from` is for ingress, `to` for egress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterRule {
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `Accept`, `Deny` or `Pass`.
    pub action: String,
    /// The senders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<ClusterPeer>,
    /// The receivers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<ClusterPeer>,
    /// The protocols and ports; absent for every packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocols: Option<Vec<ClusterProtocol>>,
}

/// The other side: one of the members. With none, the definition is of a later version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPeer {
    /// All pods of these namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<LabelSelector>,
    /// These pods of these namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<NamespacedPods>,
    /// The addresses of nodes with such labels (egress).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<LabelSelector>,
    /// Address ranges, whoever has the addresses (egress).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// DNS names (egress).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_names: Option<Vec<String>>,
}

/// Ports of a protocol, or a port by its name: one of the members. With none, the definition is of a
/// later version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterProtocol {
    /// Of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<PolicyPorts>,
    /// Of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<PolicyPorts>,
    /// Of SCTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sctp: Option<PolicyPorts>,
    /// By the name that the receiving pod gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_named_port: Option<String>,
}

/// Ports of a protocol.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPorts {
    /// Which. Without, the definition is of a later version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<PolicyPort>,
}

/// A port, or a range of ports. With neither, the definition is of a later version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyPort {
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<i32>,
    /// The range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<PortRange>,
}

/// Ports from the first to the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first.
    pub start: i32,
    /// The last.
    pub end: i32,
}
