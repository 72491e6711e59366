//! What is known of the packet in hand, and room for the keys that are looked up on its way.

use cilia_maps::Address;
use cilia_maps::conntrack::CtEntry;
use cilia_maps::endpoint::EndpointKey;
use cilia_maps::fragment::{Frag4Key, Frag6Key, FragPorts};
use cilia_maps::ipcache::IpcacheKey;
use cilia_maps::metrics::{MetricsKey, MetricsValue};
use cilia_maps::policy::{PolicyKey, PolicyStats, PolicyStatsKey};
use cilia_maps::service::{Affinity, Lb4Key, Lb6Key};
use cilia_maps::{FAMILY_V6, Prefix};

use crate::reject::{Error4, Error6, Pseudo6};

/// No fragment.
pub const WHOLE: u8 = 0;
/// The fragment that has the ports.
pub const FIRST: u8 = 1;
/// A fragment that has none.
pub const LATER: u8 = 2;

/// Came out of the tunnel.
pub const FROM_TUNNEL: u8 = 1;
/// Goes into the tunnel, though to a node's own address, if it opens a connection.
pub const INTO_TUNNEL: u8 = 2;

/// As [`cilia_maps::conntrack::Tuple4`], aligned.
#[repr(C)]
pub struct Key4 {
    pub daddr: u32,
    pub saddr: u32,
    pub dport: u16,
    pub sport: u16,
    pub nexthdr: u8,
    pub flags: u8,
}

/// As [`cilia_maps::conntrack::Tuple6`], aligned.
#[repr(C)]
pub struct Key6 {
    pub daddr: Address,
    pub saddr: Address,
    pub dport: u16,
    pub sport: u16,
    pub nexthdr: u8,
    pub flags: u8,
}

/// As [`cilia_maps::service::Lb4AffinityKey`], aligned.
#[repr(C)]
pub struct Client4 {
    pub client: [u32; 2],
    pub rev_nat_id: u16,
    pub flags: u16,
    pub pad: u32,
}

/// As [`cilia_maps::service::Lb6AffinityKey`], aligned.
#[repr(C)]
pub struct Client6 {
    pub client: Address,
    pub rev_nat_id: u16,
    pub flags: u16,
    pub pad: u32,
}

/// The flow that conntrack looks up: the packet's own, or for an ICMP error the flow of the packet
/// that the error is about, turned round, as if the error came from that packet's receiver.
#[repr(C)]
pub struct Flow {
    pub saddr: Address,
    pub daddr: Address,
    pub sport: u16,
    pub dport: u16,
    pub proto: u8,
    pub pad: [u8; 3],
}

/// What conntrack said last.
#[repr(C)]
pub struct CtState {
    /// Reverse-NAT id, network byte order.
    pub rev_nat_index: u16,
    pub flags: u16,
    /// Found by the reply's key, rather than the first packet's.
    pub reply: u32,
    /// Something new was seen, or none was told for a while.
    pub report: u32,
    pub now: u32,
}

/// What policy said last.
#[repr(C)]
pub struct PolicyState {
    pub cookie: u32,
    pub dport: u16,
    pub proto: u8,
    pub matched: u8,
    /// Identity of the entry that decided, and its prefix.
    pub label: u32,
    pub bits: u32,
}

/// One CPU's packet.
#[repr(C)]
pub struct Scratch {
    /// The packet's addresses, as they are in it now.
    pub saddr: Address,
    pub daddr: Address,
    pub flow: Flow,
    /// Offset of the L4 head.
    pub l4: u32,
    /// Offset of the IP head inside an ICMP error, 0 without one.
    pub inner_l3: u32,
    /// Offset of the L4 head inside an ICMP error.
    pub inner_l4: u32,
    /// The packet's protocol, after extension heads.
    pub proto: u8,
    pub family: u8,
    pub fragment: u8,
    /// What follows an IPv6 packet's fragment head.
    pub fragment_next: u8,
    pub tcp_flags: u8,
    pub icmp_type: u8,
    pub icmp_code: u8,
    pub hop_limit: u8,
    /// An endpoint talks to itself through a service.
    pub loopback: u8,
    /// [`FROM_TUNNEL`] or [`INTO_TUNNEL`].
    pub tunnel: u8,
    /// The direction that a drop counts in ([`cilia_maps::metrics`]), 0 for that of the program.
    pub direction: u8,
    /// Reverse-NAT id of the service that was translated, network byte order.
    pub rev_nat_index: u16,
    /// The endpoint in whose name things happen now.
    pub endpoint: u16,
    /// The receiver's endpoint id, 0 if it is not local.
    pub dst_id: u32,
    pub src_label: u32,
    pub dst_label: u32,
    /// Source before translation, for traces.
    pub orig_source: Address,
    pub ct: CtState,
    pub policy: PolicyState,
    /// Address and port that the packet gets.
    pub nat_addr: Address,
    pub nat_port: u16,
    pub backend_state: u8,

    pub key4: Key4,
    pub key6: Key6,
    pub ct_entry: CtEntry,
    pub endpoint_key: EndpointKey,
    pub ipcache_key: Prefix<IpcacheKey>,
    pub policy_key: Prefix<PolicyKey>,
    pub block4_key: Prefix<u32>,
    pub block6_key: Prefix<Address>,
    pub stats_key: PolicyStatsKey,
    pub stats_value: PolicyStats,
    pub lb4_key: Lb4Key,
    pub lb6_key: Lb6Key,
    pub client4: Client4,
    pub client6: Client6,
    pub affinity: Affinity,
    pub frag4_key: Frag4Key,
    pub frag6_key: Frag6Key,
    pub frag_ports: FragPorts,
    pub metrics_key: MetricsKey,
    pub metrics_value: MetricsValue,
    pub error4: Error4,
    pub error6: Error6,
    pub pseudo6: Pseudo6,
}

impl Scratch {
    #[inline(always)]
    pub fn v6(&self) -> bool {
        self.family == FAMILY_V6
    }

    /// Whether the packet is an ICMP error about a flow that could be read.
    #[inline(always)]
    pub fn about_another(&self) -> bool {
        self.inner_l3 != 0
    }

    /// Forgets the packet before.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.l4 = 0;
        self.inner_l3 = 0;
        self.inner_l4 = 0;
        self.proto = 0;
        self.family = 0;
        self.fragment = WHOLE;
        self.tcp_flags = 0;
        self.icmp_type = 0;
        self.icmp_code = 0;
        self.loopback = 0;
        self.tunnel = 0;
        self.direction = 0;
        self.rev_nat_index = 0;
        self.endpoint = 0;
        self.dst_id = 0;
        self.src_label = 0;
        self.dst_label = 0;
        self.orig_source = [0; 4];
        self.ct.rev_nat_index = 0;
        self.ct.flags = 0;
        self.ct.reply = 0;
        self.ct.report = 0;
    }
}
