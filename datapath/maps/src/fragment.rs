//! Ports of datagrams whose later fragments have none.

use crate::plain;

/// Key of `cilium_ipv4_frag_datagrams`, 12 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frag4Key {
    /// Destination.
    pub daddr: u32,
    /// Source.
    pub saddr: u32,
    /// Identification, network byte order.
    pub id: u16,
    /// IP protocol.
    pub proto: u8,
    /// Zero.
    pub pad: u8,
}

/// Key of `cilium_ipv6_frag_datagrams`, 40 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frag6Key {
    /// Identification, network byte order.
    pub id: u32,
    /// IP protocol.
    pub proto: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// Source.
    pub saddr: [u32; 4],
    /// Destination.
    pub daddr: [u32; 4],
}

/// Value of both: `LRU_HASH`, 4 bytes, 8192 entries; owner: the programs. In the entry of an IPv6
/// extension head, which stands before the protocol, `sport` is the protocol's number.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FragPorts {
    /// Source port, network byte order; an echo request's identifier.
    pub sport: u16,
    /// Destination port, network byte order; an echo reply's identifier.
    pub dport: u16,
}

plain!(Frag4Key = 12, Frag6Key = 40, FragPorts = 4);
