//! Cluster services: translates a frontend to one of its backends, once per connection.

use cilia_maps::service::{
    AFFINITY_SECONDS, FLAG_AFFINITY, LOOPBACK_V4, LOOPBACK_V6, LbService, state,
};
use cilia_maps::{Address, conntrack::entry_flags, reason};

use crate::parse::{SCTP, TCP, TCP_ACK, TCP_SYN, UDP};
use crate::scratch::Scratch;
use crate::skb::{self, Skb};
use crate::verdict::Drop;
use crate::{affinity, conntrack, maps, nat};

/// `flags2` of a frontend that has entries of its own for callers inside.
const TWO_SCOPES: u8 = 32;
const INTERNAL: u8 = 1;

/// The source address of an endpoint that reaches itself through a service.
#[inline(always)]
fn loopback_address(s: &Scratch) -> Address {
    if s.v6() { LOOPBACK_V6 } else { [LOOPBACK_V4, 0, 0, 0] }
}

#[inline(always)]
pub fn service(s: &mut Scratch, slot: u16, scope: u8) -> Option<&'static LbService> {
    if s.v6() {
        s.lb6_key.address = s.daddr;
        s.lb6_key.dport = s.flow.dport;
        s.lb6_key.backend_slot = slot;
        s.lb6_key.proto = s.proto;
        s.lb6_key.scope = scope;
        s.lb6_key.pad = 0;
        maps::get(&maps::LB6_SERVICES, &raw const s.lb6_key)
    } else {
        s.lb4_key.address = s.daddr[0];
        s.lb4_key.dport = s.flow.dport;
        s.lb4_key.backend_slot = slot;
        s.lb4_key.proto = s.proto;
        s.lb4_key.scope = scope;
        s.lb4_key.pad = 0;
        maps::get(&maps::LB4_SERVICES, &raw const s.lb4_key)
    }
}

/// Writes a backend to where [`nat::rewrite`] takes it from.
#[inline(always)]
fn backend(s: &mut Scratch, id: u32) -> bool {
    if s.v6() {
        let Some(backend) = maps::get(&maps::LB6_BACKENDS, &raw const id) else { return false };
        s.nat_addr = backend.address;
        s.nat_port = backend.port;
        s.backend_state = backend.state;
    } else {
        let Some(backend) = maps::get(&maps::LB4_BACKENDS, &raw const id) else { return false };
        s.nat_addr = [backend.address, 0, 0, 0];
        s.nat_port = backend.port;
        s.backend_state = backend.state;
    }
    true
}

/// Writes the frontend of the looked-up connection to where [`nat::rewrite`] takes it from.
#[inline(always)]
pub fn frontend(s: &mut Scratch) -> bool {
    let id = s.ct.rev_nat_index;
    nat::frontend(s, &raw const id)
}

/// Translates a packet from an endpoint, if it goes to a service.
#[inline(always)]
pub fn translate(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    if !matches!(s.proto, TCP | UDP | SCTP) {
        return Ok(());
    }
    match chosen(s) as u8 {
        0 if s.rev_nat_index == 0 => return Ok(()),
        0 => {}
        reason => return Err(Drop(reason)),
    }
    let itself = s.nat_addr == s.saddr;
    s.orig_source = s.saddr;
    nat::rewrite(skb, s, nat::DESTINATION)?;
    if itself {
        s.loopback = 1;
        s.nat_addr = loopback_address(s);
        s.nat_port = 0;
        nat::rewrite(skb, s, nat::SOURCE)?;
    }
    Ok(())
}

/// Chooses the backend: the drop reason, or 0 with `s.rev_nat_index` set if there is a service.
#[inline(never)]
fn chosen(s: &mut Scratch) -> u32 {
    let Some(mut front) = service(s, 0, 0) else { return 0 };
    let mut scope = 0;
    if front.flags2 & TWO_SCOPES != 0
        && let Some(internal) = service(s, 0, INTERNAL)
    {
        front = internal;
        scope = INTERNAL;
    }
    s.rev_nat_index = front.rev_nat_index;
    let count = u32::from(front.count);
    let known = conntrack::lookup_service(s);
    if known != 0 && backend(s, known) {
        let opens = s.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        if s.backend_state == state::ACTIVE || !opens {
            return 0;
        }
    }
    if count == 0 {
        return reason::NO_SERVICE.into();
    }
    let sticky = front.flags & FLAG_AFFINITY != 0;
    let lasts = front.backend_id & AFFINITY_SECONDS;
    let kept = if sticky { affinity::recall(s, count, scope, lasts) } else { 0 };
    let slot = if kept != 0 { kept } else { skb::random() % count + 1 };
    let Some(place) = service(s, slot as u16, scope) else { return reason::NO_SERVICE.into() };
    let id = place.backend_id;
    if !backend(s, id) {
        return reason::NO_SERVICE.into();
    }
    if sticky {
        affinity::remember(s, id, slot);
    }
    match conntrack::enter_service(s, id) {
        Ok(()) => 0,
        Err(Drop(reason)) => reason.into(),
    }
}

/// Whether the packet answers an endpoint that reached itself through a service.
#[inline(always)]
pub fn is_loopback_reply(s: &Scratch) -> bool {
    s.daddr == loopback_address(s)
}

/// Turns such an answer back: from the service, to the endpoint.
#[inline(always)]
pub fn reverse_loopback(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let status = conntrack::lookup(s, conntrack::INGRESS.into());
    let own = s.ct.flags & entry_flags::LB_LOOPBACK != 0;
    if !own || !frontend(s) {
        return Err(Drop(reason::UNROUTABLE));
    }
    if status == conntrack::RELATED && s.ct.reply != 0 {
        return nat::reverse_loopback_error(skb, s);
    }
    if status != conntrack::REPLY {
        return Err(Drop(reason::UNROUTABLE));
    }
    let endpoint = s.saddr;
    nat::rewrite(skb, s, nat::SOURCE)?;
    s.nat_addr = endpoint;
    s.nat_port = 0;
    nat::rewrite(skb, s, nat::DESTINATION)
}
