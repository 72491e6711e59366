//! ICMP: echoes, errors and the packets that they are about, and what is about the link alone.

use cilia_maps::{Address, reason};

use crate::parse::{
    FRAGMENT, FRAGMENT_HEAD, FragmentHead, ICMP, ICMPV6, IPV4_HEAD, IPV6_HEAD, Ipv4Head, Ipv6Head,
    Ports, SCTP, TCP, UDP, V4_OFFSET_MASK, is_link_scope,
};
use crate::scratch::{Scratch, WHOLE};
use crate::skb::Skb;
use crate::verdict::Drop;

pub const UNREACHABLE: u8 = 3;
pub const FRAG_NEEDED: u8 = 4;
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER: u8 = 12;
const LAST_ERROR6: u8 = 4;
const ECHO6: u8 = 128;
const ECHO_REPLY6: u8 = 129;
const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const LISTENER_REPORT_V2: u8 = 143;
/// Neighbour discovery has it, and nothing that a router forwarded.
const ON_LINK: u8 = 255;
/// Size of an ICMP head, after which an error quotes a packet.
const HEAD: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct IcmpHead {
    kind: u8,
    code: u8,
    check: u16,
    id: u16,
    sequence: u16,
}

/// Reads the ICMP head, and what an error is about.
#[inline(always)]
pub fn read(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let head: IcmpHead = skb.load(s.l4).ok_or(Drop(reason::CT_INVALID_HDR))?;
    s.icmp_type = head.kind;
    s.icmp_code = head.code;
    echo(s, head.kind, head.id);
    let v6 = s.proto == ICMPV6;
    let error = if v6 {
        head.kind <= LAST_ERROR6
    } else {
        matches!(head.kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER)
    };
    if error {
        // An error whose quote cannot be read, or is of a packet that whom the error goes to never
        // sent, is a packet like any other, for policy to judge.
        let _ = if v6 { quoted6(skb, s) } else { quoted4(skb, s) };
    }
    Ok(())
}

/// The identifier of an echo stands for the port of the side that asks.
#[inline(always)]
fn echo(s: &mut Scratch, kind: u8, id: u16) {
    let v6 = s.flow.proto == ICMPV6;
    if kind == (if v6 { ECHO6 } else { ECHO }) {
        s.flow.sport = id;
    } else if kind == (if v6 { ECHO_REPLY6 } else { ECHO_REPLY }) {
        s.flow.dport = id;
    }
}

#[inline(always)]
fn quoted4(skb: Skb, s: &mut Scratch) -> Option<()> {
    let l3 = s.l4 + HEAD;
    let head: Ipv4Head = skb.load(l3)?;
    let head_len = u32::from(head.version_ihl & 0xf) * 4;
    if head_len < IPV4_HEAD
        || u16::from_be(head.fragment) & V4_OFFSET_MASK != 0
        || head.saddr != s.daddr[0]
    {
        return None;
    }
    quoted_ports(skb, s, l3 + head_len, head.proto)?;
    s.flow.saddr = [head.daddr, 0, 0, 0];
    s.flow.daddr = [head.saddr, 0, 0, 0];
    s.inner_l3 = l3;
    Some(())
}

#[inline(always)]
fn quoted6(skb: Skb, s: &mut Scratch) -> Option<()> {
    let l3 = s.l4 + HEAD;
    let head: Ipv6Head = skb.load(l3)?;
    if head.saddr != s.daddr {
        return None;
    }
    let mut proto = head.next;
    let mut l4 = l3 + IPV6_HEAD;
    if proto == FRAGMENT {
        let fragment: FragmentHead = skb.load(l4)?;
        if u16::from_be(fragment.offset) & !7 != 0 {
            return None;
        }
        proto = fragment.next;
        l4 += FRAGMENT_HEAD;
    }
    quoted_ports(skb, s, l4, proto)?;
    s.flow.saddr = head.daddr;
    s.flow.daddr = head.saddr;
    s.inner_l3 = l3;
    Some(())
}

/// Reads the ports of a quoted packet, turned round.
#[inline(always)]
fn quoted_ports(skb: Skb, s: &mut Scratch, l4: u32, proto: u8) -> Option<()> {
    match proto {
        TCP | UDP | SCTP => {
            let ports: Ports = skb.load(l4)?;
            s.flow.sport = ports.destination;
            s.flow.dport = ports.source;
        }
        ICMP | ICMPV6 => {
            let head: IcmpHead = skb.load(l4)?;
            s.flow.proto = proto;
            echo(s, head.kind, head.id);
            let sport = s.flow.sport;
            s.flow.sport = s.flow.dport;
            s.flow.dport = sport;
        }
        _ => return None,
    }
    s.flow.proto = proto;
    s.inner_l4 = l4;
    Some(())
}

/// Takes an endpoint's error about a packet that did not go to the endpoint for a packet like any
/// other: endpoints are no routers, and an error passes where its connection does.
#[inline(always)]
pub fn keep_to_own(s: &mut Scratch) {
    if !s.about_another() || s.flow.saddr == s.saddr {
        return;
    }
    s.inner_l3 = 0;
    s.inner_l4 = 0;
    s.flow.saddr = s.saddr;
    s.flow.daddr = s.daddr;
    s.flow.sport = 0;
    s.flow.dport = 0;
    s.flow.proto = s.proto;
}

#[inline(always)]
fn is_icmp6(s: &Scratch) -> bool {
    s.proto == ICMPV6 && s.fragment == WHOLE
}

/// Whether the packet is neighbour discovery by a node on this link.
#[inline(always)]
pub fn is_neighbour_discovery(s: &Scratch) -> bool {
    is_icmp6(s) && s.hop_limit == ON_LINK && (ROUTER_SOLICITATION..=REDIRECT).contains(&s.icmp_type)
}

/// Whether an endpoint's packet is about its link only, so that no policy is about it: neighbour
/// discovery with the link or the router, multicast listener reports. What routers say is not for
/// endpoints to say.
#[inline(always)]
pub fn is_link_control(s: &Scratch, router: &Address) -> Result<bool, Drop> {
    if !is_icmp6(s) {
        return Ok(false);
    }
    match s.icmp_type {
        ROUTER_SOLICITATION | NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => {
            Ok(s.hop_limit == ON_LINK && (is_link_scope(s) || s.daddr == *router))
        }
        LISTENER_REPORT | LISTENER_DONE | LISTENER_REPORT_V2 => Ok(is_link_scope(s)),
        ROUTER_ADVERTISEMENT | REDIRECT | LISTENER_QUERY => Err(Drop(reason::FORBIDDEN_ICMP6)),
        _ => Ok(false),
    }
}

/// The ICMP type that a later fragment's datagram has, as far as its ports tell.
#[inline(always)]
pub fn type_of_later(s: &Scratch) -> u8 {
    let asks = s.flow.dport == 0;
    match (s.proto == ICMPV6, asks) {
        (false, true) => ECHO,
        (false, false) => ECHO_REPLY,
        (true, true) => ECHO6,
        (true, false) => ECHO_REPLY6,
    }
}
