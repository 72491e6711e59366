//! tcx ingress of the tunnel device: packets from other nodes, with their sender's identity.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use cilia_maps::config::NodeConfig;
use cilia_maps::{identity, metrics, reason};

use crate::parse;
use crate::scratch::{FROM_TUNNEL, Scratch};
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict, finish};
use crate::{deliver, host, ipcache, maps};

#[classifier]
pub fn cil_from_overlay(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = packet(skb, s);
    finish(skb, s, metrics::INGRESS, outcome)
}

#[inline(always)]
fn packet(skb: Skb, s: &mut Scratch) -> Outcome {
    let config = maps::config().ok_or(Drop(reason::NO_CONFIG))?;
    s.tunnel = FROM_TUNNEL;
    let id = skb.tunnel_id().ok_or(Drop(reason::NO_TUNNEL_KEY))?;
    s.src_label = id;
    parse::packet(skb, s, config)?;
    s.src_label = sender(s, config, id)?;
    let receiver = ipcache::local(s, s.daddr).ok_or(Drop(reason::UNROUTABLE))?;
    if ipcache::is_host(receiver) {
        s.dst_label = identity::HOST;
        let peer = s.src_label;
        host::admit(skb, s, config, peer)?;
        if !skb.for_this_host() {
            return Err(Drop(reason::WRITE_ERROR));
        }
        return Ok(Verdict::PASS);
    }
    deliver::admit(skb, s, config, receiver)?;
    deliver::enter(skb, s, receiver)
}

/// Whom the number on the wire means.
#[inline(always)]
fn sender(s: &mut Scratch, config: &NodeConfig, id: u32) -> Result<u32, Drop> {
    match id {
        identity::HOST => Err(Drop(reason::INVALID_IDENTITY)),
        identity::WORLD => Ok(ipcache::world(s, config)),
        // A node writes 6 for itself, whatever else it is.
        identity::REMOTE_NODE => Ok(match ipcache::remote(s, s.saddr) {
            Some(node) if node.sec_identity > identity::HOST => node.sec_identity,
            _ => id,
        }),
        _ => Ok(id),
    }
}
