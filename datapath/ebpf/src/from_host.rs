//! tcx egress of `cilium_host`: packets of this node's own to pods on others.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use cilia_maps::{identity, metrics, reason};

use crate::parse;
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict, finish};
use crate::{encap, host, ipcache, maps};

#[classifier]
pub fn cil_from_host(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = packet(skb, s);
    finish(skb, s, metrics::EGRESS, outcome)
}

#[inline(always)]
fn packet(skb: Skb, s: &mut Scratch) -> Outcome {
    if !matches!(skb.protocol(), parse::ETH_IPV4 | parse::ETH_IPV6) {
        return Ok(Verdict::PASS);
    }
    let config = maps::config().ok_or(Drop(reason::NO_CONFIG))?;
    parse::addresses(skb, s)?;
    if parse::is_link_scope(s) {
        return Ok(Verdict::PASS);
    }
    // What the stack forwards for a pod keeps the pod's identity.
    s.src_label = ipcache::forwarded(skb, s, config)?;
    match ipcache::remote(s, s.daddr) {
        Some(remote) if encap::is_tunnelled(remote) => {
            s.dst_label = remote.sec_identity;
            if s.src_label == identity::HOST && host::is_guarded(config) {
                parse::any_packet(skb, s)?;
                host::permit(skb, s, config, remote.sec_identity)?;
            }
            encap::send(skb, config, remote, s.src_label)
        }
        // Routed here, and yet nobody's: left to the stack it would come round again.
        _ => Err(Drop(reason::UNROUTABLE)),
    }
}
