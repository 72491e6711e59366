//! The settings that change what a policy means.

use std::sync::Arc;

/// When an endpoint's traffic is restricted (`enable-policy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// When a rule selects the endpoint.
    #[default]
    Default,
    /// From the start.
    Always,
    /// Never.
    Never,
}

impl Mode {
    /// Its name as a value of `enable-policy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Reads the value of `enable-policy`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "default" => Self::Default,
            "always" => Self::Always,
            "never" => Self::Never,
            _ => return None,
        })
    }
}

/// What the cluster's configuration says about policy.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag of the agent")]
pub struct Config {
    /// `enable-policy`.
    pub mode: Mode,
    /// Whether a node may always reach its own pods (`allow-localhost`).
    pub allow_localhost: bool,
    /// Both IPv4 and IPv6 are on: the world then has an identity for each.
    pub dual_stack: bool,
    /// There is no IPv4.
    pub ipv6_only: bool,
    /// `cluster-name`.
    pub cluster: Arc<str>,
    /// Selectors that name no cluster mean this one (`policy-default-local-cluster`).
    pub local_cluster: bool,
    /// `enable-non-default-deny-policies`.
    pub non_default_deny: bool,
    /// `enable-extended-ip-protocols`.
    pub extended_protocols: bool,
    /// `enable-node-selector-labels`.
    pub node_selectors: bool,
    /// `enable-l7-proxy`.
    pub l7_proxy: bool,
    /// `enable-host-firewall`: rules for nodes count.
    pub host_firewall: bool,
    /// `policy-cidr-match-mode` has `nodes`: address ranges mean addresses of nodes, too.
    pub cidrs_match_nodes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Default,
            allow_localhost: true,
            dual_stack: false,
            ipv6_only: false,
            cluster: "default".into(),
            local_cluster: true,
            non_default_deny: true,
            extended_protocols: false,
            node_selectors: false,
            l7_proxy: true,
            host_firewall: false,
            cidrs_match_nodes: false,
        }
    }
}
