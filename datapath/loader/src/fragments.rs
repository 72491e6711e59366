//! Datagrams in fragments, as the programs remember their ports: listed for those who look.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_maps::fragment::{Frag4Key, Frag6Key, FragPorts};
use cilia_maps::{Plain, names};

use crate::address;
use crate::error::Error;
use crate::sys::RawMap;

pub(crate) const MAPS: [&str; 2] = [names::FRAG4, names::FRAG6];

/// The two maps, IPv4's first.
#[derive(Debug, Clone)]
pub struct Fragments {
    maps: Arc<[RawMap]>,
}

/// A datagram that came in fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Datagram {
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// The identification of its fragments.
    pub id: u32,
    /// IP protocol.
    pub proto: u8,
}

/// Source and destination port.
pub type Ports = (u16, u16);

impl Fragments {
    pub(crate) fn new(maps: Vec<RawMap>) -> Self {
        Self { maps: maps.into() }
    }

    /// Every datagram with its source and destination ports, in no order.
    pub fn entries(&self) -> Result<Vec<(Datagram, Ports)>, Error> {
        let mut entries = Vec::new();
        for (index, map) in self.maps.iter().enumerate() {
            map.for_each(|key, value| {
                let ports = FragPorts::from_bytes(value);
                let ports = ports.map(|p| (u16::from_be(p.sport), u16::from_be(p.dport)));
                entries.extend(decode(index, key).zip(ports));
            })
            .map_err(|source| Error::Map {
                operation: "list",
                map: MAPS[index].into(),
                source,
            })?;
        }
        Ok(entries)
    }
}

fn decode(map: usize, key: &[u8]) -> Option<Datagram> {
    if map == 0 {
        let key = Frag4Key::from_bytes(key)?;
        return Some(Datagram {
            source: address::from_v4(key.saddr).into(),
            destination: address::from_v4(key.daddr).into(),
            id: u16::from_be(key.id).into(),
            proto: key.proto,
        });
    }
    let key = Frag6Key::from_bytes(key)?;
    Some(Datagram {
        source: address::from_v6(key.saddr).into(),
        destination: address::from_v6(key.daddr).into(),
        id: u32::from_be(key.id),
        proto: key.proto,
    })
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn keys_are_what_the_programs_write() {
        let v4 = [10, 0, 0, 2, 10, 0, 0, 1, 0x12, 0x34, 17, 0];
        let found = decode(0, &v4).expect("a key");
        assert_eq!(
            (found.source.to_string(), found.destination.to_string()),
            ("10.0.0.1".into(), "10.0.0.2".into())
        );
        assert_eq!((found.id, found.proto), (0x1234, 17));
        let mut v6 = [0; 40];
        (v6[3], v6[4], v6[23], v6[39]) = (9, 58, 1, 2);
        let found = decode(1, &v6).expect("a key");
        assert_eq!(
            (found.source.to_string(), found.destination.to_string()),
            ("::1".into(), "::2".into())
        );
        assert_eq!((found.id, found.proto), (9, 58));
        assert_eq!(decode(0, &v4[..8]), None, "too short");
    }
}
