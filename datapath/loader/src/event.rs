//! Events from the datapath: what was dropped, forwarded or judged, with the packet's first bytes.

mod encode;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use aya::maps::{Map, MapData, RingBuf};
use cilia_maps::event::{self as kernel, EventHeader, trace_reason, verdict_bits};
use cilia_maps::policy::matched;
use cilia_maps::{Plain, reason};

use crate::address;
use crate::error::Error;

pub use encode::encode;

/// Towards an endpoint or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Towards the endpoint.
    Ingress,
    /// From the endpoint.
    Egress,
}

/// What happened to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was dropped.
    Drop(DropEvent),
    /// It passed a point.
    Trace(TraceEvent),
    /// Policy was asked.
    Verdict(VerdictEvent),
}

/// What every event tells of its packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Endpoint at which it happened, 0 for none.
    pub endpoint: u16,
    /// Flow hash.
    pub hash: u32,
    /// The packet's whole length.
    pub length: u32,
    /// The packet is IPv6.
    pub ipv6: bool,
    /// Its first bytes, from the Ethernet head on.
    pub bytes: Vec<u8>,
}

/// A packet that went nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropEvent {
    /// The packet.
    pub packet: Packet,
    /// Cilium's number of the reason.
    pub reason: u8,
    /// Detail of it.
    pub ext_error: i8,
    /// Sender's identity.
    pub source_identity: u32,
    /// Receiver's identity.
    pub destination_identity: u32,
    /// Receiver's endpoint id, 0 if not local.
    pub destination_endpoint: u32,
    /// Device.
    pub ifindex: u32,
}

impl DropEvent {
    /// The reason as operators know it.
    pub fn reason_text(&self) -> String {
        match (reason::text(self.reason), self.ext_error) {
            (Some(text), 0) => text.into(),
            (Some(text), ext) => format!("{text}, {ext}"),
            (None, ext) => format!("{}, {ext}", self.reason),
        }
    }
}

/// A packet that passed a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The packet.
    pub packet: Packet,
    /// Which point (`cilia_maps::event::point`).
    pub point: u8,
    /// What conntrack said.
    pub reason: TraceReason,
    /// Sender's identity.
    pub source_identity: u32,
    /// Receiver's identity.
    pub destination_identity: u32,
    /// Receiver's endpoint id, 0 if not local.
    pub destination_endpoint: u16,
    /// Device.
    pub ifindex: u32,
    /// Source address before translation, if there was one.
    pub original_source: Option<std::net::IpAddr>,
}

impl TraceEvent {
    /// The point's name as Cilium's monitor writes it.
    pub fn point_text(&self) -> &'static str {
        const NAMES: [&str; 14] = [
            "to-endpoint",
            "to-proxy",
            "to-host",
            "to-stack",
            "to-overlay",
            "from-endpoint",
            "from-proxy",
            "from-host",
            "from-stack",
            "from-overlay",
            "from-network",
            "to-network",
            "from-crypto",
            "to-crypto",
        ];
        NAMES.get(usize::from(self.point)).copied().unwrap_or("unknown")
    }
}

/// What conntrack said of a traced packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceReason {
    /// First packet.
    New,
    /// Forward direction of a known connection.
    Established,
    /// Reply direction.
    Reply,
    /// An error about a known connection.
    Related,
    /// Not looked up.
    Unknown,
}

/// What an endpoint's policy said of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerdictEvent {
    /// The packet; its endpoint is the one whose policy was asked.
    pub packet: Packet,
    /// The peer's identity.
    pub remote_identity: u32,
    /// Why not; none if it is allowed.
    pub denied: Option<u8>,
    /// Towards the endpoint or from it.
    pub direction: Direction,
    /// Destination port; the type for ICMP.
    pub port: u16,
    /// IP protocol.
    pub proto: u8,
    /// Which kind of rule matched.
    pub matched: Matched,
    /// Only recorded, not enforced.
    pub audited: bool,
    /// Cookie of the matched rule.
    pub cookie: u32,
}

impl VerdictEvent {
    /// The reason of a denial as operators know it.
    pub fn reason_text(&self) -> Option<&'static str> {
        self.denied.and_then(reason::text)
    }
}

/// Which kind of rule a packet matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Matched {
    /// None.
    Nothing,
    /// The peer.
    Identity,
    /// The peer, the protocol and the port.
    IdentityAndPort,
    /// Protocol and port of anybody.
    Port,
    /// All is allowed.
    All,
    /// The peer and the protocol.
    IdentityAndProtocol,
    /// The protocol, of anybody.
    Protocol,
}

