//! What requests may be made over an allowed connection.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FqdnSelector, Secret};
use crate::schema;

/// Requests of one protocol that are allowed; one of the rules must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::one_of(&["http", "kafka", "dns", "l7proto"]))]
pub struct L7Rules {
    /// HTTP requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<Vec<HttpRule>>,
    /// Kafka requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<Vec<KafkaRule>>,
    /// DNS names that may be asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Vec<FqdnSelector>>,
    /// The name of another protocol's parser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l7proto: Option<String>,
    /// Rules for that parser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l7: Option<Vec<BTreeMap<String, String>>>,
}

/// An HTTP request; all of the parts given must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    /// Regular expression that the whole path must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Regular expression that the method must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Regular expression that the host must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "idn-hostname"))]
    pub host: Option<String>,
    /// Headers that must be there, as `Name` or `Name: value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Headers that must have a value, and what to do when they have not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub header_matches: Vec<HeaderMatch>,
}

/// A header that must have a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeaderMatch {
    /// What to do when it has not; absent means to refuse the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<MismatchAction>,
    /// The header's name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The secret that holds the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The value, when no secret holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What to do with a request whose header is not as it should be.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum MismatchAction {
    /// Let it pass and say so in the log.
    Log,
    /// Add the header.
    Add,
    /// Remove the header.
    Delete,
    /// Replace the header's value.
    Replace,
}

/// A Kafka request; all of the parts given must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaRule {
    /// A set of requests by what they are for; excludes `apiKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<KafkaRole>,
    /// The request's kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// The request's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Who says to be asking.
    #[serde(rename = "clientID", skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The topic that is asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub topic: Option<String>,
}

/// What Kafka requests are for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum KafkaRole {
    /// Writing to topics.
    Produce,
    /// Reading from topics.
    Consume,
}
