//! What the programs know of their node: one entry, written by the loader, read per packet.

use crate::{Address, plain};

/// `cilium_node_config`: ARRAY, key u32 0, value 88 bytes, one entry; owner: the loader.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeConfig {
    /// Bits below.
    pub flags: u32,
    /// Interface index of `cilium_host`.
    pub host_ifindex: u32,
    /// Interface index of `cilium_net`.
    pub net_ifindex: u32,
    /// Interface index of the tunnel device.
    pub overlay_ifindex: u32,
    /// The router's IPv4 address, as [`Address`].
    pub router_v4: Address,
    /// The router's IPv6 address.
    pub router_v6: Address,
    /// The cluster's id in a mesh.
    pub cluster_id: u16,
    /// UDP port of the tunnel, network byte order.
    pub tunnel_port: u16,
    /// The endpoint id under which the node's own policy is, 0 without a host firewall.
    pub host_endpoint: u32,
    /// How long connections live.
    pub lives: Lives,
    /// Seconds after which a connection is traced again.
    pub report_interval: u32,
    /// TCP flags that are traced when they are first seen.
    pub report_flags: u32,
}

/// Seconds that a connection lives after its last packet.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lives {
    /// TCP.
    pub tcp: u32,
    /// TCP of which only the opening packet was seen.
    pub tcp_syn: u32,
    /// TCP that both sides have closed.
    pub tcp_fin: u32,
    /// Everything else.
    pub any: u32,
    /// TCP to a service, before translation.
    pub service_tcp: u32,
    /// Everything else to a service.
    pub service_any: u32,
}

plain!(Lives = 24, NodeConfig = 88);

impl NodeConfig {
    /// IPv4 is on.
    pub const IPV4: u32 = 1;
    /// IPv6 is on.
    pub const IPV6: u32 = 2;
    /// Policy is recorded, not enforced.
    pub const AUDIT: u32 = 4;
    /// Trace events are wanted.
    pub const TRACE: u32 = 8;
    /// ICMP fragmentation-needed passes before policy.
    pub const ALLOW_FRAG_NEEDED: u32 = 16;
    /// Protocols without ports are forwarded, tracked by their addresses.
    pub const EXTENDED_PROTOCOLS: u32 = 32;
    /// Packets are counted by the entry of the policy map that decided.
    pub const ACCOUNTING: u32 = 64;
    /// SCTP is a protocol with ports.
    pub const SCTP: u32 = 128;
}
