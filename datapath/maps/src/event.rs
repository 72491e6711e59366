//! Events: fixed heads, in Cilium's layouts, before the first bytes of the packet.
//!
//! `cilium_events` is a RINGBUF (4 MiB by default; owner: the programs). Each record has room for
//! [`CAPTURE`] bytes of packet after its head; the head's `len_cap` says how many are there.

use crate::plain;

/// The most bytes of packet that an event carries.
pub const CAPTURE: usize = 128;

/// First byte of an event: a drop.
pub const TYPE_DROP: u8 = 1;
/// First byte of an event: a trace.
pub const TYPE_TRACE: u8 = 4;
/// First byte of an event: a policy verdict.
pub const TYPE_VERDICT: u8 = 5;

/// What every event starts with, 16 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventHeader {
    /// One of the types.
    pub kind: u8,
    /// Drop: the reason. Trace: the observation point.
    pub subtype: u8,
    /// The endpoint at which it happened.
    pub source: u16,
    /// The packet's flow hash.
    pub hash: u32,
    /// The packet's length.
    pub len_orig: u32,
    /// Bytes of it that follow.
    pub len_cap: u16,
    /// Layout version.
    pub version: u16,
}

/// A drop, version 3, 48 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropEvent {
    /// Head.
    pub header: EventHeader,
    /// Sender's identity.
    pub src_label: u32,
    /// Receiver's identity.
    pub dst_label: u32,
    /// Receiver's endpoint id, 0 if not local.
    pub dst_id: u32,
    /// Source line, 0 here.
    pub line: u16,
    /// Source file.
    pub file: u8,
    /// Detail of the reason.
    pub ext_error: i8,
    /// Device.
    pub ifindex: u32,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// Packet trace id.
    pub ip_trace_id: u64,
}

/// A trace, version 2, 56 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceEvent {
    /// Head.
    pub header: EventHeader,
    /// Sender's identity.
    pub src_label: u32,
    /// Receiver's identity.
    pub dst_label: u32,
    /// Receiver's endpoint id, 0 if not local.
    pub dst_id: u16,
    /// One of [`trace_reason`].
    pub reason: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Device.
    pub ifindex: u32,
    /// Source address before translation.
    pub orig_ip: [u32; 4],
    /// Packet trace id.
    pub ip_trace_id: u64,
}

/// A policy verdict, version 1, 40 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerdictEvent {
    /// Head.
    pub header: EventHeader,
    /// The peer's identity.
    pub remote_label: u32,
    /// Negative: minus the drop reason. 0: allowed.
    pub verdict: i32,
    /// Destination port, host byte order; the type for ICMP.
    pub dst_port: u16,
    /// IP protocol.
    pub proto: u8,
    /// Bits of [`verdict_bits`].
    pub bits: u8,
    /// Authentication type.
    pub auth_type: u8,
    /// Zero.
    pub pad1: [u8; 3],
    /// The rule's cookie.
    pub cookie: u32,
    /// Zero.
    pub pad2: u32,
}

plain!(EventHeader = 16, DropEvent = 48, TraceEvent = 56, VerdictEvent = 40);

/// Bits of `flags` in drops and traces.
pub mod flags {
    /// The packet is IPv6.
    pub const IPV6: u8 = 1;
    /// The packet has no L2 head.
    pub const L3_DEVICE: u8 = 2;
    /// Came out of a VXLAN tunnel.
    pub const VXLAN: u8 = 4;
}

/// Bits of a verdict's `bits`.
pub mod verdict_bits {
    /// Towards the endpoint.
    pub const INGRESS: u8 = 1;
    /// From the endpoint.
    pub const EGRESS: u8 = 2;
    /// Both direction bits.
    pub const DIRECTION: u8 = 3;
    /// The packet is IPv6.
    pub const IPV6: u8 = 4;
    /// Where the match type starts.
    pub const MATCH_SHIFT: u8 = 3;
    /// The match type's three bits, shifted down.
    pub const MATCH_MASK: u8 = 7;
    /// The verdict was recorded, not enforced.
    pub const AUDITED: u8 = 0x40;
}

/// Observation points of traces.
pub mod point {
    /// Delivered to a local endpoint.
    pub const TO_ENDPOINT: u8 = 0;
    /// To the host's stack, for the host.
    pub const TO_HOST: u8 = 2;
    /// To the host's stack, to be forwarded.
    pub const TO_STACK: u8 = 3;
    /// Into the tunnel.
    pub const TO_OVERLAY: u8 = 4;
    /// Left an endpoint.
    pub const FROM_ENDPOINT: u8 = 5;
    /// Came from the host.
    pub const FROM_HOST: u8 = 7;
    /// Came out of the tunnel.
    pub const FROM_OVERLAY: u8 = 9;
}

/// What conntrack said of a traced packet.
pub mod trace_reason {
    /// First packet.
    pub const NEW: u8 = 0;
    /// Forward direction of a known connection.
    pub const ESTABLISHED: u8 = 1;
    /// Reply direction.
    pub const REPLY: u8 = 2;
    /// An error about a known connection.
    pub const RELATED: u8 = 3;
    /// Not looked up.
    pub const UNKNOWN: u8 = 5;
}
