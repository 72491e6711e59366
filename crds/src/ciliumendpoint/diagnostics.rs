//! What an endpoint's agent did lately. Agents leave it empty; older ones filled it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A background task of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerStatus {
    /// The task's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The task's unique name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// How the task runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ControllerConfiguration>,
    /// How the task fared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ControllerRuns>,
}

/// How a background task runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ControllerConfiguration {
    /// Whether it is tried again after an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_retry: Option<bool>,
    /// The first delay after an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_retry_base: Option<i64>,
    /// The time between runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
}

/// How a background task fared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ControllerRuns {
    /// Runs that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_count: Option<i64>,
    /// When a run last succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_success_timestamp: Option<String>,
    /// Runs that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_count: Option<i64>,
    /// Runs that failed since one last succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failure_count: Option<i64>,
    /// When a run last failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure_timestamp: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure_msg: Option<String>,
}

/// How an endpoint is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointHealth {
    /// State of its datapath programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpf: Option<String>,
    /// State of its policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Whether it is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// The worst of it all.
    #[serde(rename = "overallHealth", skip_serializing_if = "Option::is_none")]
    pub overall_health: Option<String>,
}

/// A change of an endpoint's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointLogEntry {
    /// Whether it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The state that it led to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}
