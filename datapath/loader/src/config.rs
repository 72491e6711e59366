//! What the agent tells the datapath of its node.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use cilia_maps::config as kernel;
pub use cilia_maps::config::Lives;

use crate::address;

/// Where the datapath lives and what its node is like.
#[derive(Debug, Clone)]
pub struct Config {
    /// The BPF file system, such as `/sys/fs/bpf`.
    pub bpf_root: PathBuf,
    /// Forward IPv4.
    pub ipv4: bool,
    /// Forward IPv6.
    pub ipv6: bool,
    /// How many entries each map holds.
    pub sizes: MapSizes,
    /// The node.
    pub node: NodeConfig,
}

/// A node, as its programs need to know it. Values other than zero are filled in field by field
/// over `NodeConfig::default()`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct NodeConfig {
    /// Interface index of `cilium_host`.
    pub host_ifindex: u32,
    /// Interface index of `cilium_net`.
    pub net_ifindex: u32,
    /// Interface index of the tunnel device.
    pub overlay_ifindex: u32,
    /// The router's IPv4 address.
    pub router_v4: Option<Ipv4Addr>,
    /// The router's IPv6 address.
    pub router_v6: Option<Ipv6Addr>,
    /// The cluster's id in a mesh.
    pub cluster_id: u16,
    /// Record what policy says, do not enforce it.
    pub policy_audit: bool,
    /// Emit trace events for new connections and changes of their state.
    pub trace: bool,
    /// Let ICMP fragmentation-needed pass before policy.
    pub allow_icmp_frag_needed: bool,
    /// SCTP is forwarded, and its ports count (`enable-sctp`).
    pub sctp: bool,
    /// Forward protocols that are not TCP, UDP, SCTP or ICMP too, tracked by their addresses.
    pub extended_protocols: bool,
    /// Count packets by the policy entry that decided (`policy-accounting`).
    pub policy_accounting: bool,
    /// The endpoint id under which the node's own policy is (`enable-host-firewall`).
    pub host_endpoint: Option<u16>,
    /// How long connections live (`bpf-ct-timeout-*`).
    pub lives: Lives,
    /// Seconds after which a connection is traced again (`monitor-aggregation-interval`).
    pub report_interval: u32,
    /// TCP flags that are traced when first seen (`monitor-aggregation-flags`), as in TCP's head.
    pub report_flags: u8,
    /// The tunnel's UDP port, to which no endpoint may send by itself.
    pub tunnel_port: u16,
}

/// Cilium's defaults.
const LIVES: Lives =
    Lives { tcp: 8000, tcp_syn: 60, tcp_fin: 10, any: 60, service_tcp: 8000, service_any: 60 };
const FIN_SYN_RST: u8 = 7;

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            host_ifindex: 0,
            net_ifindex: 0,
            overlay_ifindex: 0,
            router_v4: None,
            router_v6: None,
            cluster_id: 0,
            policy_audit: false,
            trace: false,
            allow_icmp_frag_needed: true,
            sctp: false,
            extended_protocols: false,
            policy_accounting: true,
            host_endpoint: None,
            lives: LIVES,
            report_interval: 5,
            report_flags: FIN_SYN_RST,
            tunnel_port: 8472,
        }
    }
}

impl NodeConfig {
    pub(crate) fn encode(&self, ipv4: bool, ipv6: bool) -> kernel::NodeConfig {
        let flags = [
            (ipv4, kernel::NodeConfig::IPV4),
            (ipv6, kernel::NodeConfig::IPV6),
            (self.policy_audit, kernel::NodeConfig::AUDIT),
            (self.trace, kernel::NodeConfig::TRACE),
            (self.allow_icmp_frag_needed, kernel::NodeConfig::ALLOW_FRAG_NEEDED),
            (self.sctp, kernel::NodeConfig::SCTP),
            (self.extended_protocols, kernel::NodeConfig::EXTENDED_PROTOCOLS),
            (self.policy_accounting, kernel::NodeConfig::ACCOUNTING),
        ];
        kernel::NodeConfig {
            flags: flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum(),
            host_ifindex: self.host_ifindex,
            net_ifindex: self.net_ifindex,
            overlay_ifindex: self.overlay_ifindex,
            router_v4: self.router_v4.map_or([0; 4], |ip| address::encode(ip.into()).1),
            router_v6: self.router_v6.map_or([0; 4], |ip| address::encode(ip.into()).1),
            cluster_id: self.cluster_id,
            tunnel_port: self.tunnel_port.to_be(),
            host_endpoint: self.host_endpoint.unwrap_or(0).into(),
            lives: self.lives,
            report_interval: self.report_interval,
            report_flags: self.report_flags.into(),
        }
    }
}

/// How many entries each map holds; the defaults are Cilium's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSizes {
    /// Local addresses.
    pub endpoints: u32,
    /// Prefixes of the ipcache.
    pub ipcache: u32,
    /// Entries of each endpoint's policy map (`bpf-policy-map-max`).
    pub policy: u32,
    /// Policy entries of all endpoints that are counted (`bpf-policy-stats-map-max`).
    pub policy_stats: u32,
    /// Prefixes of ipBlocks per family.
    pub blocks: u32,
    /// TCP connections per family (`bpf-ct-global-tcp-max`).
    pub conntrack_tcp: u32,
    /// Other connections per family (`bpf-ct-global-any-max`).
    pub conntrack_any: u32,
    /// Frontends and slots, backends, reverse-NAT entries, per family (`bpf-lb-map-max`).
    pub services: u32,
    /// Datagrams in fragments per family (`bpf-fragments-map-max`).
    pub fragments: u32,
    /// Bytes of the event ring; a power of two of pages.
    pub events_bytes: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self {
            endpoints: 65_535,
            ipcache: 512_000,
            policy: 16_384,
            policy_stats: 65_536,
            blocks: 131_072,
            conntrack_tcp: 524_288,
            conntrack_any: 262_144,
            services: 65_536,
            fragments: 8_192,
            events_bytes: 4 << 20,
        }
    }
}
