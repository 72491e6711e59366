//! Ports of a rule, and what is done with traffic to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::L7Rules;

/// Ports, and what applies to traffic to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRule {
    /// The ports; none means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 40))]
    pub ports: Vec<PortProtocol>,
    /// How TLS from the client is ended at the proxy.
    #[serde(rename = "terminatingTLS", skip_serializing_if = "Option::is_none")]
    pub terminating_tls: Option<TlsContext>,
    /// How TLS to the server is begun at the proxy.
    #[serde(rename = "originatingTLS", skip_serializing_if = "Option::is_none")]
    pub originating_tls: Option<TlsContext>,
    /// Server names that TLS clients may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), inner(length(max = 255), regex(pattern = r"^(\*?\*\.)?([-a-zA-Z0-9_]+\.?)+$")), extend("x-kubernetes-list-type" = "set"))]
    pub server_names: Option<Vec<String>>,
    /// The Envoy listener that traffic is sent to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<Listener>,
    /// What requests may be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<L7Rules>,
}

/// Ports that are denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortDenyRule {
    /// The ports; none means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortProtocol>,
}

/// A port or a range of ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortProtocol {
    /// The port as number or as name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = "^(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[0-9]{1,4})|([a-zA-Z0-9]-?)*[a-zA-Z](-?[a-zA-Z0-9])*$"
    ))]
    pub port: Option<String>,
    /// The last port of the range that begins at `port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub end_port: Option<i32>,
    /// The protocol; absent means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<L4Protocol>,
}

/// A protocol above IP.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum L4Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// VRRP; has no ports.
    Vrrp,
    /// IGMP; has no ports.
    Igmp,
    /// TCP, UDP and SCTP.
    Any,
}

/// Certificates and keys for one side of a proxied TLS connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsContext {
    /// The secret that holds them.
    pub secret: Secret,
    /// The item of the secret with the trusted authorities.
    #[serde(rename = "trustedCA", skip_serializing_if = "Option::is_none")]
    pub trusted_ca: Option<String>,
    /// The item of the secret with the certificate chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The item of the secret with the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
}

/// A Kubernetes secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// The secret's name.
    pub name: String,
    /// The secret's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// An Envoy listener that traffic is sent to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// The Envoy configuration that has the listener.
    pub envoy_config: EnvoyConfigRef,
    /// The listener's name in it.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Which of several listeners for the same traffic wins: the lowest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub priority: Option<u8>,
}

/// An Envoy configuration object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvoyConfigRef {
    /// Its kind; absent means the kind that belongs to the policy's scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<EnvoyConfigKind>,
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// The kinds of Envoy configuration.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum EnvoyConfigKind {
    /// One of the policy's namespace.
    CiliumEnvoyConfig,
    /// One of the cluster.
    CiliumClusterwideEnvoyConfig,
}
