//! Reads a packet's heads: addresses, protocol, ports, and what an ICMP error is about.

use cilia_maps::{Address, FAMILY_V4, FAMILY_V6, reason};

use crate::frag;
use crate::scratch::{FIRST, LATER, Scratch, WHOLE};
use crate::skb::{L3, Skb};
use crate::verdict::Drop;

/// `EtherType`s in network byte order.
pub const ETH_IPV4: u32 = 0x0800_u16.to_be() as u32;
pub const ETH_IPV6: u32 = 0x86dd_u16.to_be() as u32;
pub const ETH_ARP: u32 = 0x0806_u16.to_be() as u32;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

pub const TCP_FIN: u8 = 1;
pub const TCP_SYN: u8 = 2;
pub const TCP_RST: u8 = 4;
pub const TCP_ACK: u8 = 16;
const TCP_FLAGS_OFFSET: u32 = 13;

pub const ICMP_UNREACHABLE: u8 = 3;
pub const ICMP_FRAG_NEEDED: u8 = 4;
const ICMP_ECHO: u8 = 8;
const ICMP_ECHO_REPLY: u8 = 0;
const ICMP_TIME_EXCEEDED: u8 = 11;
const ICMP_PARAMETER: u8 = 12;
const ICMP6_LAST_ERROR: u8 = 4;
const ICMP6_ECHO: u8 = 128;
const ICMP6_ECHO_REPLY: u8 = 129;
const ICMP6_FIRST_LISTENER: u8 = 130;
const ICMP6_LAST_LISTENER: u8 = 132;
const ICMP6_FIRST_ND: u8 = 133;
const ICMP6_LAST_ND: u8 = 137;
const ICMP6_LISTENER_V2: u8 = 143;
/// Neighbour discovery has it, and nothing that a router forwarded.
const ON_LINK: u8 = 255;
/// Size of an ICMP head, after which an error quotes a packet.
const ICMP_HEAD: u32 = 8;

const IPV4_HEAD: u32 = 20;
const IPV6_HEAD: u32 = 40;
const FRAGMENT_HEAD: u32 = 8;
const V4_OFFSET_MASK: u16 = 0x1fff;
const V4_MORE: u16 = 0x2000;
const V6_MORE: u16 = 1;
/// Extension heads before the protocol that are looked through.
const MAX_EXTENSIONS: u32 = 6;

