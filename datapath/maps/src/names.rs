//! The names under which maps are pinned, which are also their names in the object.

/// Local address -> endpoint; owner: the agent's `endpoint`.
pub const LXC: &str = "cilium_lxc";
/// Prefix -> identity and tunnel; owner: the agent's `ipcache`.
pub const IPCACHE: &str = "cilium_ipcache_v2";
/// Endpoint id -> its policy map; owner: the loader.
pub const POLICY_MAPS: &str = "cilium_policy_maps";
/// Prefix of one endpoint's policy map; five digits of the endpoint's id follow.
pub const POLICY_PREFIX: &str = "cilium_policy_v2_";
/// TCP connections over IPv4.
pub const CT_TCP4: &str = "cilium_ct4_global";
/// TCP connections over IPv6.
pub const CT_TCP6: &str = "cilium_ct6_global";
/// Everything but TCP over IPv4.
pub const CT_ANY4: &str = "cilium_ct_any4_global";
/// Everything but TCP over IPv6.
pub const CT_ANY6: &str = "cilium_ct_any6_global";
/// IPv4 service frontends and their backend slots; owner: the agent's `service`.
pub const LB4_SERVICES: &str = "cilium_lb4_services_v2";
/// IPv6 service frontends and their backend slots.
pub const LB6_SERVICES: &str = "cilium_lb6_services_v2";
/// IPv4 backends by id.
pub const LB4_BACKENDS: &str = "cilium_lb4_backends_v3";
/// IPv6 backends by id.
pub const LB6_BACKENDS: &str = "cilium_lb6_backends_v3";
/// IPv4 frontends by reverse-NAT id.
pub const LB4_REVERSE_NAT: &str = "cilium_lb4_reverse_nat";
/// IPv6 frontends by reverse-NAT id.
pub const LB6_REVERSE_NAT: &str = "cilium_lb6_reverse_nat";
/// Ports of IPv4 datagrams that arrive in fragments.
pub const FRAG4: &str = "cilium_ipv4_frag_datagrams";
/// Ports of IPv6 datagrams that arrive in fragments.
pub const FRAG6: &str = "cilium_ipv6_frag_datagrams";
/// Counters by reason and direction.
pub const METRICS: &str = "cilium_metrics";
/// The ring buffer of events.
pub const EVENTS: &str = "cilium_events";
/// Events that found the ring buffer full, per CPU.
pub const EVENTS_LOST: &str = "cilium_events_lost";
/// What the programs know of their node.
pub const NODE_CONFIG: &str = "cilium_node_config";
/// One packet's working memory per CPU; not pinned.
pub const SCRATCH: &str = "cilium_scratch";
