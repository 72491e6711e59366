//! What an endpoint may exchange with whom.

use crate::plain;

/// Key of an endpoint's policy map after its prefix length (12 bytes with it).
///
/// Prefix lengths: 40 identity and direction, 48 with protocol, 49 to 63 with a port prefix,
/// 64 with the whole port.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyKey {
    /// The peer's identity; 0 is anybody.
    pub sec_label: u32,
    /// Bit 0: egress.
    pub egress: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port in network byte order; the type for ICMP.
    pub dport: u16,
}

impl PolicyKey {
    /// Bits of identity and direction, which always count.
    pub const STATIC_BITS: u32 = 40;
    /// Bits with the protocol.
    pub const PROTOCOL_BITS: u32 = 48;
    /// Bits with the whole port.
    pub const FULL_BITS: u32 = 64;
}

/// Where the number of a view starts in `sec_label` of keys of blocks; five bits.
pub const VIEW_SHIFT: u32 = 26;

/// Bit of `sec_label` in keys that count only after those of blocks.
pub const WEAK: u32 = 1 << 31;

/// Value of `cilium_policy_v2_NNNNN`: LPM trie, 12 bytes, 16384 entries by default; one map per
/// endpoint, reached through `cilium_policy_maps` (`HASH_OF_MAPS`, key u32 endpoint id, 65535
/// entries); owner: the agent's `policy`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyEntry {
    /// Proxy port in network byte order, 0 without proxy.
    pub proxy_port: u16,
    /// Bit 0 deny, bits 3 to 7 the length of protocol and port prefix that the key has.
    pub deny_and_prefix: u8,
    /// Bits 0 to 6 authentication type, bit 7 explicit.
    pub auth: u8,
    /// Priority among proxy ports.
    pub proxy_port_priority: u8,
    /// The entry decides nothing: the block of the peer's address does, as it is seen through this view
    /// less one ([`VIEW_SHIFT`]). 0 for entries that decide, as all of Cilium's do.
    pub view: u8,
    /// Zero.
    pub pad2: u16,
    /// The rule's cookie, for events.
    pub cookie: u32,
}

impl PolicyEntry {
    /// Bit of `deny_and_prefix`.
    pub const DENY: u8 = 1;
    /// Where the prefix length starts in `deny_and_prefix`.
    pub const PREFIX_SHIFT: u8 = 3;

    /// Whether the entry denies.
    #[inline]
    pub const fn denies(&self) -> bool {
        self.deny_and_prefix & Self::DENY != 0
    }

    /// Bits of protocol and port that the entry's key has: 0, 8, or 8 + n.
    #[inline]
    pub const fn lpm_prefix_length(&self) -> u8 {
        self.deny_and_prefix >> Self::PREFIX_SHIFT
    }
}

/// Key of `cilium_policystats`, 12 bytes: the entry of an endpoint's policy map that decided.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyStatsKey {
    /// The endpoint's id.
    pub endpoint_id: u16,
    /// Zero.
    pub pad: u8,
    /// [`PolicyEntry::lpm_prefix_length`] of the entry.
    pub prefix_len: u8,
    /// As the entry's key has it, and so with the rest.
    pub sec_label: u32,
    /// Bit 0: egress.
    pub egress: u8,
    /// IP protocol, 0 if the entry is for all.
    pub protocol: u8,
    /// Destination port in network byte order, bits beyond the prefix zero.
    pub dport: u16,
}

/// Value of `cilium_policystats`: `LRU_PERCPU_HASH`, 16 bytes, 65536 entries; owner: the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyStats {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Bits of `cilium_policy_options`, an endpoint's own settings: it has none where it isn't in the map.
pub mod options {
    /// What policy says of this endpoint's packets is recorded, not enforced.
    pub const AUDIT: u32 = 1;
}

plain! {
    PolicyKey = 8,
    PolicyEntry = 12,
    PolicyStatsKey = 12,
    PolicyStats = 16,
}

/// What of a packet a policy entry matched, as verdict events say it.
pub mod matched {
    /// Nothing.
    pub const NONE: u8 = 0;
    /// Identity.
    pub const L3_ONLY: u8 = 1;
    /// Identity, protocol and port.
    pub const L3_L4: u8 = 2;
    /// Protocol and port, of anybody.
    pub const L4_ONLY: u8 = 3;
    /// Everything is allowed.
    pub const ALL: u8 = 4;
    /// Identity and protocol.
    pub const L3_PROTO: u8 = 5;
    /// Protocol, of anybody.
    pub const PROTO_ONLY: u8 = 6;
}
