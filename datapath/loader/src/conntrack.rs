//! Connections as the programs track them: listed, purged by address, and collected when expired.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_maps::conntrack::{CtEntry, Tuple4, Tuple6, entry_flags, flags};
use cilia_maps::{Plain, names};

use crate::address;
use crate::error::Error;
use crate::sys::RawMap;

pub(crate) const MAPS: [&str; 4] = [names::CT_TCP4, names::CT_ANY4, names::CT_TCP6, names::CT_ANY6];

/// The four connection maps.
#[derive(Debug, Clone)]
pub struct Conntrack {
    maps: Arc<[RawMap]>,
}

/// Which way a connection was opened, seen from the local endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Opened {
    /// By the endpoint.
    Out,
    /// To the endpoint.
    In,
    /// By the endpoint to a service, before translation.
    Service,
}

/// A connection in the direction in which it was opened. Ports of an ICMP echo: the identifier is
/// the source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Which way.
    pub opened: Opened,
    /// IP protocol.
    pub proto: u8,
    /// Originator.
    pub source: (IpAddr, u16),
    /// Its peer.
    pub destination: (IpAddr, u16),
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionState {
    /// When it expires, in seconds of [`Conntrack::now`].
    pub expires: u32,
    /// Identity of the originator.
    pub source_identity: u32,
    /// Reverse-NAT id of the service through which it goes, 0 without one.
    pub rev_nat: u16,
    /// Of a service's connection: the chosen backend.
    pub backend: u32,
    /// One of its sides is closed.
    pub closing: bool,
    /// More than its first packet was seen.
    pub established: bool,
    /// TCP flags seen from the originator and from the peer.
    pub tcp_flags: (u8, u8),
    /// Packets and bytes, where they are counted.
    pub counted: (u64, u64),
    /// Bits of [`cilia_maps::conntrack::entry_flags`].
    pub flags: u16,
    /// When each direction was last traced, from the originator and from the peer, in seconds of
    /// [`Conntrack::now`].
    pub last_report: (u32, u32),
}

/// What a garbage collection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Entries looked at.
    pub scanned: usize,
    /// Entries removed.
    pub removed: usize,
}

fn decode(map: usize, key: &[u8]) -> Option<Connection> {
    let (from, to, sport, dport, proto, bits): (IpAddr, IpAddr, u16, u16, u8, u8) = if map < 2 {
        let t = Tuple4::from_bytes(key)?;
        let (from, to) = (address::from_v4(t.daddr), address::from_v4(t.saddr));
        (from.into(), to.into(), t.sport, t.dport, t.nexthdr, t.flags)
    } else {
        let t = Tuple6::from_bytes(key)?;
        let (from, to) = (address::from_v6(t.daddr), address::from_v6(t.saddr));
        (from.into(), to.into(), t.sport, t.dport, t.nexthdr, t.flags)
    };
    let opened = if bits & flags::SERVICE != 0 {
        Opened::Service
    } else if bits & flags::IN != 0 {
        Opened::In
    } else {
        Opened::Out
    };
    Some(Connection {
        opened,
        proto,
        source: (from, u16::from_be(sport)),
        destination: (to, u16::from_be(dport)),
    })
}

fn state(entry: CtEntry) -> ConnectionState {
    ConnectionState {
        expires: entry.lifetime,
        source_identity: entry.src_sec_id,
        rev_nat: u16::from_be(entry.rev_nat_index),
        backend: u32::try_from(entry.backend_id).unwrap_or(0),
        closing: entry.flags & (entry_flags::RX_CLOSING | entry_flags::TX_CLOSING) != 0,
        established: entry.flags & entry_flags::SEEN_NON_SYN != 0,
        tcp_flags: (entry.tx_flags_seen, entry.rx_flags_seen),
        counted: (entry.packets, entry.bytes),
        flags: entry.flags,
        last_report: (entry.last_tx_report, entry.last_rx_report),
    }
}

impl Conntrack {
    pub(crate) fn new(maps: Vec<RawMap>) -> Self {
        Self { maps: maps.into() }
    }

    /// Seconds of monotonic time, the clock of [`ConnectionState::expires`].
    pub fn now() -> u32 {
        let clock = nix::time::ClockId::CLOCK_MONOTONIC;
        nix::time::clock_gettime(clock).map_or(0, |now| u32::try_from(now.tv_sec()).unwrap_or(0))
    }

    fn visit(&self, mut visit: impl FnMut(usize, &[u8], &[u8])) -> Result<(), Error> {
        for (index, map) in self.maps.iter().enumerate() {
            map.for_each(|key, value| visit(index, key, value)).map_err(|source| Error::Map {
                operation: "list",
                map: MAPS[index].into(),
                source,
            })?;
        }
        Ok(())
    }

    fn delete(&self, doomed: Vec<(usize, Vec<u8>)>) -> Result<usize, Error> {
        let mut removed = 0;
        for (index, key) in doomed {
            let there = self.maps[index].delete(&key).map_err(|source| Error::Map {
                operation: "remove",
                map: MAPS[index].into(),
                source,
            })?;
            removed += usize::from(there);
        }
        Ok(removed)
    }

    /// Every connection, in no order.
    pub fn entries(&self) -> Result<Vec<(Connection, ConnectionState)>, Error> {
        let mut entries = Vec::new();
        self.visit(|map, key, value| {
            entries.extend(decode(map, key).zip(CtEntry::from_bytes(value).map(state)));
        })?;
        Ok(entries)
    }

    /// Forgets every connection of an address; says how many there were.
    pub fn purge(&self, ip: IpAddr) -> Result<usize, Error> {
        let mut doomed = Vec::new();
        self.visit(|map, key, _| {
            if decode(map, key).is_some_and(|c| c.source.0 == ip || c.destination.0 == ip) {
                doomed.push((map, key.to_vec()));
            }
        })?;
        self.delete(doomed)
    }

    /// Forgets every connection of one of the maps, or those of an address; says how many there were, or nothing
    /// if that is no map of connections.
    pub fn flush(&self, name: &str, of: Option<IpAddr>) -> Option<Result<usize, Error>> {
        let index = MAPS.iter().position(|map| *map == name)?;
        let mut doomed = Vec::new();
        let listed = self.maps[index].for_each(|key, _| {
            let is_its =
                |ip| decode(index, key).is_some_and(|c| c.source.0 == ip || c.destination.0 == ip);
            if of.is_none_or(is_its) {
                doomed.push((index, key.to_vec()));
            }
        });
        let listed =
            listed.map_err(|source| Error::Map { operation: "list", map: name.into(), source });
        Some(listed.and_then(|()| self.delete(doomed)))
    }

    /// Forgets what expired before `now` (seconds of [`Self::now`]).
    pub fn gc(&self, now: u32) -> Result<Collected, Error> {
        let (mut scanned, mut doomed) = (0, Vec::new());
        self.visit(|map, key, value| {
            scanned += 1;
            if CtEntry::from_bytes(value).is_some_and(|entry| entry.lifetime < now) {
                doomed.push((map, key.to_vec()));
            }
        })?;
        Ok(Collected { scanned, removed: self.delete(doomed)? })
    }
}