/// Reads one record of the ring; `None` if it is none of ours.
pub fn decode(record: &[u8]) -> Option<Event> {
    let header = EventHeader::from_bytes(record)?;
    match header.kind {
        kernel::TYPE_DROP => {
            let drop = kernel::DropEvent::from_bytes(record)?;
            Some(Event::Drop(DropEvent {
                packet: packet::<kernel::DropEvent>(
                    header,
                    drop.flags & kernel::flags::IPV6,
                    record,
                ),
                reason: header.subtype,
                ext_error: drop.ext_error,
                source_identity: drop.src_label,
                destination_identity: drop.dst_label,
                destination_endpoint: drop.dst_id,
                ifindex: drop.ifindex,
            }))
        }
        kernel::TYPE_TRACE => {
            let trace = kernel::TraceEvent::from_bytes(record)?;
            let ipv6 = trace.flags & kernel::flags::IPV6;
            let family = if ipv6 == 0 { cilia_maps::FAMILY_V4 } else { cilia_maps::FAMILY_V6 };
            Some(Event::Trace(TraceEvent {
                packet: packet::<kernel::TraceEvent>(header, ipv6, record),
                point: header.subtype,
                reason: match trace.reason & 0x7f {
                    trace_reason::NEW => TraceReason::New,
                    trace_reason::ESTABLISHED => TraceReason::Established,
                    trace_reason::REPLY => TraceReason::Reply,
                    trace_reason::RELATED => TraceReason::Related,
                    _ => TraceReason::Unknown,
                },
                source_identity: trace.src_label,
                destination_identity: trace.dst_label,
                destination_endpoint: trace.dst_id,
                ifindex: trace.ifindex,
                original_source: address::decode(family, trace.orig_ip)
                    .filter(|source| !source.is_unspecified()),
            }))
        }
        kernel::TYPE_VERDICT => {
            let verdict = kernel::VerdictEvent::from_bytes(record)?;
            let bits = verdict.bits;
            Some(Event::Verdict(VerdictEvent {
                packet: packet::<kernel::VerdictEvent>(header, bits & verdict_bits::IPV6, record),
                remote_identity: verdict.remote_label,
                denied: u8::try_from(-i64::from(verdict.verdict)).ok().filter(|&no| no != 0),
                direction: if bits & verdict_bits::DIRECTION == verdict_bits::EGRESS {
                    Direction::Egress
                } else {
                    Direction::Ingress
                },
                port: verdict.dst_port,
                proto: verdict.proto,
                matched: match (bits >> verdict_bits::MATCH_SHIFT) & verdict_bits::MATCH_MASK {
                    matched::L3_ONLY => Matched::Identity,
                    matched::L3_L4 => Matched::IdentityAndPort,
                    matched::L4_ONLY => Matched::Port,
                    matched::ALL => Matched::All,
                    matched::L3_PROTO => Matched::IdentityAndProtocol,
                    matched::PROTO_ONLY => Matched::Protocol,
                    _ => Matched::Nothing,
                },
                audited: bits & verdict_bits::AUDITED != 0,
                cookie: verdict.cookie,
            }))
        }
        _ => None,
    }
}

/// The packet after an event's head of type `H`.
fn packet<H>(header: EventHeader, ipv6: u8, record: &[u8]) -> Packet {
    let rest = record.get(size_of::<H>()..).unwrap_or(&[]);
    let bytes = &rest[..rest.len().min(usize::from(header.len_cap))];
    Packet {
        endpoint: header.source,
        hash: header.hash,
        length: header.len_orig,
        ipv6: ipv6 != 0,
        bytes: bytes.to_vec(),
    }
}

/// The event ring, to be read by one reader at a time: its descriptor is readable (`AsyncFd`)
/// when [`Self::next`] has something.
pub struct Events {
    ring: RingBuf<MapData>,
    lost: crate::sys::RawMap,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn open(path: &Path, lost: crate::sys::RawMap) -> Result<Self, Error> {
        let failed = |source| Error::Events { path: path.to_path_buf(), source: Box::new(source) };
        let data = MapData::from_pin(path).map_err(failed)?;
        let ring = RingBuf::try_from(Map::RingBuf(data)).map_err(failed)?;
        Ok(Self { ring, lost })
    }

    /// The next event, if there is one.
    #[expect(clippy::should_implement_trait, reason = "an empty ring is not the end of events")]
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let item = self.ring.next()?;
            if let Some(event) = decode(&item) {
                return Some(event);
            }
        }
    }

    /// How many events found the ring full since the datapath was first loaded.
    pub fn lost(&self) -> Result<u64, Error> {
        let per_cpu = self.lost.lookup(&0u32.to_ne_bytes()).map_err(|source| Error::Map {
            operation: "read",
            map: cilia_maps::names::EVENTS_LOST.into(),
            source,
        })?;
        Ok(per_cpu.unwrap_or_default().chunks_exact(8).filter_map(u64::from_bytes).sum())
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}
