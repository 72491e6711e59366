//! Who is behind an address: a local endpoint, the node, another endpoint, or the world.

use cilia_maps::config::NodeConfig;
use cilia_maps::endpoint::EndpointInfo;
use cilia_maps::ipcache::{IpcacheKey, RemoteEndpointInfo};
use cilia_maps::{Address, FAMILY_V6, identity, reason};

use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::Drop;
use crate::{encap, maps};

/// Bits of a whole key, whichever family: what lies beyond an IPv4 address is zero.
const WHOLE_KEY: u32 = IpcacheKey::STATIC_BITS + 128;
const WHOLE_KEY_V4: u32 = IpcacheKey::STATIC_BITS + 32;

/// The local endpoint, or the node itself, that has an address.
#[inline(always)]
pub fn local(s: &mut Scratch, address: Address) -> Option<&'static EndpointInfo> {
    s.endpoint_key.address = address;
    s.endpoint_key.family = s.family;
    s.endpoint_key.key = 0;
    s.endpoint_key.cluster_id = 0;
    maps::get(&maps::LXC, &raw const s.endpoint_key)
}

/// Whether an address is the node's own.
#[inline(always)]
pub fn is_host(endpoint: &EndpointInfo) -> bool {
    endpoint.flags & (EndpointInfo::HOST | EndpointInfo::AT_HOST_NS) != 0
}

/// The identity of a local address.
#[inline(always)]
pub fn local_label(endpoint: &EndpointInfo) -> u32 {
    if is_host(endpoint) { identity::HOST } else { endpoint.sec_id }
}

/// What the ipcache says of an address.
#[inline(always)]
pub fn remote(s: &mut Scratch, address: Address) -> Option<&'static RemoteEndpointInfo> {
    s.ipcache_key.prefix_len = if s.family == FAMILY_V6 { WHOLE_KEY } else { WHOLE_KEY_V4 };
    s.ipcache_key.data.cluster_id = 0;
    s.ipcache_key.data.pad = 0;
    s.ipcache_key.data.family = s.family;
    s.ipcache_key.data.address = address;
    maps::get(&maps::IPCACHE, (&raw const s.ipcache_key).cast())
}

/// The identity of what is outside.
#[inline(always)]
pub fn world(s: &Scratch, config: &NodeConfig) -> u32 {
    const BOTH: u32 = NodeConfig::IPV4 | NodeConfig::IPV6;
    if config.flags & BOTH != BOTH {
        identity::WORLD
    } else if s.v6() {
        identity::WORLD_IPV6
    } else {
        identity::WORLD_IPV4
    }
}

/// The identity in an ipcache entry; of the world without one.
#[inline(always)]
pub fn label(s: &Scratch, config: &NodeConfig, info: Option<&RemoteEndpointInfo>) -> u32 {
    match info {
        Some(info) if info.sec_identity != identity::UNKNOWN => info.sec_identity,
        _ => world(s, config),
    }
}

/// The identity behind the source of a packet that came through the host's stack.
///
/// An address alone proves nothing: an endpoint's packet must have come by the endpoint's device,
/// and that of an endpoint on another node out of the tunnel.
#[inline(always)]
pub fn forwarded(skb: Skb, s: &mut Scratch, config: &NodeConfig) -> Result<u32, Drop> {
    let by = skb.ingress_ifindex();
    if let Some(sender) = local(s, s.saddr) {
        if !is_host(sender) && by != sender.ifindex {
            return Err(Drop(reason::INVALID_SIP));
        }
        return Ok(local_label(sender));
    }
    let sender = remote(s, s.saddr);
    if let Some(sender) = sender
        && encap::is_tunnelled(sender)
        && config.overlay_ifindex != 0
        && by != config.overlay_ifindex
    {
        return Err(Drop(reason::INVALID_SIP));
    }
    Ok(label(s, config, sender))
}
