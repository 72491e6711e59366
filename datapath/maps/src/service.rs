//! Services: frontends, their backend slots, backends, and the way back.

use crate::plain;

/// Key of `cilium_lb4_services_v2`, 12 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb4Key {
    /// Frontend address.
    pub address: u32,
    /// Frontend port, network byte order.
    pub dport: u16,
    /// 0 the frontend, 1 to n its backend slots.
    pub backend_slot: u16,
    /// IP protocol.
    pub proto: u8,
    /// 0 external, 1 internal.
    pub scope: u8,
    /// Zero.
    pub pad: u16,
}

/// Key of `cilium_lb6_services_v2`, 24 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb6Key {
    /// Frontend address.
    pub address: [u32; 4],
    /// Frontend port, network byte order.
    pub dport: u16,
    /// 0 the frontend, 1 to n its backend slots.
    pub backend_slot: u16,
    /// IP protocol.
    pub proto: u8,
    /// 0 external, 1 internal.
    pub scope: u8,
    /// Zero.
    pub pad: u16,
}

/// Value of both service maps: HASH, 12 bytes, 65536 entries; owner: the agent's `service`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LbService {
    /// Slots: backend id. Frontend: seconds of affinity, algorithm in the top byte.
    pub backend_id: u32,
    /// Number of backend slots of a frontend.
    pub count: u16,
    /// Reverse-NAT id, network byte order.
    pub rev_nat_index: u16,
    /// Frontend kinds.
    pub flags: u8,
    /// More of them.
    pub flags2: u8,
    /// Quarantined slots.
    pub qcount: u16,
}

/// Value of `cilium_lb4_backends_v3`: HASH, key u32 id, 12 bytes, 65536 entries; owner: the
/// agent's `service`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb4Backend {
    /// Address.
    pub address: u32,
    /// Port, network byte order.
    pub port: u16,
    /// IP protocol.
    pub proto: u8,
    /// One of [`state`].
    pub state: u8,
    /// The backend's cluster.
    pub cluster_id: u16,
    /// Zone number.
    pub zone: u8,
    /// Zero.
    pub pad: u8,
}

/// Value of `cilium_lb6_backends_v3`: HASH, key u32 id, 24 bytes, 65536 entries.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb6Backend {
    /// Address.
    pub address: [u32; 4],
    /// Port, network byte order.
    pub port: u16,
    /// IP protocol.
    pub proto: u8,
    /// One of [`state`].
    pub state: u8,
    /// The backend's cluster.
    pub cluster_id: u16,
    /// Zone number.
    pub zone: u8,
    /// Zero.
    pub pad: u8,
}

/// Bit of a frontend's `flags`: a client keeps its backend for `backend_id` seconds.
pub const FLAG_AFFINITY: u8 = 16;
/// The bits of a frontend's `backend_id` that are its affinity's seconds.
pub const AFFINITY_SECONDS: u32 = 0x00ff_ffff;

/// Key of `cilium_lb4_affinity`, 16 bytes.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb4AffinityKey {
    /// The client: its address in the first half, the rest zero.
    pub client: u64,
    /// The service, network byte order.
    pub rev_nat_id: u16,
    /// Bit 0: the client is a network namespace's cookie.
    pub flags: u8,
    /// Zero.
    pub pad1: u8,
    /// Zero.
    pub pad2: u32,
}

/// Key of `cilium_lb6_affinity`, 24 bytes.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb6AffinityKey {
    /// The client.
    pub client: [u32; 4],
    /// The service, network byte order.
    pub rev_nat_id: u16,
    /// Bit 0: the client is a network namespace's cookie.
    pub flags: u8,
    /// Zero.
    pub pad1: u8,
    /// Zero.
    pub pad2: u32,
}

/// Value of both: `LRU_HASH`, 16 bytes, 65536 entries; owner: the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Affinity {
    /// When the client last opened a connection, in seconds of monotonic time.
    pub last_used: u64,
    /// Its backend.
    pub backend_id: u32,
    /// The slot that the backend had then: where to look first.
    pub slot: u32,
}

/// Backend states.
pub mod state {
    /// Takes new connections.
    pub const ACTIVE: u8 = 0;
    /// Keeps its connections, takes no new ones unless nobody is active.
    pub const TERMINATING: u8 = 1;
    /// Failed its health check.
    pub const QUARANTINED: u8 = 2;
    /// Taken out by the operator.
    pub const MAINTENANCE: u8 = 3;
}

/// Value of `cilium_lb4_reverse_nat`: HASH, key u16 (network byte order), 6 bytes, 65536 entries.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb4ReverseNat {
    /// Frontend address.
    pub address: u32,
    /// Frontend port, network byte order.
    pub port: u16,
}

/// Value of `cilium_lb6_reverse_nat`: HASH, key u16 (network byte order), 18 bytes, 65536 entries.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lb6ReverseNat {
    /// Frontend address.
    pub address: [u32; 4],
    /// Frontend port, network byte order.
    pub port: u16,
}

plain! {
    Lb4Key = 12, Lb6Key = 24, LbService = 12, Lb4Backend = 12, Lb6Backend = 24,
    Lb4ReverseNat = 6, Lb6ReverseNat = 18, Lb4AffinityKey = 16, Lb6AffinityKey = 24,
    Affinity = 16,
}

/// Source address of an endpoint that reaches itself through a service: 169.254.42.1.
pub const LOOPBACK_V4: u32 = u32::from_ne_bytes([169, 254, 42, 1]);
/// The IPv6 form, `64:ff9b:1::169.254.42.1`: not link-local as Cilium's `fe80::1`, so that the
/// endpoint answers through its default route without neighbour discovery.
pub const LOOPBACK_V6: [u32; 4] = [
    u32::from_ne_bytes([0x00, 0x64, 0xff, 0x9b]),
    u32::from_ne_bytes([0x00, 0x01, 0, 0]),
    0,
    LOOPBACK_V4,
];
