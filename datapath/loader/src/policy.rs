//! Policy tables: one per endpoint, whom it may exchange what with.

use cilia_maps::policy as kernel;
use cilia_maps::{Plain, Prefix, names};

use crate::table::Layout;

/// One endpoint's allowed and denied peers. Empty denies everything.
#[derive(Debug)]
pub enum Policy {}

/// Which packets an entry is about.
///
/// Protocol 0 is any protocol, port 0 with prefix 0 any port. For ICMP the port is the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PolicyKey {
    /// The peer; 0 is anybody.
    pub identity: u32,
    /// From the endpoint, rather than to it.
    pub egress: bool,
    /// IP protocol.
    pub proto: u8,
    /// First port of the range.
    pub port: u16,
    /// Leading bits of the port that count. A port other than 0 with prefix 0 means all 16.
    pub port_prefix: u8,
}

impl PolicyKey {
    /// Everything to or from one peer, or anybody for identity 0.
    pub fn all(identity: u32, egress: bool) -> Self {
        Self { identity, egress, ..Self::default() }
    }

    /// One port of one protocol.
    pub fn port(identity: u32, egress: bool, proto: u8, port: u16) -> Self {
        Self { identity, egress, proto, port, port_prefix: 16 }
    }

    fn port_bits(&self) -> u8 {
        match (self.proto, self.port, self.port_prefix) {
            (0, ..) | (_, 0, 0) => 0,
            (_, _, 0) => 16,
            (_, _, bits) => bits.min(16),
        }
    }
}

/// What becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PolicyEntry {
    /// Drop them.
    pub deny: bool,
    /// Decide nothing: the block of the peer's address does, as it is seen through this view less one
    /// ([`cilia_maps::policy::VIEW_SHIFT`]). 0 for entries that decide.
    pub view: u8,
    /// Says in verdict events which rule it was.
    pub cookie: u32,
}

impl Layout for Policy {
    type Key = PolicyKey;
    type Value = PolicyEntry;

    const MAPS: &'static [&'static str] = &[names::POLICY_PREFIX];

    fn places(key: &PolicyKey) -> Vec<(usize, Vec<u8>)> {
        let port_bits = key.port_bits();
        let mask = u16::MAX.checked_shl(16 - u32::from(port_bits)).unwrap_or(0);
        let prefix_len = if key.proto == 0 {
            kernel::PolicyKey::STATIC_BITS
        } else {
            kernel::PolicyKey::PROTOCOL_BITS + u32::from(port_bits)
        };
        let data = kernel::PolicyKey {
            sec_label: key.identity,
            egress: u8::from(key.egress),
            protocol: key.proto,
            dport: (key.port & mask).to_be(),
        };
        vec![(0, Prefix { prefix_len, data }.bytes().to_vec())]
    }

    fn encode(key: &PolicyKey, value: &PolicyEntry) -> (usize, Vec<u8>, Vec<u8>) {
        let length = if key.proto == 0 { 0 } else { 8 + key.port_bits() };
        let entry = kernel::PolicyEntry {
            deny_and_prefix: (length << kernel::PolicyEntry::PREFIX_SHIFT)
                | if value.deny { kernel::PolicyEntry::DENY } else { 0 },
            view: value.view,
            cookie: value.cookie,
            ..Default::default()
        };
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, entry.bytes().to_vec())
    }

    fn decode(_: usize, key: &[u8], value: &[u8]) -> Option<(PolicyKey, PolicyEntry)> {
        let key = Prefix::<kernel::PolicyKey>::from_bytes(key)?;
        let entry = kernel::PolicyEntry::from_bytes(value)?;
        let port_bits = key.prefix_len.saturating_sub(kernel::PolicyKey::PROTOCOL_BITS);
        let policy_key = PolicyKey {
            identity: key.data.sec_label,
            egress: key.data.egress & 1 != 0,
            proto: key.data.protocol,
            port: u16::from_be(key.data.dport),
            port_prefix: u8::try_from(port_bits).ok()?,
        };
        Some((
            policy_key,
            PolicyEntry { deny: entry.denies(), view: entry.view, cookie: entry.cookie },
        ))
    }
}

/// What one entry of an endpoint's policy map has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyStats {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The endpoint and key of a counter, and its sum over all CPUs.
pub(crate) fn decode_stats(key: &[u8], per_cpu: &[u8]) -> Option<(u16, PolicyKey, PolicyStats)> {
    let key = kernel::PolicyStatsKey::from_bytes(key)?;
    let policy_key = PolicyKey {
        identity: key.sec_label,
        egress: key.egress & 1 != 0,
        proto: key.protocol,
        port: u16::from_be(key.dport),
        port_prefix: key.prefix_len.saturating_sub(8),
    };
    let values = per_cpu.chunks_exact(size_of::<kernel::PolicyStats>());
    let sum = values.filter_map(kernel::PolicyStats::from_bytes).fold(
        PolicyStats::default(),
        |sum, one| PolicyStats { packets: sum.packets + one.packets, bytes: sum.bytes + one.bytes },
    );
    Some((key.endpoint_id, policy_key, sum))
}
