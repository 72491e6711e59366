//! Rewrites addresses and ports, with every checksum that covers them.

use cilia_maps::{Address, reason};

use crate::parse::{SCTP, TCP, UDP};
use crate::scratch::{LATER, Scratch};
use crate::skb::{L3, Skb};
use crate::verdict::Drop;
use crate::{lb, maps};

const V4_CHECK: u32 = 10;
const V4_SOURCE: u32 = 12;
const V4_DESTINATION: u32 = 16;
const V6_SOURCE: u32 = 8;
const V6_DESTINATION: u32 = 24;
const TCP_CHECK: u32 = 16;
const UDP_CHECK: u32 = 6;
const ICMP_CHECK: u32 = 2;
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;

/// Which end of the packet is rewritten.
pub const SOURCE: u32 = 0;
pub const DESTINATION: u32 = 1;

/// Gives the packet `s.nat_addr` and `s.nat_port` (0 keeps the port) as its source or destination.
#[inline(always)]
pub fn rewrite(skb: Skb, s: &mut Scratch, end: u32) -> Result<(), Drop> {
    match rewritten(skb, s, end) as u8 {
        0 => Ok(()),
        reason => Err(Drop(reason)),
    }
}

/// As [`rewrite`]: the drop reason, or 0.
#[inline(never)]
fn rewritten(skb: Skb, s: &mut Scratch, end: u32) -> u32 {
    let csum = match (s.fragment, s.proto) {
        (LATER, _) => 0,
        (_, TCP) => s.l4 + TCP_CHECK,
        (_, UDP) => s.l4 + UDP_CHECK,
        _ => 0,
    };
    let failed = if s.v6() { address6(skb, s, end, csum) } else { address4(skb, s, end, csum) };
    if failed != 0 {
        return failed;
    }
    if s.nat_port == 0 {
        return 0;
    }
    port(skb, s, end, csum)
}

#[inline(always)]
fn address4(skb: Skb, s: &mut Scratch, end: u32, csum: u32) -> u32 {
    let (offset, old) =
        if end == SOURCE { (V4_SOURCE, s.saddr[0]) } else { (V4_DESTINATION, s.daddr[0]) };
    let new = s.nat_addr[0];
    if csum != 0 && !skb.l4_csum_addr(csum, old, new, s.proto == UDP) {
        return reason::CSUM_L4.into();
    }
    if !skb.l3_csum(L3 + V4_CHECK, old, new, 4) {
        return reason::CSUM_L3.into();
    }
    if !skb.store(L3 + offset, &raw const new) {
        return reason::WRITE_ERROR.into();
    }
    if end == SOURCE {
        s.saddr[0] = new;
        s.flow.saddr[0] = new;
    } else {
        s.daddr[0] = new;
        s.flow.daddr[0] = new;
    }
    0
}

#[inline(always)]
fn address6(skb: Skb, s: &mut Scratch, end: u32, csum: u32) -> u32 {
    let (offset, old) = if end == SOURCE {
        (V6_SOURCE, &raw const s.saddr)
    } else {
        (V6_DESTINATION, &raw const s.daddr)
    };
    let new = &raw const s.nat_addr;
    if csum != 0 && !skb.l4_csum_addr6(csum, old, new, s.proto == UDP) {
        return reason::CSUM_L4.into();
    }
    if !skb.store::<Address>(L3 + offset, new) {
        return reason::WRITE_ERROR.into();
    }
    let new = s.nat_addr;
    if end == SOURCE {
        s.saddr = new;
        s.flow.saddr = new;
    } else {
        s.daddr = new;
        s.flow.daddr = new;
    }
    0
}

#[inline(always)]
fn port(skb: Skb, s: &mut Scratch, end: u32, csum: u32) -> u32 {
    let (offset, old) =
        if end == SOURCE { (SOURCE_PORT, s.flow.sport) } else { (DESTINATION_PORT, s.flow.dport) };
    let new = s.nat_port;
    if new != old && s.fragment != LATER {
        if s.proto == SCTP {
            // Its checksum is over all of the packet.
            return reason::CSUM_L4.into();
        }
        if csum != 0 && !skb.l4_csum_port(csum, old, new, s.proto == UDP) {
            return reason::CSUM_L4.into();
        }
        if !skb.store(s.l4 + offset, &raw const new) {
            return reason::WRITE_ERROR.into();
        }
    }
    if end == SOURCE {
        s.flow.sport = new;
    } else {
        s.flow.dport = new;
    }
    0
}

