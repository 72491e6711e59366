//! The names under which maps are pinned, which are also their names in the object.
//!
//! Each with its type, key -> value, default size, and owner: the one who writes its entries.

/// Local addresses. HASH, [`EndpointKey`](crate::endpoint::EndpointKey) ->
/// [`EndpointInfo`](crate::endpoint::EndpointInfo), 65535; the agent's `endpoint`.
pub const LXC: &str = "cilium_lxc";
/// Identity and tunnel of prefixes. `LPM_TRIE`, [`IpcacheKey`](crate::ipcache::IpcacheKey) ->
/// [`RemoteEndpointInfo`](crate::ipcache::RemoteEndpointInfo), 512000; the agent's `ipcache`.
pub const IPCACHE: &str = "cilium_ipcache_v2";
/// Each endpoint's policy map. `HASH_OF_MAPS`, u32 endpoint id -> map, 65535; the loader.
pub const POLICY_MAPS: &str = "cilium_policy_maps";
/// One endpoint's policy; five digits of its id follow. `LPM_TRIE`,
/// [`PolicyKey`](crate::policy::PolicyKey) -> [`PolicyEntry`](crate::policy::PolicyEntry), 16384;
/// the agent's `policy`.
pub const POLICY_PREFIX: &str = "cilium_policy_v2_";
/// Packets by the policy entry that decided. `LRU_PERCPU_HASH`,
/// [`PolicyStatsKey`](crate::policy::PolicyStatsKey) ->
/// [`PolicyStats`](crate::policy::PolicyStats), 65536; the programs.
pub const POLICY_STATS: &str = "cilium_policystats";
/// Settings of single endpoints. HASH, u32 endpoint id -> u32
/// ([`options`](crate::policy::options)), 65535; the agent's `policy`.
pub const POLICY_OPTIONS: &str = "cilium_policy_options";
/// The block identity of IPv4 addresses that ipBlocks of policies name. `LPM_TRIE`, prefix of a u32 in
/// network byte order -> u32 identity, 131072; the agent's `policy`.
pub const BLOCK4: &str = "cilium_block_v4";
/// The same of IPv6 addresses. `LPM_TRIE`, prefix of an [`Address`](crate::Address) -> u32 identity,
/// 131072; the agent's `policy`.
pub const BLOCK6: &str = "cilium_block_v6";
/// TCP connections over IPv4. `LRU_HASH`, [`Tuple4`](crate::conntrack::Tuple4) ->
/// [`CtEntry`](crate::conntrack::CtEntry), 524288; the programs.
pub const CT_TCP4: &str = "cilium_ct4_global";
/// TCP connections over IPv6. `LRU_HASH`, [`Tuple6`](crate::conntrack::Tuple6) ->
/// [`CtEntry`](crate::conntrack::CtEntry), 524288; the programs.
pub const CT_TCP6: &str = "cilium_ct6_global";
/// Everything but TCP over IPv4, as [`CT_TCP4`], 262144.
pub const CT_ANY4: &str = "cilium_ct_any4_global";
/// Everything but TCP over IPv6, as [`CT_TCP6`], 262144.
pub const CT_ANY6: &str = "cilium_ct_any6_global";
/// IPv4 frontends and slots. HASH, [`Lb4Key`](crate::service::Lb4Key) ->
/// [`LbService`](crate::service::LbService), 65536; the agent's `service`.
pub const LB4_SERVICES: &str = "cilium_lb4_services_v2";
/// IPv6 frontends and slots. HASH, [`Lb6Key`](crate::service::Lb6Key) ->
/// [`LbService`](crate::service::LbService), 65536; the agent's `service`.
pub const LB6_SERVICES: &str = "cilium_lb6_services_v2";
/// IPv4 backends. HASH, u32 id -> [`Lb4Backend`](crate::service::Lb4Backend), 65536; the agent's
/// `service`.
pub const LB4_BACKENDS: &str = "cilium_lb4_backends_v3";
/// IPv6 backends. HASH, u32 id -> [`Lb6Backend`](crate::service::Lb6Backend), 65536; the agent's
/// `service`.
pub const LB6_BACKENDS: &str = "cilium_lb6_backends_v3";
/// IPv4 frontends by reverse-NAT id. HASH, u16 in network byte order ->
/// [`Lb4ReverseNat`](crate::service::Lb4ReverseNat), 65536; the agent's `service`.
pub const LB4_REVERSE_NAT: &str = "cilium_lb4_reverse_nat";
/// IPv6 frontends by reverse-NAT id. HASH, u16 in network byte order ->
/// [`Lb6ReverseNat`](crate::service::Lb6ReverseNat), 65536; the agent's `service`.
pub const LB6_REVERSE_NAT: &str = "cilium_lb6_reverse_nat";
/// Which backend an IPv4 client keeps. `LRU_HASH`,
/// [`Lb4AffinityKey`](crate::service::Lb4AffinityKey) -> [`Affinity`](crate::service::Affinity),
/// 65536; the programs.
pub const LB4_AFFINITY: &str = "cilium_lb4_affinity";
/// Which backend an IPv6 client keeps. `LRU_HASH`,
/// [`Lb6AffinityKey`](crate::service::Lb6AffinityKey) -> [`Affinity`](crate::service::Affinity),
/// 65536; the programs.
pub const LB6_AFFINITY: &str = "cilium_lb6_affinity";
/// Ports of IPv4 datagrams in fragments. `LRU_HASH`, [`Frag4Key`](crate::fragment::Frag4Key) ->
/// [`FragPorts`](crate::fragment::FragPorts), 8192; the programs.
pub const FRAG4: &str = "cilium_ipv4_frag_datagrams";
/// Ports of IPv6 datagrams in fragments. `LRU_HASH`, [`Frag6Key`](crate::fragment::Frag6Key) ->
/// [`FragPorts`](crate::fragment::FragPorts), 8192; the programs.
pub const FRAG6: &str = "cilium_ipv6_frag_datagrams";
/// Counters. `PERCPU_HASH`, [`MetricsKey`](crate::metrics::MetricsKey) ->
/// [`MetricsValue`](crate::metrics::MetricsValue), 1024; the programs.
pub const METRICS: &str = "cilium_metrics";
/// Events ([`crate::event`]). RINGBUF, 4 MiB; the programs.
pub const EVENTS: &str = "cilium_events";
/// Events that found the ring full. `PERCPU_ARRAY`, u32 0 -> u64, 1; the programs.
pub const EVENTS_LOST: &str = "cilium_events_lost";
/// What the programs know of their node. ARRAY, u32 0 ->
/// [`NodeConfig`](crate::config::NodeConfig), 1; the loader.
pub const NODE_CONFIG: &str = "cilium_node_config";
/// One packet's working memory. `PERCPU_ARRAY`, u32 0 -> the programs' own, 1; not pinned.
pub const SCRATCH: &str = "cilium_scratch";
