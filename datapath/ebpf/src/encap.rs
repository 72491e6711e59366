//! Sends a packet to the node of its receiver, with the sender's identity as the tunnel's number.

use cilia_maps::config::NodeConfig;
use cilia_maps::ipcache::RemoteEndpointInfo;
use cilia_maps::{identity, reason};

use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict};

/// Whether an address is reached through the tunnel.
#[inline(always)]
pub fn is_tunnelled(info: &RemoteEndpointInfo) -> bool {
    const WANTED: u8 = RemoteEndpointInfo::HAS_TUNNEL;
    info.flags & (WANTED | RemoteEndpointInfo::SKIP_TUNNEL) == WANTED
}

/// How an identity is written on the wire: numbers that only this node knows are not.
#[inline(always)]
fn on_the_wire(label: u32) -> u32 {
    match label {
        identity::HOST => identity::REMOTE_NODE,
        identity::WORLD_IPV4 | identity::WORLD_IPV6 => identity::WORLD,
        label => label,
    }
}

/// Puts the packet into the tunnel.
#[inline(always)]
pub fn send(skb: Skb, config: &NodeConfig, info: &RemoteEndpointInfo, label: u32) -> Outcome {
    let v6 = info.flags & RemoteEndpointInfo::TUNNEL_V6 != 0;
    if config.overlay_ifindex == 0 {
        return Err(Drop(reason::NO_TUNNEL_ENDPOINT));
    }
    if !skb.set_tunnel(on_the_wire(label), &info.tunnel_endpoint, v6) {
        return Err(Drop(reason::WRITE_ERROR));
    }
    Ok(Verdict::redirect(skb.redirect(config.overlay_ifindex)))
}
