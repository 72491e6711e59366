//! Asks an endpoint's policy about a packet: Cilium's two lookups, for the peer and for anybody.

use cilia_maps::config::NodeConfig;
use cilia_maps::policy::{PolicyEntry, PolicyKey, matched};
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
    let audited = denied != ALLOWED && config.flags & NodeConfig::AUDIT != 0;
    if denied != ALLOWED || status == conntrack::NEW {
        let how = u32::from(direction) | (u32::from(audited) << 1);
        events::judged(skb, s, how, peer, denied);
    }
    if denied == ALLOWED || audited { Ok(()) } else { Err(Drop(denied as u8)) }
}

/// The drop reason, or [`ALLOWED`].
#[inline(never)]
fn decide(s: &mut Scratch, direction: u32, peer: u32) -> u32 {
    s.policy.cookie = 0;
    s.policy.matched = matched::NONE;
    s.policy.proto = s.proto;
    s.policy.dport = match s.proto {
        ICMP | ICMPV6 => u16::from(s.icmp_type).to_be(),
        _ => s.flow.dport,
    };
    let id = u32::from(s.endpoint);
    let Some(map) = maps::get(&maps::POLICY, &raw const id) else {
        return reason::EP_NOT_READY.into();
    };
    // The outer map's value is the inner map itself, as far as the kernel is concerned.
    s.policy_key.prefix_len = PolicyKey::FULL_BITS;
    s.policy_key.data.egress = direction as u8;
    s.policy_key.data.protocol = s.policy.proto;
    s.policy_key.data.dport = s.policy.dport;
    s.policy_key.data.sec_label = peer;
    let of_peer = maps::get_inner(map, (&raw const s.policy_key).cast());
    if let Some(entry) = of_peer
        && entry.denies()
    {
        return judge(s, entry, true);
    }
    s.policy_key.data.sec_label = 0;
    let of_anybody = maps::get_inner(map, (&raw const s.policy_key).cast());
    match (of_peer, of_anybody) {
        (None, None) => reason::POLICY.into(),
        (Some(entry), None) => judge(s, entry, true),
        (None, Some(entry)) => judge(s, entry, false),
        (Some(peer), Some(anybody)) => {
            if anybody_wins(peer, anybody) {
                judge(s, anybody, false)
            } else {
                judge(s, peer, true)
            }
        }
    }
}

#[inline(always)]
fn anybody_wins(peer: &PolicyEntry, anybody: &PolicyEntry) -> bool {
    anybody.denies()
        || anybody.proxy_port_priority > peer.proxy_port_priority
        || (anybody.proxy_port_priority == peer.proxy_port_priority
            && anybody.lpm_prefix_length() > peer.lpm_prefix_length())
}

#[inline(always)]
fn judge(s: &mut Scratch, entry: &PolicyEntry, peer: bool) -> u32 {
    s.policy.cookie = entry.cookie;
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
