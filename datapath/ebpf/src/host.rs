//! The node itself as an endpoint: its policy for what comes to it and for what it sends.
//!
//! Off, and free of cost, unless the agent names an endpoint for the node. Its connections are always
//! noted then, so that policy that comes later cuts no reply.

use cilia_maps::config::NodeConfig;
use cilia_maps::endpoint::EndpointInfo;
use cilia_maps::{identity, metrics, reason};

use crate::parse::{ETH_IPV4, ETH_IPV6, UDP};
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict};
use crate::{conntrack, encap, icmp, ipcache, maps, parse, policy};

/// Bits of `how` in [`judged`].
const EGRESS: u32 = policy::EGRESS as u32;
const ENFORCED: u32 = 2;

/// Whether the node has a policy.
#[inline(always)]
pub fn is_guarded(config: &NodeConfig) -> bool {
    config.host_endpoint != 0
}

/// Asks the node whether it wants a packet.
#[inline(always)]
pub fn admit(skb: Skb, s: &mut Scratch, config: &NodeConfig, peer: u32) -> Result<(), Drop> {
    if !is_guarded(config) {
        return Ok(());
    }
    said(judged(skb, s, ENFORCED, peer))
}

/// Asks whether the node may send a packet that has its address. What it only forwards under this
/// address is not its own: the connection is noted, for its replies.
#[inline(always)]
pub fn permit(skb: Skb, s: &mut Scratch, config: &NodeConfig, peer: u32) -> Result<(), Drop> {
    if !is_guarded(config) {
        return Ok(());
    }
    let own = if skb.ingress_ifindex() == 0 { ENFORCED } else { 0 };
    said(judged(skb, s, EGRESS | own, peer))
}

#[inline(always)]
fn said(denied: u32) -> Result<(), Drop> {
    if denied == 0 { Ok(()) } else { Err(Drop(denied as u8)) }
}

/// The drop reason, or 0.
#[inline(never)]
fn judged(skb: Skb, s: &mut Scratch, how: u32, peer: u32) -> u32 {
    let Some(config) = maps::config() else { return reason::NO_CONFIG.into() };
    let (endpoint, rev_nat_index) = (s.endpoint, s.rev_nat_index);
    s.endpoint = config.host_endpoint as u16;
    s.rev_nat_index = 0;
    let direction = (how & EGRESS) as u8;
    let sends = direction == policy::EGRESS;
    let own = if sends { conntrack::EGRESS } else { conntrack::INGRESS };
    s.direction = if sends { metrics::EGRESS } else { metrics::INGRESS };
    let status = conntrack::lookup(s, own.into());
    let mut denied = 0;
    if status == conntrack::NEW || status == conntrack::ESTABLISHED {
        if how & ENFORCED != 0
            && let Err(Drop(reason)) = policy::enforce(skb, s, config, direction, peer, status)
        {
            denied = reason.into();
        } else if status == conntrack::NEW
            && let Err(Drop(reason)) = conntrack::create(s, own)
        {
            denied = reason.into();
        }
    }
    // A drop is told as the node's; else the packet goes on in the name of whose it was.
    if denied == 0 {
        s.endpoint = endpoint;
        s.rev_nat_index = rev_nat_index;
        s.direction = 0;
    }
    denied
}

/// A packet by one of the node's devices: to it, or from it.
#[inline(always)]
pub fn by_device(skb: Skb, s: &mut Scratch, egress: bool) -> Outcome {
    if !matches!(skb.protocol(), ETH_IPV4 | ETH_IPV6) {
        return Ok(Verdict::PASS);
    }
    // A node must not cut itself off while its programs are changed.
    let Some(config) = maps::config() else { return Ok(Verdict::PASS) };
    if !is_guarded(config) {
        return Ok(Verdict::PASS);
    }
    parse::addresses(skb, s)?;
    let own = if egress { s.saddr } else { s.daddr };
    if !ipcache::local(s, own).is_some_and(is_node) {
        return Ok(Verdict::PASS);
    }
    parse::any_packet(skb, s)?;
    let of_link = egress && parse::is_multicast(s) && parse::is_link_scope(s);
    if icmp::is_neighbour_discovery(s) || of_link {
        return Ok(Verdict::PASS);
    }
    let other = if egress { s.daddr } else { s.saddr };
    let peer = ipcache::remote(s, other);
    let tunnel = s.proto == UDP && s.flow.dport == config.tunnel_port;
    if tunnel && peer.is_some_and(encap::is_node) {
        // What is inside is judged by those whom it is for.
        return Ok(Verdict::PASS);
    }
    let peer = ipcache::label(s, config, peer);
    if egress {
        s.src_label = identity::HOST;
        s.dst_label = peer;
        permit(skb, s, config, peer)?;
    } else {
        s.src_label = peer;
        s.dst_label = identity::HOST;
        admit(skb, s, config, peer)?;
    }
    Ok(Verdict::PASS)
}

#[inline(always)]
fn is_node(info: &'static EndpointInfo) -> bool {
    ipcache::is_host(info)
}
