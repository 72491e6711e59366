//! Asks an endpoint's policy about a packet: Cilium's two lookups, for the peer and for anybody. Where
//! they find nothing, or the peer is sent on, the block of the peer's address is asked for (rules that
//! mean addresses, whoever has them), and then the two again for what counts after such rules.

use cilia_maps::config::NodeConfig;
use cilia_maps::policy::{PolicyEntry, PolicyKey, VIEW_SHIFT, WEAK, matched, options};
use cilia_maps::reason;

use crate::icmp::{FRAG_NEEDED, UNREACHABLE};
use crate::parse::{ICMP, ICMPV6};
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::Drop;
use crate::{conntrack, events, maps};

/// Policy for packets to the endpoint.
pub const INGRESS: u8 = 0;
/// Policy for packets from it.
pub const EGRESS: u8 = 1;
/// What [`decide`] says of a packet that may pass.
const ALLOWED: u32 = 0;
/// What [`asked`] says if there is no entry.
const NOTHING: u32 = u32::MAX;
/// What [`asked`] says if the block decides, beside the entry's view; no reason has this bit.
const SENT_ON: u32 = 1 << 16;
/// The identity of entries for every peer.
const ANYBODY: u32 = 0;
/// Prefix of an entry for all ports of a protocol.
const PROTOCOL_BITS: u32 = 8;

/// Lets the packet pass, or drops it, by the policy of `s.endpoint` for its peer; tells of every
/// denial and of every new connection.
#[inline(always)]
pub fn enforce(
    skb: Skb,
    s: &mut Scratch,
    config: &NodeConfig,
    direction: u8,
    peer: u32,
    status: u32,
) -> Result<(), Drop> {
    let frag_needed = s.proto == ICMP
        && s.icmp_type == UNREACHABLE
        && s.icmp_code == FRAG_NEEDED
        && config.flags & NodeConfig::ALLOW_FRAG_NEEDED != 0;
    if frag_needed {
        return Ok(());
    }
    let denied = decide(s, u32::from(direction), peer);
    if config.flags & NodeConfig::ACCOUNTING != 0 && s.policy.matched != matched::NONE {
        account(s, u32::from(direction), skb.len());
    }
    let audited = denied != ALLOWED && is_audited(s, config);
    if denied != ALLOWED || status == conntrack::NEW {
        let how = u32::from(direction) | (u32::from(audited) << 1);
        events::judged(skb, s, how, peer, denied);
    }
    if denied == ALLOWED || audited { Ok(()) } else { Err(Drop(denied as u8)) }
}

/// Whether what is denied the endpoint is only recorded: by its own setting, else by that of all.
#[inline(always)]
fn is_audited(s: &Scratch, config: &NodeConfig) -> bool {
    let id = u32::from(s.endpoint);
    let own = maps::get(&maps::POLICY_OPTIONS, &raw const id);
    match own {
        Some(bits) => bits & options::AUDIT != 0,
        None => config.flags & NodeConfig::AUDIT != 0,
    }
}

/// Counts the packet for the entry that decided.
#[inline(never)]
fn account(s: &mut Scratch, direction: u32, len: u32) -> u32 {
    let bits = s.policy.bits;
    s.stats_key.endpoint_id = s.endpoint;
    s.stats_key.pad = 0;
    s.stats_key.prefix_len = bits as u8;
    s.stats_key.sec_label = s.policy.label;
    s.stats_key.egress = direction as u8;
    s.stats_key.protocol = if bits == 0 { 0 } else { s.policy.proto };
    s.stats_key.dport = if bits > PROTOCOL_BITS {
        let beyond = (PROTOCOL_BITS + u16::BITS).saturating_sub(bits) & (u16::BITS - 1);
        (u16::from_be(s.policy.dport) >> beyond << beyond).to_be()
    } else {
        0
    };
    if let Some(value) = maps::get_mut(&maps::POLICY_STATS, &raw const s.stats_key) {
        value.packets += 1;
        value.bytes += u64::from(len);
    } else {
        s.stats_value.packets = 1;
        s.stats_value.bytes = len.into();
        // A full table forgets the entry that was used least, never a packet.
        let _ = maps::set(&maps::POLICY_STATS, &raw const s.stats_key, &raw const s.stats_value);
    }
    0
}

