//! Writes an event as the kernel does: a head in Cilium's layout, and the packet's first bytes behind it.
//!
//! The inverse of [`super::decode`], for programs that read Cilium's records. That a packet came out of a tunnel
//! is left out: there the flag says that the bytes begin with the tunnel's heads, and ours begin behind them.

use cilia_maps::Plain;
use cilia_maps::event::{self as kernel, EventHeader, trace_reason, verdict_bits};
use cilia_maps::policy::matched;

use super::{Direction, DropEvent, Event, Matched, Packet, TraceEvent, TraceReason, VerdictEvent};
use crate::address;

/// Versions of the layouts: 48, 56 and 40 bytes of head.
const VERSION_DROP: u16 = 3;
const VERSION_TRACE: u16 = 2;
const VERSION_VERDICT: u16 = 1;

/// The record that says this.
pub fn encode(event: &Event) -> Vec<u8> {
    match event {
        Event::Drop(drop) => record(&dropped(drop), &drop.packet),
        Event::Trace(trace) => record(&traced(trace), &trace.packet),
        Event::Verdict(verdict) => record(&judged(verdict), &verdict.packet),
    }
}

fn record<H: Plain>(head: &H, packet: &Packet) -> Vec<u8> {
    [head.bytes(), &packet.bytes].concat()
}

fn header(packet: &Packet, kind: u8, subtype: u8, version: u16) -> EventHeader {
    EventHeader {
        kind,
        subtype,
        source: packet.endpoint,
        hash: packet.hash,
        len_orig: packet.length,
        len_cap: u16::try_from(packet.bytes.len()).unwrap_or(u16::MAX),
        version,
    }
}

fn dropped(drop: &DropEvent) -> kernel::DropEvent {
    kernel::DropEvent {
        header: header(&drop.packet, kernel::TYPE_DROP, drop.reason, VERSION_DROP),
        src_label: drop.source_identity,
        dst_label: drop.destination_identity,
        dst_id: drop.destination_endpoint,
        ext_error: drop.ext_error,
        ifindex: drop.ifindex,
        flags: family(&drop.packet),
        ..kernel::DropEvent::default()
    }
}

fn traced(trace: &TraceEvent) -> kernel::TraceEvent {
    kernel::TraceEvent {
        header: header(&trace.packet, kernel::TYPE_TRACE, trace.point, VERSION_TRACE),
        src_label: trace.source_identity,
        dst_label: trace.destination_identity,
        dst_id: trace.destination_endpoint,
        reason: match trace.reason {
            TraceReason::New => trace_reason::NEW,
            TraceReason::Established => trace_reason::ESTABLISHED,
            TraceReason::Reply => trace_reason::REPLY,
            TraceReason::Related => trace_reason::RELATED,
            TraceReason::Unknown => trace_reason::UNKNOWN,
        },
        flags: family(&trace.packet),
        ifindex: trace.ifindex,
        orig_ip: trace.original_source.map_or([0; 4], |source| address::encode(source).1),
        ip_trace_id: 0,
    }
}

fn judged(verdict: &VerdictEvent) -> kernel::VerdictEvent {
    let mut bits = match verdict.direction {
        Direction::Ingress => verdict_bits::INGRESS,
        Direction::Egress => verdict_bits::EGRESS,
    };
    if verdict.packet.ipv6 {
        bits |= verdict_bits::IPV6;
    }
    if verdict.audited {
        bits |= verdict_bits::AUDITED;
    }
    let matched = match verdict.matched {
        Matched::Nothing => matched::NONE,
        Matched::Identity => matched::L3_ONLY,
        Matched::IdentityAndPort => matched::L3_L4,
        Matched::Port => matched::L4_ONLY,
        Matched::All => matched::ALL,
        Matched::IdentityAndProtocol => matched::L3_PROTO,
        Matched::Protocol => matched::PROTO_ONLY,
    };
    kernel::VerdictEvent {
        header: header(&verdict.packet, kernel::TYPE_VERDICT, 0, VERSION_VERDICT),
        remote_label: verdict.remote_identity,
        verdict: -i32::from(verdict.denied.unwrap_or(0)),
        dst_port: verdict.port,
        proto: verdict.proto,
        bits: bits | matched << verdict_bits::MATCH_SHIFT,
        cookie: verdict.cookie,
        ..kernel::VerdictEvent::default()
    }
}

fn family(packet: &Packet) -> u8 {
    if packet.ipv6 { kernel::flags::IPV6 } else { 0 }
}