#[repr(C)]
#[derive(Clone, Copy)]
struct Ipv4Head {
    version_ihl: u8,
    tos: u8,
    len: u16,
    id: u16,
    fragment: u16,
    ttl: u8,
    proto: u8,
    check: u16,
    saddr: u32,
    daddr: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Ipv6Head {
    version: u32,
    payload: u16,
    next: u8,
    hop_limit: u8,
    saddr: [u32; 4],
    daddr: [u32; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FragmentHead {
    next: u8,
    reserved: u8,
    offset: u16,
    id: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct IcmpHead {
    kind: u8,
    code: u8,
    check: u16,
    id: u16,
    sequence: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Ports {
    source: u16,
    destination: u16,
}

/// Reads the whole packet: addresses, then what conntrack and policy need.
#[inline(always)]
pub fn packet(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    addresses(skb, s)?;
    s.flow.saddr = s.saddr;
    s.flow.daddr = s.daddr;
    s.flow.proto = s.proto;
    s.flow.sport = 0;
    s.flow.dport = 0;
    if s.fragment == LATER {
        return frag::recall(s);
    }
    transport(skb, s)?;
    if s.fragment == FIRST {
        frag::remember(s);
    }
    Ok(())
}

/// Reads addresses and protocol; notes where the protocol's head is.
#[inline(always)]
pub fn addresses(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    match skb.protocol() {
        ETH_IPV4 => ipv4(skb, s),
        ETH_IPV6 => ipv6(skb, s),
        _ => Err(Drop(reason::UNKNOWN_L3)),
    }
}

#[inline(always)]
fn ipv4(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let head: Ipv4Head = skb.load(L3).ok_or(Drop(reason::INVALID))?;
    let head_len = u32::from(head.version_ihl & 0xf) * 4;
    if head.version_ihl >> 4 != 4 || head_len < IPV4_HEAD {
        return Err(Drop(reason::INVALID));
    }
    s.family = FAMILY_V4;
    s.saddr = [head.saddr, 0, 0, 0];
    s.daddr = [head.daddr, 0, 0, 0];
    s.proto = head.proto;
    s.hop_limit = head.ttl;
    s.l4 = L3 + head_len;
    let fragment = u16::from_be(head.fragment);
    if fragment & V4_OFFSET_MASK != 0 {
        s.fragment = LATER;
    } else if fragment & V4_MORE != 0 {
        s.fragment = FIRST;
    }
    s.frag4_key.id = head.id;
    Ok(())
}

#[inline(always)]
fn ipv6(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let head: Ipv6Head = skb.load(L3).ok_or(Drop(reason::INVALID))?;
    s.family = FAMILY_V6;
    s.saddr = head.saddr;
    s.daddr = head.daddr;
    s.hop_limit = head.hop_limit;
    let mut next = head.next;
    let mut offset = L3 + IPV6_HEAD;
    for _ in 0..MAX_EXTENSIONS {
        match next {
            FRAGMENT => {
                let head: FragmentHead = skb.load(offset).ok_or(Drop(reason::INVALID_EXTHDR))?;
                let place = u16::from_be(head.offset);
                // A packet that says it is its own only fragment is whole.
                if place & !7 != 0 {
                    s.fragment = LATER;
                } else if place & V6_MORE != 0 {
                    s.fragment = FIRST;
                }
                s.frag6_key.id = head.id;
                next = head.next;
                offset += FRAGMENT_HEAD;
                if s.fragment == LATER {
                    // What follows is payload, extension heads included.
                    break;
                }
            }
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let head: [u8; 2] = skb.load(offset).ok_or(Drop(reason::INVALID_EXTHDR))?;
                next = head[0];
                offset += (u32::from(head[1]) + 1) * 8;
            }
            AUTHENTICATION => {
                let head: [u8; 2] = skb.load(offset).ok_or(Drop(reason::INVALID_EXTHDR))?;
                next = head[0];
                offset += (u32::from(head[1]) + 2) * 4;
            }
            _ => break,
        }
    }
    if matches!(next, FRAGMENT | HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION) {
        return Err(Drop(reason::INVALID_EXTHDR));
    }
    s.proto = next;
    s.l4 = offset;
    Ok(())
}

#[inline(always)]
fn transport(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    match s.proto {
        TCP | UDP | SCTP => {
            let ports: Ports = skb.load(s.l4).ok_or(Drop(reason::CT_INVALID_HDR))?;
            s.flow.sport = ports.source;
            s.flow.dport = ports.destination;
            if s.proto == TCP {
                let flags = skb.load(s.l4 + TCP_FLAGS_OFFSET);
                s.tcp_flags = flags.ok_or(Drop(reason::CT_INVALID_HDR))?;
            }
            Ok(())
        }
        ICMP | ICMPV6 => icmp(skb, s),
        _ => Err(Drop(reason::CT_UNKNOWN_PROTO)),
    }
}

#[inline(always)]
fn icmp(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    let head: IcmpHead = skb.load(s.l4).ok_or(Drop(reason::CT_INVALID_HDR))?;
    s.icmp_type = head.kind;
    s.icmp_code = head.code;
    echo(s, head.kind, head.id);
    let v6 = s.proto == ICMPV6;
    let error = if v6 {
        head.kind <= ICMP6_LAST_ERROR
    } else {
        matches!(head.kind, ICMP_UNREACHABLE | ICMP_TIME_EXCEEDED | ICMP_PARAMETER)
    };
    if error {
        // An error whose quote cannot be read is a packet like any other, for policy to judge.
        let _ = if v6 { quoted6(skb, s) } else { quoted4(skb, s) };
    }
    Ok(())
}

/// The identifier of an echo stands for the port of the side that asks.
#[inline(always)]
fn echo(s: &mut Scratch, kind: u8, id: u16) {
    let v6 = s.flow.proto == ICMPV6;
    if kind == (if v6 { ICMP6_ECHO } else { ICMP_ECHO }) {
        s.flow.sport = id;
    } else if kind == (if v6 { ICMP6_ECHO_REPLY } else { ICMP_ECHO_REPLY }) {
        s.flow.dport = id;
    }
}

#[inline(always)]
fn quoted4(skb: Skb, s: &mut Scratch) -> Option<()> {
    let l3 = s.l4 + ICMP_HEAD;
    let head: Ipv4Head = skb.load(l3)?;
    let head_len = u32::from(head.version_ihl & 0xf) * 4;
    if head_len < IPV4_HEAD || u16::from_be(head.fragment) & V4_OFFSET_MASK != 0 {
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
    let l3 = s.l4 + ICMP_HEAD;
    let head: Ipv6Head = skb.load(l3)?;
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

/// Whether the packet is neighbour discovery by a node on this link.
#[inline(always)]
pub fn is_neighbour_discovery(s: &Scratch) -> bool {
    is_icmp6(s)
        && s.hop_limit == ON_LINK
        && s.icmp_type >= ICMP6_FIRST_ND
        && s.icmp_type <= ICMP6_LAST_ND
}

/// Whether the packet is about this link only, so that no policy is about it: neighbour discovery
/// with the link or the router, multicast listener reports.
#[inline(always)]
pub fn is_link_control(s: &Scratch, router: &Address) -> bool {
    let listener = s.icmp_type == ICMP6_LISTENER_V2
        || (s.icmp_type >= ICMP6_FIRST_LISTENER && s.icmp_type <= ICMP6_LAST_LISTENER);
    (is_neighbour_discovery(s) && (is_link_scope(s) || s.daddr == *router))
        || (is_icmp6(s) && listener && is_link_scope(s))
}

#[inline(always)]
fn is_icmp6(s: &Scratch) -> bool {
    s.proto == ICMPV6 && s.fragment == WHOLE
}

/// Whether the destination is an address that routers do not forward to.
#[inline(always)]
pub fn is_link_scope(s: &Scratch) -> bool {
    let [a, b, c, d] = s.daddr[0].to_ne_bytes();
    if s.v6() {
        (a == 0xff && b & 0xf <= 2) || (a == 0xfe && b & 0xc0 == 0x80)
    } else {
        (a == 224 && b == 0 && c == 0) || (a == 169 && b == 254) || a & b & c & d == 255
    }
}

/// The ICMP type that a later fragment's datagram has, as far as its ports tell.
#[inline(always)]
pub fn icmp_type_of_later(s: &Scratch) -> u8 {
    let asks = s.flow.dport == 0;
    match (s.proto == ICMPV6, asks) {
        (false, true) => ICMP_ECHO,
        (false, false) => ICMP_ECHO_REPLY,
        (true, true) => ICMP6_ECHO,
        (true, false) => ICMP6_ECHO_REPLY,
    }
}
