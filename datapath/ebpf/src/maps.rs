//! Every map of the object, and the only ways in which the programs touch one.

use core::ptr::from_ref;

use aya_ebpf::bindings::{BPF_F_NO_COMMON_LRU, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{
    Array, HashMap, HashOfMaps, LpmTrie, LruHashMap, LruPerCpuHashMap, PerCpuArray, PerCpuHashMap,
    RingBuf,
};
use aya_ebpf::helpers::{bpf_map_lookup_elem, bpf_map_update_elem};
use aya_ebpf::macros::btf_map;
use cilia_maps::Address;
use cilia_maps::config::NodeConfig;
use cilia_maps::conntrack::{CtEntry, Tuple4, Tuple6};
use cilia_maps::endpoint::{EndpointInfo, EndpointKey};
use cilia_maps::fragment::{Frag4Key, Frag6Key, FragPorts};
use cilia_maps::ipcache::{IpcacheKey, RemoteEndpointInfo};
use cilia_maps::metrics::{MetricsKey, MetricsValue};
use cilia_maps::policy::{PolicyEntry, PolicyKey, PolicyStats, PolicyStatsKey};
use cilia_maps::service::{
    Affinity, Lb4AffinityKey, Lb4Backend, Lb4Key, Lb4ReverseNat, Lb6AffinityKey, Lb6Backend,
    Lb6Key, Lb6ReverseNat, LbService,
};

use crate::scratch::Scratch;

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;
const NO_COMMON_LRU: usize = BPF_F_NO_COMMON_LRU as usize;

// What each holds is in `cilia_maps::names`. Sizes are defaults: the loader sets what the agent's
// flags say.

#[btf_map(name = "cilium_lxc")]
pub static LXC: HashMap<EndpointKey, EndpointInfo, 65535, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_ipcache_v2")]
pub static IPCACHE: LpmTrie<IpcacheKey, RemoteEndpointInfo, 512000> = LpmTrie::new();
#[btf_map(name = "cilium_policy_maps")]
pub static POLICY: HashOfMaps<u32, LpmTrie<PolicyKey, PolicyEntry, 16384>, 65535, NO_PREALLOC> =
    HashOfMaps::new();
#[btf_map(name = "cilium_policystats")]
pub static POLICY_STATS: LruPerCpuHashMap<PolicyStatsKey, PolicyStats, 65536, NO_COMMON_LRU> =
    LruPerCpuHashMap::new();
#[btf_map(name = "cilium_policy_options")]
pub static POLICY_OPTIONS: HashMap<u32, u32, 65535, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_block_v4")]
pub static BLOCK4: LpmTrie<u32, u32, 131072> = LpmTrie::new();
#[btf_map(name = "cilium_block_v6")]
pub static BLOCK6: LpmTrie<Address, u32, 131072> = LpmTrie::new();
#[btf_map(name = "cilium_ct4_global")]
pub static CT_TCP4: LruHashMap<Tuple4, CtEntry, 524288> = LruHashMap::new();
#[btf_map(name = "cilium_ct6_global")]
pub static CT_TCP6: LruHashMap<Tuple6, CtEntry, 524288> = LruHashMap::new();
#[btf_map(name = "cilium_ct_any4_global")]
pub static CT_ANY4: LruHashMap<Tuple4, CtEntry, 262144> = LruHashMap::new();
#[btf_map(name = "cilium_ct_any6_global")]
pub static CT_ANY6: LruHashMap<Tuple6, CtEntry, 262144> = LruHashMap::new();
#[btf_map(name = "cilium_lb4_services_v2")]
pub static LB4_SERVICES: HashMap<Lb4Key, LbService, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb6_services_v2")]
pub static LB6_SERVICES: HashMap<Lb6Key, LbService, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb4_backends_v3")]
pub static LB4_BACKENDS: HashMap<u32, Lb4Backend, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb6_backends_v3")]
pub static LB6_BACKENDS: HashMap<u32, Lb6Backend, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb4_reverse_nat")]
pub static LB4_REVERSE_NAT: HashMap<u16, Lb4ReverseNat, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb6_reverse_nat")]
pub static LB6_REVERSE_NAT: HashMap<u16, Lb6ReverseNat, 65536, NO_PREALLOC> = HashMap::new();
#[btf_map(name = "cilium_lb4_affinity")]
pub static LB4_AFFINITY: LruHashMap<Lb4AffinityKey, Affinity, 65536> = LruHashMap::new();
#[btf_map(name = "cilium_lb6_affinity")]
pub static LB6_AFFINITY: LruHashMap<Lb6AffinityKey, Affinity, 65536> = LruHashMap::new();
#[btf_map(name = "cilium_ipv4_frag_datagrams")]
pub static FRAG4: LruHashMap<Frag4Key, FragPorts, 8192> = LruHashMap::new();
#[btf_map(name = "cilium_ipv6_frag_datagrams")]
pub static FRAG6: LruHashMap<Frag6Key, FragPorts, 8192> = LruHashMap::new();
#[btf_map(name = "cilium_metrics")]
pub static METRICS: PerCpuHashMap<MetricsKey, MetricsValue, 1024> = PerCpuHashMap::new();
#[btf_map(name = "cilium_events")]
pub static EVENTS: RingBuf<u8, 4194304> = RingBuf::new();
#[btf_map(name = "cilium_events_lost")]
pub static EVENTS_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();
#[btf_map(name = "cilium_node_config")]
pub static NODE_CONFIG: Array<NodeConfig, 1> = Array::new();
#[btf_map(name = "cilium_scratch")]
pub static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// A map whose keys are `K` and whose values are `V`.
pub trait Map<K, V> {}

impl<K, V, const N: usize, const F: usize> Map<K, V> for HashMap<K, V, N, F> {}
impl<K, V, const N: usize, const F: usize> Map<K, V> for LruHashMap<K, V, N, F> {}
impl<K, V, const N: usize, const F: usize> Map<K, V> for PerCpuHashMap<K, V, N, F> {}
impl<K, V, const N: usize, const F: usize> Map<K, V> for LruPerCpuHashMap<K, V, N, F> {}
impl<K, V, const N: usize, const F: usize> Map<Key<K>, V> for LpmTrie<K, V, N, F> {}
impl<V, const N: usize, const F: usize> Map<u32, V> for PerCpuArray<V, N, F> {}
impl<V, const N: usize, const F: usize> Map<u32, V> for Array<V, N, F> {}
impl<K, V, const N: usize, const F: usize> Map<K, V> for HashOfMaps<K, V, N, F> {}

/// A pointer to the value of a key, as the kernel's lookup gives it.
///
/// `key` may be a larger type that starts with a `K`: the aligned forms in [`crate::scratch`].
#[inline(always)]
fn lookup<M, K, V>(map: &'static M, key: *const K) -> *mut V
where
    M: Map<K, V>,
{
    // SAFETY: `map` is a map of this object whose keys are `K`, and `key` points to one; the
    // verifier checks both. The helper gives null or the address of a value.
    unsafe { bpf_map_lookup_elem(from_ref(map).cast_mut().cast(), key.cast()).cast() }
}

/// The value of a key, to read.
///
/// A value may change while it is read, as every map value may: fields are read one by one, and
/// each is valid whatever its bits are. What was removed stays readable until the program ends.
#[inline(always)]
pub fn get<M, K, V: 'static>(map: &'static M, key: *const K) -> Option<&'static V>
where
    M: Map<K, V>,
{
    // SAFETY: the kernel's answer is null or valid until the program ends (RCU); see above.
    unsafe { lookup(map, key).as_ref() }
}

/// The value of a key, to change: entries of connections, counters.
///
/// CPUs may change one entry at the same time; the last write of a field wins, which for times,
/// flags and counters of one connection is harmless.
#[inline(always)]
pub fn get_mut<M, K, V: 'static>(map: &'static M, key: *const K) -> Option<&'static mut V>
where
    M: Map<K, V>,
{
    // SAFETY: as in `get`; the program makes no second reference to the same entry while it has
    // this one. Another processor may have one to the same connection (all else is per processor):
    // fields are integers of which every value is valid, so a count or a flag may get lost, no more.
    unsafe { lookup(map, key).as_mut() }
}

/// Sets the value of a key; says whether it worked.
#[inline(always)]
pub fn set<M, K, V>(map: &'static M, key: *const K, value: *const V) -> bool
where
    M: Map<K, V>,
{
    // SAFETY: the helper reads a `K` and a `V` from where these point; the verifier refuses a program
    // that hands it anything else than that much of its stack, of a packet's copy or of a map.
    unsafe {
        bpf_map_update_elem(from_ref(map).cast_mut().cast(), key.cast(), value.cast(), 0) == 0
    }
}

/// The value of a key in a map that another map's lookup gave.
#[inline(always)]
pub fn get_inner<K, V: 'static>(
    map: &'static LpmTrie<K, V, 16384>,
    key: *const Key<K>,
) -> Option<&'static V> {
    get(map, key)
}

/// The node's configuration.
#[inline(always)]
pub fn config() -> Option<&'static NodeConfig> {
    get(&NODE_CONFIG, &0)
}

/// This CPU's working memory.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    get_mut(&SCRATCH, &0)
}
