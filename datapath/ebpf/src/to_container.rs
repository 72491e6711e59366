//! tcx egress of a pod's device on the host: what reaches the pod through the host's stack, from
//! host processes, node ports and the world. Redirected packets do not come by here.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use cilia_maps::{identity, metrics, reason};

use crate::parse;
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict, finish};
use crate::{deliver, host, icmp, ipcache, maps};

#[classifier]
pub fn cil_to_container(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = packet(skb, s);
    finish(skb, s, metrics::INGRESS, outcome)
}

#[inline(always)]
fn packet(skb: Skb, s: &mut Scratch) -> Outcome {
    if skb.protocol() == parse::ETH_ARP {
        return Ok(Verdict::PASS);
    }
    let config = maps::config().ok_or(Drop(reason::NO_CONFIG))?;
    parse::packet(skb, s, config)?;
    // What the host sends on the link itself is not for any one endpoint.
    if icmp::is_neighbour_discovery(s) || parse::is_link_scope(s) {
        return Ok(Verdict::PASS);
    }
    s.src_label = ipcache::forwarded(skb, s, config)?;
    let receiver = ipcache::local(s, s.daddr).ok_or(Drop(reason::UNROUTABLE))?;
    if receiver.ifindex != skb.ifindex() {
        return Err(Drop(reason::UNROUTABLE));
    }
    if s.src_label == identity::HOST {
        host::permit(skb, s, config, receiver.sec_id)?;
    }
    deliver::admit(skb, s, config, receiver)?;
    Ok(Verdict::PASS)
}
