//! Fragments: the first one has the ports, the later ones find them here.

use cilia_maps::reason;

use crate::maps;
use crate::parse::{ICMP, ICMPV6, icmp_type_of_later};
use crate::scratch::Scratch;
use crate::verdict::{Drop, count};

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
}

/// Gives a later fragment the ports of its datagram.
#[inline(always)]
pub fn recall(s: &mut Scratch) -> Result<(), Drop> {
    fill_key(s);
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
        s.icmp_type = icmp_type_of_later(s);
    }
    count(s, reason::FRAGMENT, NO_DIRECTION, 0);
    Ok(())
}
