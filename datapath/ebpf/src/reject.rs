//! Answers a packet with an ICMP error, port unreachable, where nobody is there to take it.

use cilia_maps::endpoint::EndpointInfo;
use cilia_maps::{Address, reason};

use crate::deliver;
use crate::parse::{ICMP, ICMPV6};
use crate::scratch::{LATER, Scratch};
use crate::skb::{self, L3, Skb};
use crate::verdict::{Drop, Outcome, Verdict};

/// Bytes of the packet that an error quotes: its IP head without options, and eight of L4.
const QUOTE4: usize = 28;
const QUOTE6: usize = 48;
const HEAD4: usize = 20;
const HEAD6: usize = 40;
const VERSION4: [u8; 2] = [0x45, 0];
const VERSION6: [u8; 4] = [0x60, 0, 0, 0];
const TTL: u8 = 64;
/// Type and code.
const UNREACHABLE4: [u8; 2] = [3, 3];
const UNREACHABLE6: [u8; 2] = [1, 4];

/// An error over IPv4.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Error4 {
    version: [u8; 2],
    len: u16,
    id: u32,
    ttl: [u8; 2],
    check: u16,
    saddr: u32,
    daddr: u32,
    icmp: Icmp<QUOTE4>,
}

/// An error over IPv6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Error6 {
    version: [u8; 4],
    len: u16,
    next: [u8; 2],
    saddr: Address,
    daddr: Address,
    icmp: Icmp<QUOTE6>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Icmp<const N: usize> {
    kind: [u8; 2],
    check: u16,
    unused: u32,
    quote: [u8; N],
}

/// What the checksum over IPv6 covers besides the packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pseudo6 {
    len: u32,
    next: [u8; 4],
}

/// Whether an error about the packet would tell anything: its ports follow a head without options.
#[inline(always)]
pub fn is_answerable(s: &Scratch) -> bool {
    let head = if s.v6() { HEAD6 } else { HEAD4 };
    s.fragment != LATER && s.l4 == L3 + head as u32
}

/// Tells the endpoint that nobody listens where it sent the packet.
#[inline(always)]
pub fn port_unreachable(skb: Skb, s: &mut Scratch, sender: &EndpointInfo) -> Outcome {
    let done = if s.v6() { error6(skb, s) } else { error4(skb, s) };
    if done == 0 || !deliver::set_macs(skb, sender) {
        return Err(Drop(reason::WRITE_ERROR));
    }
    Ok(Verdict::redirect(skb.redirect_peer(sender.ifindex)))
}

#[inline(never)]
fn error4(skb: Skb, s: &mut Scratch) -> u32 {
    const LEN: usize = size_of::<Error4>();
    const _: () = assert!(LEN == HEAD4 + 8 + QUOTE4);
    let Some(quote) = skb.load(L3) else { return 0 };
    let error = &mut s.error4;
    error.icmp.quote = quote;
    error.version = VERSION4;
    error.len = (LEN as u16).to_be();
    error.id = 0;
    error.ttl = [TTL, ICMP];
    error.check = 0;
    error.saddr = s.daddr[0];
    error.daddr = s.saddr[0];
    error.icmp.kind = UNREACHABLE4;
    error.icmp.check = 0;
    error.icmp.unused = 0;
    error.check = skb::fold(skb::sum::<[u8; HEAD4]>((&raw const *error).cast(), 0));
    error.icmp.check = skb::fold(skb::sum(&raw const error.icmp, 0));
    u32::from(skb.resize(L3 + LEN as u32) && skb.store(L3, &raw const *error))
}

#[inline(never)]
fn error6(skb: Skb, s: &mut Scratch) -> u32 {
    const LEN: usize = size_of::<Error6>();
    const _: () = assert!(LEN == HEAD6 + 8 + QUOTE6);
    let Some(quote) = skb.load(L3) else { return 0 };
    let error = &mut s.error6;
    error.icmp.quote = quote;
    error.version = VERSION6;
    error.len = ((LEN - HEAD6) as u16).to_be();
    error.next = [ICMPV6, TTL];
    error.saddr = s.daddr;
    error.daddr = s.saddr;
    error.icmp.kind = UNREACHABLE6;
    error.icmp.check = 0;
    error.icmp.unused = 0;
    s.pseudo6.len = ((LEN - HEAD6) as u32).to_be();
    s.pseudo6.next = [0, 0, 0, ICMPV6];
    let sum = skb::sum(&raw const s.pseudo6, 0);
    let sum = skb::sum(&raw const error.saddr, sum);
    let sum = skb::sum(&raw const error.daddr, sum);
    error.icmp.check = skb::fold(skb::sum(&raw const error.icmp, sum));
    u32::from(skb.resize(L3 + LEN as u32) && skb.store(L3, &raw const *error))
}
