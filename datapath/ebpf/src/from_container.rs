//! tcx ingress of a pod's device on the host: everything that leaves the pod.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use cilia_maps::config::NodeConfig;
use cilia_maps::conntrack::entry_flags;
use cilia_maps::event::point;
use cilia_maps::{metrics, reason};

use crate::parse::{self, UDP};
use crate::scratch::{INTO_TUNNEL, Scratch};
use crate::skb::Skb;
use crate::verdict::{Drop, Outcome, Verdict, count, finish};
use crate::{conntrack, deliver, encap, events, host, icmp, ipcache, lb, maps, policy, reject};

#[classifier]
pub fn cil_from_container(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    let Some(s) = maps::scratch() else { return aya_ebpf::bindings::TC_ACT_SHOT as i32 };
    s.begin();
    let outcome = packet(skb, s);
    finish(skb, s, metrics::EGRESS, outcome)
}

#[inline(always)]
fn packet(skb: Skb, s: &mut Scratch) -> Outcome {
    if skb.protocol() == parse::ETH_ARP {
        return Ok(Verdict::PASS);
    }
    let config = maps::config().ok_or(Drop(reason::NO_CONFIG))?;
    if parse::is_off(skb, config) {
        return Err(Drop(reason::UNKNOWN_L3));
    }
    parse::packet(skb, s, config)?;
    icmp::keep_to_own(s);
    if icmp::is_link_control(s, &config.router_v6)? {
        return Ok(Verdict::PASS);
    }
    // The endpoint is the one whose address it is, if this is its device.
    let sender = ipcache::local(s, s.saddr).ok_or(Drop(reason::INVALID_SIP))?;
    if sender.ifindex != skb.ifindex() {
        return Err(Drop(reason::INVALID_SIP));
    }
    s.endpoint = sender.lxc_id;
    s.src_label = sender.sec_id;
    if lb::is_loopback_reply(s) {
        lb::reverse_loopback(skb, s)?;
        return deliver::enter(skb, s, sender);
    }
    if let Err(Drop(reason)) = lb::translate(skb, s) {
        if reason != reason::NO_SERVICE || !reject::is_answerable(s) {
            return Err(Drop(reason));
        }
        // Told as a drop, and answered, so that the client need not wait for its time-out.
        count(s, reason, metrics::SERVICE, skb.len());
        events::dropped(skb, s, reason.into());
        return reject::port_unreachable(skb, s, sender);
    }
    if s.loopback != 0 {
        if conntrack::lookup(s, conntrack::EGRESS.into()) == conntrack::NEW {
            conntrack::create(s, conntrack::EGRESS)?;
        }
        return deliver::enter(skb, s, sender);
    }
    forward(skb, s, config)
}

/// Egress policy of the sender, then the way to the receiver.
#[inline(always)]
fn forward(skb: Skb, s: &mut Scratch, config: &NodeConfig) -> Outcome {
    if let Some(receiver) = ipcache::local(s, s.daddr) {
        s.dst_label = ipcache::local_label(receiver);
        s.dst_id = receiver.lxc_id.into();
        let status = permit(skb, s, config)?;
        if ipcache::is_host(receiver) {
            let peer = s.src_label;
            host::admit(skb, s, config, peer)?;
            events::trace(skb, s, config, point::TO_HOST, status);
            return Ok(Verdict::PASS);
        }
        deliver::admit(skb, s, config, receiver)?;
        return deliver::enter(skb, s, receiver);
    }
    let remote = ipcache::remote(s, s.daddr);
    s.dst_label = ipcache::label(s, config, remote);
    let to_node = remote.is_some_and(encap::is_node);
    if to_node && host::is_guarded(config) {
        s.tunnel = INTO_TUNNEL;
    }
    let status = permit(skb, s, config)?;
    if let Some(remote) = remote
        && encap::is_tunnelled(remote)
    {
        events::trace(skb, s, config, point::TO_OVERLAY, status);
        return encap::send(skb, config, remote, s.src_label);
    }
    // On the way outside, a packet would be given the address of this node. What a node asked through the
    // tunnel is answered through it; and where nodes have policies, they have to be told who asks. What was
    // opened otherwise goes on so: with another address it would be another connection.
    let opens_tunnel = status == conntrack::NEW && s.tunnel == INTO_TUNNEL;
    if to_node && (opens_tunnel || s.ct.flags & entry_flags::TUNNEL != 0) {
        events::trace(skb, s, config, point::TO_OVERLAY, status);
        return encap::send_to_node(skb, s, config);
    }
    events::trace(skb, s, config, point::TO_STACK, status);
    Ok(Verdict::PASS)
}

/// Whether the sender may: what conntrack says of the packet, if so.
#[inline(always)]
fn permit(skb: Skb, s: &mut Scratch, config: &NodeConfig) -> Result<u32, Drop> {
    if s.proto == UDP && s.flow.dport == config.tunnel_port {
        // Nobody makes up identities.
        return Err(Drop(reason::ENCAP_PROHIBITED));
    }
    let status = conntrack::lookup(s, conntrack::EGRESS.into());
    if status == conntrack::REPLY || status == conntrack::RELATED {
        return Ok(status);
    }
    let peer = s.dst_label;
    policy::enforce(skb, s, config, policy::EGRESS, peer, status)?;
    if status == conntrack::NEW || s.ct.rev_nat_index != s.rev_nat_index {
        conntrack::create(s, conntrack::EGRESS)?;
    }
    Ok(status)
}
