//! One rule: whom it is about, and what it lets in and out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EgressDenyRule, EgressRule, IngressDenyRule, IngressRule};
use crate::schema;
use crate::selector::LabelSelector;

/// A policy rule: its subjects, and the traffic that it allows and denies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::any_of(&["ingress", "ingressDeny", "egress", "egressDeny"]), transform = schema::one_of(&["endpointSelector", "nodeSelector"]))]
pub struct PolicyRule {
    /// The endpoints that the rule is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_selector: Option<LabelSelector>,
    /// The nodes that the rule is about; in clusterwide policies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// What subjects may receive. Present, it makes ingress default deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<IngressRule>>,
    /// What subjects may not receive, whatever else allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_deny: Option<Vec<IngressDenyRule>>,
    /// What subjects may send. Present, it makes egress default deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<EgressRule>>,
    /// What subjects may not send, whatever else allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_deny: Option<Vec<EgressDenyRule>>,
    /// Whether the rule makes each direction default deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_default_deny: Option<DefaultDeny>,
    /// Labels of the rule itself, to find it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<RuleLabel>,
    /// Free text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What verdict events of this rule carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PolicyLog>,
}

/// Which directions a rule makes default deny. Unset: those that it has sections for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DefaultDeny {
    /// Whether what no rule allows in is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<bool>,
    /// Whether what no rule allows out is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<bool>,
}

/// A label of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleLabel {
    /// The label's key.
    pub key: String,
    /// The label's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Who gave the label, such as `k8s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What verdict events of a rule carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyLog {
    /// Printable text that is returned in the verdict events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^\PC*$"))]
    pub value: Option<String>,
}
