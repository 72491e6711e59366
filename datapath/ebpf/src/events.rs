//! Tells user space of drops, verdicts and traces, in Cilium's layouts, over the ring buffer.

use core::ffi::c_void;
use core::ptr::from_ref;

use aya_ebpf::helpers::{bpf_ringbuf_reserve, bpf_ringbuf_submit};
use cilia_maps::config::NodeConfig;
use cilia_maps::event::{
    CAPTURE, DropEvent, EventHeader, TYPE_DROP, TYPE_TRACE, TYPE_VERDICT, TraceEvent, VerdictEvent,
    flags, verdict_bits,
};

use crate::scratch::{FROM_TUNNEL, Scratch};
use crate::skb::Skb;
use crate::{maps, policy};

const VERSION_DROP: u16 = 3;
const VERSION_TRACE: u16 = 2;
const VERSION_VERDICT: u16 = 1;

/// An event's head and room for the packet.
#[repr(C)]
struct Record<H> {
    head: H,
    packet: [u8; CAPTURE],
}

/// Room in the ring; counts a loss if there is none.
#[inline(always)]
fn reserve<H>() -> Option<*mut Record<H>> {
    let size = size_of::<Record<H>>() as u64;
    // SAFETY: the map is this object's ring; the verifier holds the program to the size and to
    // handing the record back.
    let record = unsafe { bpf_ringbuf_reserve(from_ref(&maps::EVENTS).cast_mut().cast(), size, 0) };
    if record.is_null() {
        if let Some(lost) = maps::get_mut(&maps::EVENTS_LOST, &0) {
            *lost += 1;
        }
        return None;
    }
    Some(record.cast())
}

/// Copies the packet in and hands the record over.
#[inline(always)]
fn submit<H>(skb: Skb, record: *mut Record<H>) {
    // SAFETY: `record` came from `reserve` and has room for `CAPTURE` bytes after its head.
    unsafe {
        let to: *mut c_void = (&raw mut (*record).packet).cast();
        let len = skb.len();
        if len >= CAPTURE as u32 {
            skb.capture(to, CAPTURE as u32);
        } else {
            let len = len & (CAPTURE as u32 - 1);
            if len > 0 {
                skb.capture(to, len);
            }
        }
        bpf_ringbuf_submit(record.cast(), 0);
    }
}

#[inline(always)]
fn header(skb: Skb, s: &Scratch, kind: u8, subtype: u8, version: u16) -> EventHeader {
    let len = skb.len();
    EventHeader {
        kind,
        subtype,
        source: s.endpoint,
        hash: skb.hash(),
        len_orig: len,
        len_cap: if len > CAPTURE as u32 { CAPTURE as u16 } else { len as u16 },
        version,
    }
}

#[inline(always)]
fn packet_flags(s: &Scratch) -> u8 {
    let mut bits = 0;
    if s.v6() {
        bits |= flags::IPV6;
    }
    if s.tunnel == FROM_TUNNEL {
        bits |= flags::VXLAN;
    }
    bits
}

/// Tells of a drop.
#[inline(never)]
pub fn dropped(skb: Skb, s: &Scratch, reason: u32) -> u32 {
    let Some(record) = reserve::<DropEvent>() else { return 0 };
    let head = DropEvent {
        header: header(skb, s, TYPE_DROP, reason as u8, VERSION_DROP),
        src_label: s.src_label,
        dst_label: s.dst_label,
        dst_id: s.dst_id,
        line: 0,
        file: 0,
        ext_error: 0,
        ifindex: skb.ifindex(),
        flags: packet_flags(s),
        pad: [0; 3],
        ip_trace_id: 0,
    };
    // SAFETY: the record is ours until it is submitted.
    unsafe { (*record).head = head };
    submit(skb, record);
    0
}

/// Tells of a policy verdict. `how`: bit 0 egress, bit 1 audited.
#[inline(never)]
pub fn judged(skb: Skb, s: &Scratch, how: u32, peer: u32, denied: u32) -> u32 {
    let Some(record) = reserve::<VerdictEvent>() else { return 0 };
    let mut bits = if how & u32::from(policy::EGRESS) != 0 {
        verdict_bits::EGRESS
    } else {
        verdict_bits::INGRESS
    };
    if s.v6() {
        bits |= verdict_bits::IPV6;
    }
    bits |= (s.policy.matched & verdict_bits::MATCH_MASK) << verdict_bits::MATCH_SHIFT;
    if how & 2 != 0 {
        bits |= verdict_bits::AUDITED;
    }
    let head = VerdictEvent {
        header: header(skb, s, TYPE_VERDICT, 0, VERSION_VERDICT),
        remote_label: peer,
        verdict: -(denied as i32),
        dst_port: u16::from_be(s.policy.dport),
        proto: s.policy.proto,
        bits,
        auth_type: 0,
        pad1: [0; 3],
        cookie: s.policy.cookie,
        pad2: 0,
    };
    // SAFETY: the record is ours until it is submitted.
    unsafe { (*record).head = head };
    submit(skb, record);
    0
}

/// Tells, if traces are wanted and conntrack saw something new, that the packet passed a point.
#[inline(always)]
pub fn trace(skb: Skb, s: &Scratch, config: &NodeConfig, point: u8, status: u32) {
    if config.flags & NodeConfig::TRACE != 0 && s.ct.report != 0 {
        passed(skb, s, u32::from(point), status);
    }
}

#[inline(never)]
fn passed(skb: Skb, s: &Scratch, point: u32, status: u32) -> u32 {
    let Some(record) = reserve::<TraceEvent>() else { return 0 };
    let head = TraceEvent {
        header: header(skb, s, TYPE_TRACE, point as u8, VERSION_TRACE),
        src_label: s.src_label,
        dst_label: s.dst_label,
        dst_id: s.dst_id as u16,
        reason: status as u8,
        flags: packet_flags(s),
        ifindex: skb.ifindex(),
        orig_ip: s.orig_source,
        ip_trace_id: 0,
    };
    // SAFETY: the record is ours until it is submitted.
    unsafe { (*record).head = head };
    submit(skb, record);
    0
}
