//! Sends a packet to the node of its receiver, with the sender's identity as the tunnel's number.

use cilia_maps::config::NodeConfig;
use cilia_maps::ipcache::RemoteEndpointInfo;
use cilia_maps::{Address, identity, reason};

use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict};

/// Whether an address is reached through the tunnel.
#[inline(always)]
pub fn is_tunnelled(info: &RemoteEndpointInfo) -> bool {
    const WANTED: u8 = RemoteEndpointInfo::HAS_TUNNEL;
    info.flags & (WANTED | RemoteEndpointInfo::SKIP_TUNNEL) == WANTED
}

/// An identity's bits above are 0 if the whole cluster knows it.
const SCOPE_SHIFT: u32 = 24;

/// How an identity is written on the wire: numbers that only this node knows are not.
#[inline(always)]
fn on_the_wire(label: u32) -> u32 {
    match label {
        identity::HOST => identity::REMOTE_NODE,
        identity::WORLD_IPV4 | identity::WORLD_IPV6 => identity::WORLD,
        label if label >> SCOPE_SHIFT != 0 => identity::WORLD,
        label => label,
    }
}

/// Puts the packet into the tunnel.
#[inline(always)]
pub fn send(skb: Skb, config: &NodeConfig, info: &RemoteEndpointInfo, label: u32) -> Outcome {
    let v6 = info.flags & RemoteEndpointInfo::TUNNEL_V6 != 0;
    send_to(skb, config, &info.tunnel_endpoint, v6, label)
}

/// Whether an address, reached without the tunnel otherwise, is that of another node.
#[inline(always)]
pub fn is_node(info: &RemoteEndpointInfo) -> bool {
    let label = info.sec_identity;
    matches!(label, identity::REMOTE_NODE | identity::KUBE_APISERVER)
        || label >> SCOPE_SHIFT == identity::SCOPE_NODES
}

/// Puts the packet, which goes to another node's own address, into the tunnel to that address.
#[inline(always)]
pub fn send_to_node(skb: Skb, s: &Scratch, config: &NodeConfig) -> Outcome {
    send_to(skb, config, &s.daddr, s.v6(), s.src_label)
}

#[inline(always)]
fn send_to(skb: Skb, config: &NodeConfig, node: &Address, v6: bool, label: u32) -> Outcome {
    if config.overlay_ifindex == 0 {
        return Err(Drop(reason::NO_TUNNEL_ENDPOINT));
    }
    if !skb.set_tunnel(on_the_wire(label), node, v6) {
        return Err(Drop(reason::WRITE_ERROR));
    }
    Ok(Verdict::redirect(skb.redirect(config.overlay_ifindex)))
}
