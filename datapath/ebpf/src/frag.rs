//! Fragments: the first one has the ports, the later ones find them here.
//!
//! An IPv6 datagram whose first fragment has extension heads before the protocol has two entries:
//! later fragments name the first of those heads, under which they find the protocol's number.

use cilia_maps::reason;

use crate::parse::{ICMP, ICMPV6, is_extension};
use crate::scratch::Scratch;
use crate::verdict::{Drop, count};
use crate::{icmp, maps};

/// Direction of a counter that has none.
const NO_DIRECTION: u8 = 0;

#[inline(always)]
fn fill_key(s: &mut Scratch) {
    // The identification is there since the head was read.
    if s.v6() {
        s.frag6_key.saddr = s.saddr;
        s.frag6_key.daddr = s.daddr;
        s.frag6_key.proto = s.proto;
        s.frag6_key.pad = [0; 3];
    } else {
        s.frag4_key.saddr = s.saddr[0];
        s.frag4_key.daddr = s.daddr[0];
        s.frag4_key.proto = s.proto;
        s.frag4_key.pad = 0;
    }
}

/// Keeps the ports of a first fragment.
#[inline(always)]
pub fn remember(s: &mut Scratch) {
    fill_key(s);
    s.frag_ports.sport = s.flow.sport;
    s.frag_ports.dport = s.flow.dport;
    let kept = if s.v6() {
        maps::set(&maps::FRAG6, &raw const s.frag6_key, &raw const s.frag_ports)
    } else {
        maps::set(&maps::FRAG4, &raw const s.frag4_key, &raw const s.frag_ports)
    };
    let reason = if kept { reason::FRAGMENT } else { reason::FRAGMENT_UPDATE_FAILED };
    count(s, reason, NO_DIRECTION, 0);
    if s.v6() && s.fragment_next != s.proto {
        s.frag6_key.proto = s.fragment_next;
        s.frag_ports.sport = s.proto.into();
        s.frag_ports.dport = 0;
        // Without it the later fragments are dropped, as without the other.
        let _ = maps::set(&maps::FRAG6, &raw const s.frag6_key, &raw const s.frag_ports);
    }
}

/// Gives a later fragment the ports of its datagram.
#[inline(always)]
pub fn recall(s: &mut Scratch) -> Result<(), Drop> {
    fill_key(s);
    if s.v6() && is_extension(s.proto) {
        let Some(place) = maps::get(&maps::FRAG6, &raw const s.frag6_key) else {
            return Err(Drop(reason::FRAG_NOT_FOUND));
        };
        s.proto = place.sport as u8;
        s.flow.proto = s.proto;
        s.frag6_key.proto = s.proto;
    }
    let ports = if s.v6() {
        maps::get(&maps::FRAG6, &raw const s.frag6_key)
    } else {
        maps::get(&maps::FRAG4, &raw const s.frag4_key)
    };
    let Some(ports) = ports else {
        return Err(Drop(reason::FRAG_NOT_FOUND));
    };
    s.flow.sport = ports.sport;
    s.flow.dport = ports.dport;
    if matches!(s.proto, ICMP | ICMPV6) {
        s.icmp_type = icmp::type_of_later(s);
    }
    count(s, reason::FRAGMENT, NO_DIRECTION, 0);
    Ok(())
}
