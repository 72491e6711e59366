//! Connections: what a packet belongs to, how long that lives, and how a new one is entered.

use cilia_maps::config::NodeConfig;
use cilia_maps::conntrack::{CtEntry, entry_flags, flags};
use cilia_maps::reason;

use crate::maps;
use crate::parse::{TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use crate::scratch::Scratch;
use crate::skb;
use crate::verdict::Drop;

/// No connection is known.
pub const NEW: u32 = 0;
/// A packet of the side that opened the connection.
pub const ESTABLISHED: u32 = 1;
/// A packet of the other side.
pub const REPLY: u32 = 2;
/// An ICMP error about the connection.
pub const RELATED: u32 = 3;

const CLOSING: u16 = entry_flags::RX_CLOSING | entry_flags::TX_CLOSING;
const SEEN: u8 = TCP_FIN | TCP_SYN | TCP_RST;

/// From or to an endpoint, as an entry's flag for its first packet.
pub const EGRESS: u8 = flags::OUT;
pub const INGRESS: u8 = flags::IN;

/// Fills the key under which the connection is found that the flow replies to.
#[inline(always)]
fn fill_reply_key(s: &mut Scratch, flags: u8) {
    if s.v6() {
        s.key6.daddr = s.flow.daddr;
        s.key6.saddr = s.flow.saddr;
        s.key6.dport = s.flow.sport;
        s.key6.sport = s.flow.dport;
        s.key6.nexthdr = s.flow.proto;
        s.key6.flags = flags;
    } else {
        s.key4.daddr = s.flow.daddr[0];
        s.key4.saddr = s.flow.saddr[0];
        s.key4.dport = s.flow.sport;
        s.key4.sport = s.flow.dport;
        s.key4.nexthdr = s.flow.proto;
        s.key4.flags = flags;
    }
}

/// Fills the key of the connection that the flow's packet opens.
#[inline(always)]
fn fill_key(s: &mut Scratch, flags: u8) {
    if s.v6() {
        s.key6.daddr = s.flow.saddr;
        s.key6.saddr = s.flow.daddr;
        s.key6.dport = s.flow.dport;
        s.key6.sport = s.flow.sport;
        s.key6.nexthdr = s.flow.proto;
        s.key6.flags = flags;
    } else {
        s.key4.daddr = s.flow.saddr[0];
        s.key4.saddr = s.flow.daddr[0];
        s.key4.dport = s.flow.dport;
        s.key4.sport = s.flow.sport;
        s.key4.nexthdr = s.flow.proto;
        s.key4.flags = flags;
    }
}

/// The entry of the key that was filled, if it has not expired.
#[inline(always)]
fn find(s: &Scratch) -> Option<&'static mut CtEntry> {
    let entry = match (s.v6(), s.flow.proto == TCP) {
        (false, true) => maps::get_mut(&maps::CT_TCP4, (&raw const s.key4).cast()),
        (false, false) => maps::get_mut(&maps::CT_ANY4, (&raw const s.key4).cast()),
        (true, true) => maps::get_mut(&maps::CT_TCP6, (&raw const s.key6).cast()),
        (true, false) => maps::get_mut(&maps::CT_ANY6, (&raw const s.key6).cast()),
    };
    match entry {
        Some(entry) if entry.lifetime >= s.ct.now => Some(entry),
        _ => None,
    }
}

/// Enters `s.ct_entry` under the key that was filled.
#[inline(always)]
fn enter(s: &Scratch) -> bool {
    let value = &raw const s.ct_entry;
    match (s.v6(), s.flow.proto == TCP) {
        (false, true) => maps::set(&maps::CT_TCP4, (&raw const s.key4).cast(), value),
        (false, false) => maps::set(&maps::CT_ANY4, (&raw const s.key4).cast(), value),
        (true, true) => maps::set(&maps::CT_TCP6, (&raw const s.key6).cast(), value),
        (true, false) => maps::set(&maps::CT_ANY6, (&raw const s.key6).cast(), value),
    }
}

#[inline(always)]
fn opens(s: &Scratch) -> bool {
    s.flow.proto == TCP && s.tcp_flags & TCP_SYN != 0 && s.tcp_flags & TCP_ACK == 0
}

/// Notes a packet in its connection's entry.
#[inline(always)]
fn touch(s: &mut Scratch, config: &NodeConfig, entry: &mut CtEntry, reply: bool) {
    let mut seen_new = false;
    let mut life = config.lives.any;
    let mut closed = false;
    if s.flow.proto == TCP {
        let told = s.tcp_flags & SEEN;
        let before = if reply { entry.rx_flags_seen } else { entry.tx_flags_seen };
        if before | told != before {
            seen_new = u32::from(told & !before) & config.report_flags != 0;
            if reply {
                entry.rx_flags_seen = before | told;
            } else {
                entry.tx_flags_seen = before | told;
            }
        }
        if s.tcp_flags & TCP_SYN == 0 && entry.flags & entry_flags::SEEN_NON_SYN == 0 {
            entry.flags |= entry_flags::SEEN_NON_SYN;
        }
        if s.tcp_flags & (TCP_FIN | TCP_RST) != 0 {
            let unanswered = entry.rx_flags_seen & entry.tx_flags_seen & TCP_SYN == 0;
            entry.flags |= if s.tcp_flags & TCP_RST != 0 && unanswered {
                CLOSING
            } else if reply {
                entry_flags::RX_CLOSING
            } else {
                entry_flags::TX_CLOSING
            };
        }
        closed = entry.flags & CLOSING == CLOSING;
        life = if closed {
            config.lives.tcp_fin
        } else if entry.flags & entry_flags::SEEN_NON_SYN != 0 {
            config.lives.tcp
        } else {
            config.lives.tcp_syn
        };
    }
    let until = s.ct.now + life;
    // Once closed, packets that linger do not keep the entry.
    if entry.lifetime != until && (!closed || entry.lifetime > until) {
        entry.lifetime = until;
    }
    let last = if reply { entry.last_rx_report } else { entry.last_tx_report };
    if seen_new || s.ct.now.wrapping_sub(last) >= config.report_interval {
        s.ct.report = 1;
        if reply {
            entry.last_rx_report = s.ct.now;
        } else {
            entry.last_tx_report = s.ct.now;
        }
    }
}

