//! Hands a packet to a local endpoint: its policy, its connections, and the way in.

use cilia_maps::config::NodeConfig;
use cilia_maps::endpoint::EndpointInfo;
use cilia_maps::event::point;
use cilia_maps::{metrics, reason};

use crate::scratch::Scratch;
use crate::skb::{L3, Skb};
use crate::verdict::{Drop, Outcome, Verdict};
use crate::{conntrack, events, nat, policy};

const V4_TTL: u32 = 8;
const V4_CHECK: u32 = 10;
const V6_HOP_LIMIT: u32 = 7;

/// Asks the receiver whether it wants the packet, and notes the connection.
#[inline(always)]
pub fn admit(
    skb: Skb,
    s: &mut Scratch,
    config: &NodeConfig,
    receiver: &EndpointInfo,
) -> Result<(), Drop> {
    s.endpoint = receiver.lxc_id;
    s.dst_id = receiver.lxc_id.into();
    s.dst_label = receiver.sec_id;
    s.rev_nat_index = 0;
    // A receiver's drop is one of what comes in, also in its sender's program.
    s.direction = metrics::INGRESS;
    let status = conntrack::lookup(s, conntrack::INGRESS.into());
    if status == conntrack::REPLY || status == conntrack::RELATED {
        nat::reverse(skb, s)?;
    } else {
        let peer = s.src_label;
        policy::enforce(skb, s, config, policy::INGRESS, peer, status)?;
        if status == conntrack::NEW {
            conntrack::create(s, conntrack::INGRESS)?;
        }
    }
    s.direction = 0;
    events::trace(skb, s, config, point::TO_ENDPOINT, status);
    Ok(())
}

/// Moves the packet into the receiver's namespace.
#[inline(always)]
pub fn enter(skb: Skb, s: &Scratch, receiver: &EndpointInfo) -> Outcome {
    if s.v6() {
        hop_limit(skb)?
    } else {
        ttl(skb)?
    };
    if !set_macs(skb, receiver) || !skb.for_this_host() {
        return Err(Drop(reason::WRITE_ERROR));
    }
    Ok(Verdict::redirect(skb.redirect_peer(receiver.ifindex)))
}

/// Addresses the frame to the endpoint's device.
#[inline(always)]
pub fn set_macs(skb: Skb, receiver: &EndpointInfo) -> bool {
    let macs = [
        receiver.mac as u16,
        (receiver.mac >> 16) as u16,
        (receiver.mac >> 32) as u16,
        receiver.node_mac as u16,
        (receiver.node_mac >> 16) as u16,
        (receiver.node_mac >> 32) as u16,
    ];
    skb.set_macs(&raw const macs)
}

#[inline(always)]
fn ttl(skb: Skb) -> Result<(), Drop> {
    // TTL and protocol are one half-word of the checksum.
    let [ttl, proto]: [u8; 2] = skb.load(L3 + V4_TTL).ok_or(Drop(reason::INVALID))?;
    if ttl <= 1 {
        return Err(Drop(reason::TTL_EXCEEDED));
    }
    let old = u32::from(u16::from_ne_bytes([ttl, proto]));
    let new = u32::from(u16::from_ne_bytes([ttl - 1, proto]));
    if !skb.l3_csum(L3 + V4_CHECK, old, new, 2) {
        return Err(Drop(reason::CSUM_L3));
    }
    let less = ttl - 1;
    if skb.store(L3 + V4_TTL, &raw const less) { Ok(()) } else { Err(Drop(reason::WRITE_ERROR)) }
}

#[inline(always)]
fn hop_limit(skb: Skb) -> Result<(), Drop> {
    let limit: u8 = skb.load(L3 + V6_HOP_LIMIT).ok_or(Drop(reason::INVALID))?;
    if limit <= 1 {
        return Err(Drop(reason::TTL_EXCEEDED));
    }
    let less = limit - 1;
    if skb.store(L3 + V6_HOP_LIMIT, &raw const less) {
        Ok(())
    } else {
        Err(Drop(reason::WRITE_ERROR))
    }
}
