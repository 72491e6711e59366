//! Block tables: which ipBlocks of Kubernetes' policies name an address, as one identity.

use std::net::IpAddr;

use cilia_maps::{Plain, Prefix, names};

use crate::address;
use crate::table::Layout;

/// Prefixes, each with its block identity, for all endpoints of the node.
#[derive(Debug)]
pub enum Blocks {}

impl Layout for Blocks {
    type Key = (IpAddr, u8);
    type Value = u32;

    const MAPS: &'static [&'static str] = &[names::BLOCK4, names::BLOCK6];

    fn places(&(ip, bits): &(IpAddr, u8)) -> Vec<(usize, Vec<u8>)> {
        let prefix_len = u32::from(bits);
        vec![match address::masked(ip, bits) {
            IpAddr::V4(ip) => (0, Prefix { prefix_len, data: address::v4(ip) }.bytes().to_vec()),
            IpAddr::V6(ip) => (1, Prefix { prefix_len, data: address::v6(ip) }.bytes().to_vec()),
        }]
    }

    fn encode(key: &(IpAddr, u8), value: &u32) -> (usize, Vec<u8>, Vec<u8>) {
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, value.bytes().to_vec())
    }

    fn decode(map: usize, key: &[u8], value: &[u8]) -> Option<((IpAddr, u8), u32)> {
        let (ip, bits): (IpAddr, u32) = if map == 0 {
            let key = Prefix::<u32>::from_bytes(key)?;
            (address::from_v4(key.data).into(), key.prefix_len)
        } else {
            let key = Prefix::<cilia_maps::Address>::from_bytes(key)?;
            (address::from_v6(key.data).into(), key.prefix_len)
        };
        Some(((ip, u8::try_from(bits).ok()?), u32::from_bytes(value)?))
    }
}