/// Looks up the flow at an endpoint: [`EGRESS`] for a packet from it, [`INGRESS`] for one to it.
#[inline(never)]
pub fn lookup(s: &mut Scratch, direction: u32) -> u32 {
    s.ct.now = skb::seconds();
    s.ct.rev_nat_index = 0;
    s.ct.flags = 0;
    s.ct.reply = 0;
    s.ct.report = 1;
    let Some(config) = maps::config() else { return NEW };
    let own = direction as u8 & flags::IN;
    fill_reply_key(s, own ^ flags::IN);
    if let Some(entry) = find(s) {
        s.ct.rev_nat_index = entry.rev_nat_index;
        s.ct.flags = entry.flags;
        s.ct.reply = 1;
        if s.about_another() {
            return RELATED;
        }
        s.ct.report = 0;
        touch(s, config, entry, true);
        return REPLY;
    }
    fill_key(s, own);
    if let Some(entry) = find(s) {
        if opens(s) && entry.flags & CLOSING != 0 {
            // The same ports again, for another connection.
            return NEW;
        }
        s.ct.rev_nat_index = entry.rev_nat_index;
        s.ct.flags = entry.flags;
        if s.about_another() {
            return RELATED;
        }
        s.ct.report = 0;
        touch(s, config, entry, false);
        return ESTABLISHED;
    }
    NEW
}

#[inline(always)]
fn fill_entry(s: &mut Scratch, config: &NodeConfig) {
    let tcp = s.flow.proto == TCP;
    let later = tcp && s.tcp_flags & TCP_SYN == 0;
    let life = match (tcp, later) {
        (false, _) => config.lives.any,
        (true, false) => config.lives.tcp_syn,
        (true, true) => config.lives.tcp,
    };
    let mut bits = 0;
    if later {
        bits |= entry_flags::SEEN_NON_SYN;
    }
    if s.tunnel != 0 {
        bits |= entry_flags::TUNNEL;
    }
    if s.loopback != 0 {
        bits |= entry_flags::LB_LOOPBACK;
    }
    s.ct_entry.reserved0 = 0;
    s.ct_entry.backend_id = 0;
    s.ct_entry.packets = 0;
    s.ct_entry.bytes = 0;
    s.ct_entry.lifetime = s.ct.now + life;
    s.ct_entry.flags = bits;
    s.ct_entry.rev_nat_index = s.rev_nat_index;
    s.ct_entry.reserved1 = 0;
    s.ct_entry.tx_flags_seen = if tcp { s.tcp_flags & SEEN } else { 0 };
    s.ct_entry.rx_flags_seen = 0;
    s.ct_entry.src_sec_id = s.src_label;
    s.ct_entry.last_tx_report = s.ct.now;
    s.ct_entry.last_rx_report = 0;
}

/// Enters the connection that the packet opens, after [`lookup`] did not find it. An ICMP error
/// opens none.
#[inline(always)]
pub fn create(s: &mut Scratch, direction: u8) -> Result<(), Drop> {
    if s.about_another() {
        return Ok(());
    }
    if enter_new(s, u32::from(direction)) == 0 {
        Err(Drop(reason::CT_CREATE_FAILED))
    } else {
        Ok(())
    }
}

#[inline(never)]
fn enter_new(s: &mut Scratch, direction: u32) -> u32 {
    let Some(config) = maps::config() else { return 0 };
    fill_key(s, direction as u8);
    fill_entry(s, config);
    u32::from(enter(s))
}

/// The backend that a service's connection has, and 0 if it must be chosen: it is new, begins
/// again, or was with another service that had this address before. Leaves the key filled for [`enter_service`].
#[inline(never)]
pub fn lookup_service(s: &mut Scratch) -> u32 {
    s.ct.now = skb::seconds();
    fill_key(s, flags::SERVICE);
    let Some(config) = maps::config() else { return 0 };
    let Some(entry) = find(s) else { return 0 };
    if entry.rev_nat_index != s.rev_nat_index || (opens(s) && entry.flags & CLOSING != 0) {
        return 0;
    }
    let tcp = s.flow.proto == TCP;
    if tcp && s.tcp_flags & (TCP_FIN | TCP_RST) != 0 {
        entry.flags |= CLOSING;
    }
    let life = match (tcp, entry.flags & CLOSING != 0) {
        (false, _) => config.lives.service_any,
        (true, true) => config.lives.tcp_fin,
        (true, false) => config.lives.service_tcp,
    };
    let until = s.ct.now + life;
    if entry.lifetime != until {
        entry.lifetime = until;
    }
    entry.backend_id as u32
}

/// Enters a service's connection with the backend chosen for it.
#[inline(always)]
pub fn enter_service(s: &mut Scratch, backend: u32) -> Result<(), Drop> {
    let Some(config) = maps::config() else { return Err(Drop(reason::NO_CONFIG)) };
    fill_key(s, flags::SERVICE);
    fill_entry(s, config);
    s.ct_entry.backend_id = backend.into();
    if enter(s) { Ok(()) } else { Err(Drop(reason::CT_CREATE_FAILED)) }
}
