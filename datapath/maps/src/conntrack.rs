//! Connections.
//!
//! A key names addresses as replies see them and ports as the first packet had them: a packet's
//! addresses and its two ports, loaded in order, are the key under which the connection is
//! found that the packet replies to.

use crate::plain;

/// Key of the IPv4 connection maps, 14 bytes.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuple4 {
    /// Where replies go: the originator.
    pub daddr: u32,
    /// Where replies come from.
    pub saddr: u32,
    /// Port the first packet was sent to, network byte order.
    pub dport: u16,
    /// Port the first packet was sent from, network byte order.
    pub sport: u16,
    /// IP protocol.
    pub nexthdr: u8,
    /// Bits of [`flags`].
    pub flags: u8,
}

/// Key of the IPv6 connection maps, 38 bytes.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuple6 {
    /// Where replies go: the originator.
    pub daddr: [u32; 4],
    /// Where replies come from.
    pub saddr: [u32; 4],
    /// Port the first packet was sent to, network byte order.
    pub dport: u16,
    /// Port the first packet was sent from, network byte order.
    pub sport: u16,
    /// IP protocol.
    pub nexthdr: u8,
    /// Bits of [`flags`].
    pub flags: u8,
}

/// Bits of a tuple's `flags`.
pub mod flags {
    /// The connection left a local endpoint.
    pub const OUT: u8 = 0;
    /// The connection came to a local endpoint.
    pub const IN: u8 = 1;
    /// An ICMP error about the connection.
    pub const RELATED: u8 = 2;
    /// The connection to a service, before translation.
    pub const SERVICE: u8 = 4;
}

/// Value of the connection maps: `LRU_HASH`, 56 bytes, 524288 entries for TCP and 262144 for the
/// rest; owner: the programs, emptied by the agent's garbage collection.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CtEntry {
    /// Zero.
    pub reserved0: u64,
    /// The chosen backend, of a service's connection.
    pub backend_id: u64,
    /// Packets, where counted.
    pub packets: u64,
    /// Bytes, where counted.
    pub bytes: u64,
    /// When the entry expires, in seconds of monotonic time.
    pub lifetime: u32,
    /// Bits of [`entry_flags`].
    pub flags: u16,
    /// Reverse-NAT id of the service, network byte order, 0 without one.
    pub rev_nat_index: u16,
    /// Zero.
    pub reserved1: u16,
    /// TCP flags seen in the forward direction.
    pub tx_flags_seen: u8,
    /// TCP flags seen in the reply direction.
    pub rx_flags_seen: u8,
    /// Identity of the originator.
    pub src_sec_id: u32,
    /// When the forward direction was last traced, in seconds.
    pub last_tx_report: u32,
    /// When the reply direction was last traced, in seconds.
    pub last_rx_report: u32,
}

/// Bits of an entry's `flags`.
pub mod entry_flags {
    /// The reply direction is closed.
    pub const RX_CLOSING: u16 = 1;
    /// The forward direction is closed.
    pub const TX_CLOSING: u16 = 1 << 1;
    /// An endpoint that reached itself through a service.
    pub const LB_LOOPBACK: u16 = 1 << 3;
    /// More than the first packet was seen.
    pub const SEEN_NON_SYN: u16 = 1 << 4;
    /// Goes through the tunnel, to and fro.
    pub const TUNNEL: u16 = 1 << 10;
}

plain!(Tuple4 = 14, Tuple6 = 38, CtEntry = 56);