/// The drop reason, or [`ALLOWED`]: by the peer's identity; else by the block of its address; else by
/// what is said of it after that.
#[inline(always)]
fn decide(s: &mut Scratch, direction: u32, peer: u32) -> u32 {
    s.policy.cookie = 0;
    s.policy.matched = matched::NONE;
    s.policy.proto = s.proto;
    s.policy.dport = match s.proto {
        ICMP | ICMPV6 => u16::from(s.icmp_type).to_be(),
        _ => s.flow.dport,
    };
    s.policy_key.prefix_len = PolicyKey::FULL_BITS;
    s.policy_key.data.egress = direction as u8;
    s.policy_key.data.protocol = s.policy.proto;
    s.policy_key.data.dport = s.policy.dport;
    let by_identity = asked(s, peer, ANYBODY);
    let view = match by_identity {
        NOTHING => 0,
        said if said & SENT_ON != 0 => (said & 0xff).wrapping_sub(1),
        said => return said,
    };
    let block = block(s, direction);
    if block != 0 {
        let seen = block | view << VIEW_SHIFT;
        let by_address = asked(s, seen, seen);
        if by_address != NOTHING {
            return by_address;
        }
    }
    match asked(s, peer | WEAK, ANYBODY | WEAK) {
        NOTHING => reason::POLICY.into(),
        said => said,
    }
}

/// The drop reason, [`ALLOWED`], [`NOTHING`], or [`SENT_ON`] with a view, by the entries of one
/// identity and of everybody.
#[inline(never)]
fn asked(s: &mut Scratch, peer: u32, anybody: u32) -> u32 {
    let id = u32::from(s.endpoint);
    let Some(map) = maps::get(&maps::POLICY, &raw const id) else {
        return reason::EP_NOT_READY.into();
    };
    // The outer map's value is the inner map itself, as far as the kernel is concerned.
    s.policy_key.data.sec_label = peer;
    let of_peer = maps::get_inner(map, (&raw const s.policy_key).cast());
    if let Some(entry) = of_peer {
        if entry.view != 0 {
            return SENT_ON | u32::from(entry.view);
        }
        if entry.denies() {
            return judge(s, entry, peer, true);
        }
    }
    s.policy_key.data.sec_label = anybody;
    let of_anybody = maps::get_inner(map, (&raw const s.policy_key).cast());
    match (of_peer, of_anybody) {
        (None, None) => NOTHING,
        (Some(entry), None) => judge(s, entry, peer, true),
        (None, Some(entry)) => judge(s, entry, anybody, false),
        (Some(own), Some(entry)) => {
            if anybody_wins(own, entry) {
                judge(s, entry, anybody, false)
            } else {
                judge(s, own, peer, true)
            }
        }
    }
}

/// The block that the peer's address is in, 0 without one: which prefixes that rules mean, whoever has
/// the address, hold it.
#[inline(always)]
fn block(s: &mut Scratch, direction: u32) -> u32 {
    let address = if direction == u32::from(EGRESS) { s.daddr } else { s.saddr };
    let found = if s.v6() {
        s.block6_key.prefix_len = 128;
        s.block6_key.data = address;
        maps::get(&maps::BLOCK6, (&raw const s.block6_key).cast())
    } else {
        s.block4_key.prefix_len = 32;
        s.block4_key.data = address[0];
        maps::get(&maps::BLOCK4, (&raw const s.block4_key).cast())
    };
    found.copied().unwrap_or(0)
}

#[inline(always)]
fn anybody_wins(peer: &PolicyEntry, anybody: &PolicyEntry) -> bool {
    anybody.denies()
        || anybody.proxy_port_priority > peer.proxy_port_priority
        || (anybody.proxy_port_priority == peer.proxy_port_priority
            && anybody.lpm_prefix_length() > peer.lpm_prefix_length())
}

#[inline(always)]
fn judge(s: &mut Scratch, entry: &PolicyEntry, label: u32, peer: bool) -> u32 {
    s.policy.cookie = entry.cookie;
    s.policy.label = label;
    s.policy.bits = entry.lpm_prefix_length().into();
    s.policy.matched = match (peer, entry.lpm_prefix_length()) {
        (true, 0) => matched::L3_ONLY,
        (true, 8) => matched::L3_PROTO,
        (true, _) => matched::L3_L4,
        (false, 0) => matched::ALL,
        (false, 8) => matched::PROTO_ONLY,
        (false, _) => matched::L4_ONLY,
    };
    if entry.denies() { reason::POLICY_DENY.into() } else { ALLOWED }
}
