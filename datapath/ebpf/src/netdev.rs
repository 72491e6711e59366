//! tcx ingress and egress of the node's own devices: the node's policy for the world and other nodes.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use cilia_maps::metrics;

use crate::skb::Skb;
use crate::verdict::finish;
use crate::{host, maps};

#[classifier]
pub fn cil_from_netdev(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = host::by_device(skb, s, false);
    finish(skb, s, metrics::INGRESS, outcome)
}

#[classifier]
pub fn cil_to_netdev(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = host::by_device(skb, s, true);
    finish(skb, s, metrics::EGRESS, outcome)
}
