//! Reads a packet's heads: addresses, protocol, ports.

use cilia_maps::config::NodeConfig;
use cilia_maps::{FAMILY_V4, FAMILY_V6, reason};

use crate::scratch::{FIRST, LATER, Scratch};
use crate::skb::{L3, Skb};
use crate::verdict::Drop;
use crate::{frag, icmp};

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
pub const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

pub const TCP_FIN: u8 = 1;
pub const TCP_SYN: u8 = 2;
pub const TCP_RST: u8 = 4;
pub const TCP_ACK: u8 = 16;
const TCP_FLAGS_OFFSET: u32 = 13;

pub const IPV4_HEAD: u32 = 20;
pub const IPV6_HEAD: u32 = 40;
pub const FRAGMENT_HEAD: u32 = 8;
pub const V4_OFFSET_MASK: u16 = 0x1fff;
const V4_MORE: u16 = 0x2000;
const V6_MORE: u16 = 1;
/// Extension heads before the protocol that are looked through.
const MAX_EXTENSIONS: u32 = 6;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ipv4Head {
    pub version_ihl: u8,
    pub tos: u8,
    pub len: u16,
    pub id: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub proto: u8,
    pub check: u16,
    pub saddr: u32,
    pub daddr: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ipv6Head {
    pub version: u32,
    pub payload: u16,
    pub next: u8,
    pub hop_limit: u8,
    pub saddr: [u32; 4],
    pub daddr: [u32; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FragmentHead {
    pub next: u8,
    pub reserved: u8,
    pub offset: u16,
    pub id: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

/// Whether the packet is of a family that the node does without.
#[inline(always)]
pub fn is_off(skb: Skb, config: &NodeConfig) -> bool {
    match skb.protocol() {
        ETH_IPV4 => config.flags & NodeConfig::IPV4 == 0,
        ETH_IPV6 => config.flags & NodeConfig::IPV6 == 0,
        _ => false,
    }
}

/// Reads the whole packet: addresses, then what conntrack and policy need.
#[inline(always)]
pub fn packet(skb: Skb, s: &mut Scratch, config: &NodeConfig) -> Result<(), Drop> {
    read(skb, s, config.flags)
}

#[inline(always)]
fn read(skb: Skb, s: &mut Scratch, flags: u32) -> Result<(), Drop> {
    addresses(skb, s)?;
    s.flow.saddr = s.saddr;
    s.flow.daddr = s.daddr;
    s.flow.proto = s.proto;
    s.flow.sport = 0;
    s.flow.dport = 0;
    if s.fragment == LATER {
        return frag::recall(s);
    }
    transport(skb, s, flags)?;
    if s.fragment == FIRST {
        frag::remember(s);
    }
    Ok(())
}

/// As [`packet`], of any protocol: what has no ports is tracked by its addresses.
#[inline(always)]
pub fn any_packet(skb: Skb, s: &mut Scratch) -> Result<(), Drop> {
    read(skb, s, NodeConfig::SCTP | NodeConfig::EXTENDED_PROTOCOLS)
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
                s.fragment_next = head.next;
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
    // Extension heads of a later fragment were in the first one.
    if s.fragment != LATER && is_extension(next) {
        return Err(Drop(reason::INVALID_EXTHDR));
    }
    s.proto = next;
    s.l4 = offset;
    Ok(())
}

/// Whether a number that a protocol's is expected for means an extension head.
#[inline(always)]
pub fn is_extension(next: u8) -> bool {
    matches!(next, FRAGMENT | HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION)
}

#[inline(always)]
fn transport(skb: Skb, s: &mut Scratch, flags: u32) -> Result<(), Drop> {
    match s.proto {
        SCTP if flags & NodeConfig::SCTP == 0 => without_ports(flags),
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
        ICMP | ICMPV6 => icmp::read(skb, s),
        _ => without_ports(flags),
    }
}

/// Without ports, one connection for all between two addresses, where that is wanted.
#[inline(always)]
fn without_ports(flags: u32) -> Result<(), Drop> {
    if flags & NodeConfig::EXTENDED_PROTOCOLS == 0 {
        return Err(Drop(reason::CT_UNKNOWN_PROTO));
    }
    Ok(())
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

/// Whether the destination is a group of hosts.
#[inline(always)]
pub fn is_multicast(s: &Scratch) -> bool {
    let [first, ..] = s.daddr[0].to_ne_bytes();
    if s.v6() { first == 0xff } else { first >= 224 }
}