/// Makes a reply, or an error about one's own packet, appear to come from the service that was
/// asked. A service that is gone leaves the packet as it is.
#[inline(always)]
pub fn reverse(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    if s.ct.rev_nat_index == 0 || s.ct.reply == 0 || !lb::frontend(s) {
        return Ok(());
    }
    s.orig_source = s.saddr;
    if !s.about_another() {
        return rewrite(skb, s, SOURCE);
    }
    match quoted(skb, s) as u8 {
        0 => Ok(()),
        reason => Err(Drop(reason)),
    }
}

/// Puts the service back into the packet that an ICMP error quotes, as its destination, and
/// into the error's source if that is the backend: the drop reason, or 0.
///
/// The quoted packet's own L4 checksum stays: nobody can check it, it covers what is not there.
#[inline(never)]
fn quoted(skb: Skb, s: &mut Scratch) -> u32 {
    let csum = s.l4 + ICMP_CHECK;
    if s.flow.proto != SCTP && s.nat_port != s.flow.sport {
        let done = skb.l4_csum_port(csum, s.flow.sport, s.nat_port, false)
            && skb.store(s.inner_l4 + DESTINATION_PORT, &raw const s.nat_port);
        if !done {
            return reason::CSUM_L4.into();
        }
    }
    let from_backend = s.saddr == s.flow.saddr;
    let done = if s.v6() {
        let (old, new) = (&raw const s.flow.saddr, &raw const s.nat_addr);
        skb.l4_csum_bytes6(csum, old, new)
            && skb.store(s.inner_l3 + V6_DESTINATION, new)
            && (!from_backend
                || (skb.l4_csum_addr6(csum, old, new, false) && skb.store(L3 + V6_SOURCE, new)))
    } else {
        // Inside, address and head checksum change by opposite amounts: the sum over both stays.
        let (old, new) = (s.flow.saddr[0], s.nat_addr[0]);
        skb.l3_csum(s.inner_l3 + V4_CHECK, old, new, 4)
            && skb.store(s.inner_l3 + V4_DESTINATION, &raw const new)
            && (!from_backend
                || (skb.l3_csum(L3 + V4_CHECK, old, new, 4)
                    && skb.store(L3 + V4_SOURCE, &raw const new)))
    };
    if !done {
        return reason::CSUM_L3.into();
    }
    if from_backend {
        s.saddr = s.nat_addr;
    }
    0
}

/// Turns an endpoint's error about a packet that it sent itself through a service back into one about
/// the packet as it left: to the service, from the endpoint. `s.nat_addr` is the service.
#[inline(always)]
pub fn reverse_loopback_error(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let endpoint = s.saddr;
    match quoted(skb, s) as u8 {
        0 => {}
        reason => return Err(Drop(reason)),
    }
    s.nat_addr = endpoint;
    match quoted_source(skb, s) as u8 {
        0 => Ok(()),
        reason => Err(Drop(reason)),
    }
}

/// Puts `s.nat_addr` into the quoted packet's source and the error's destination: the drop reason,
/// or 0.
#[inline(never)]
fn quoted_source(skb: Skb, s: &mut Scratch) -> u32 {
    let done = if s.v6() {
        let csum = s.l4 + ICMP_CHECK;
        let (old, new) = (&raw const s.daddr, &raw const s.nat_addr);
        skb.l4_csum_bytes6(csum, old, new)
            && skb.l4_csum_addr6(csum, old, new, false)
            && skb.store(s.inner_l3 + V6_SOURCE, new)
            && skb.store(L3 + V6_DESTINATION, new)
    } else {
        let (old, new) = (s.daddr[0], s.nat_addr[0]);
        skb.l3_csum(s.inner_l3 + V4_CHECK, old, new, 4)
            && skb.store(s.inner_l3 + V4_SOURCE, &raw const new)
            && skb.l3_csum(L3 + V4_CHECK, old, new, 4)
            && skb.store(L3 + V4_DESTINATION, &raw const new)
    };
    if !done {
        return reason::CSUM_L3.into();
    }
    s.daddr = s.nat_addr;
    0
}

/// Writes the frontend of a reverse-NAT id to where [`rewrite`] takes it from.
#[inline(always)]
pub fn frontend(s: &mut Scratch, id: *const u16) -> bool {
    if s.v6() {
        let Some(front) = maps::get(&maps::LB6_REVERSE_NAT, id) else { return false };
        s.nat_addr = front.address;
        s.nat_port = front.port;
    } else {
        let Some(front) = maps::get(&maps::LB4_REVERSE_NAT, id) else { return false };
        s.nat_addr = [front.address, 0, 0, 0];
        s.nat_port = front.port;
    }
    true
}
