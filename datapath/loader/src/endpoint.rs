//! The endpoint table: which local address belongs to whom, and how to reach it.

use std::net::IpAddr;

use cilia_maps::endpoint as kernel;
use cilia_maps::{Plain, names};

use crate::address;
use crate::table::Layout;

/// Local addresses: pods' and, marked as host, the node's own.
#[derive(Debug)]
pub enum Endpoints {}

/// Who has a local address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EndpointInfo {
    /// The endpoint's id.
    pub id: u16,
    /// Interface index of the host side of its device.
    pub ifindex: u32,
    /// MAC of the device inside the pod.
    pub mac: [u8; 6],
    /// MAC of the host side.
    pub node_mac: [u8; 6],
    /// The endpoint's identity.
    pub identity: u32,
    /// The address is the node's own.
    pub host: bool,
}

fn mac_word(mac: [u8; 6]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    u64::from_ne_bytes(bytes)
}

fn mac_bytes(word: u64) -> [u8; 6] {
    let b = word.to_ne_bytes();
    [b[0], b[1], b[2], b[3], b[4], b[5]]
}

impl Layout for Endpoints {
    type Key = IpAddr;
    type Value = EndpointInfo;

    const MAPS: &'static [&'static str] = &[names::LXC];

    fn places(key: &IpAddr) -> Vec<(usize, Vec<u8>)> {
        let (family, address) = address::encode(*key);
        let key = kernel::EndpointKey { address, family, key: 0, cluster_id: 0 };
        vec![(0, key.bytes().to_vec())]
    }

    fn encode(key: &IpAddr, value: &EndpointInfo) -> (usize, Vec<u8>, Vec<u8>) {
        let info = kernel::EndpointInfo {
            ifindex: value.ifindex,
            lxc_id: value.id,
            flags: if value.host { kernel::EndpointInfo::HOST } else { 0 },
            mac: mac_word(value.mac),
            node_mac: mac_word(value.node_mac),
            sec_id: value.identity,
            ..Default::default()
        };
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, info.bytes().to_vec())
    }

    fn decode(_: usize, key: &[u8], value: &[u8]) -> Option<(IpAddr, EndpointInfo)> {
        let key = kernel::EndpointKey::from_bytes(key)?;
        let info = kernel::EndpointInfo::from_bytes(value)?;
        let host = kernel::EndpointInfo::HOST | kernel::EndpointInfo::AT_HOST_NS;
        let value = EndpointInfo {
            id: info.lxc_id,
            ifindex: info.ifindex,
            mac: mac_bytes(info.mac),
            node_mac: mac_bytes(info.node_mac),
            identity: info.sec_id,
            host: info.flags & host != 0,
        };
        Some((address::decode(key.family, key.address)?, value))
    }
}
