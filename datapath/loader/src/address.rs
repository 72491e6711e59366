//! Addresses between `std::net` and the maps.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cilia_maps::{Address, FAMILY_V4, FAMILY_V6};

/// Family and address as maps hold them.
pub(crate) fn encode(ip: IpAddr) -> (u8, Address) {
    match ip {
        IpAddr::V4(ip) => (FAMILY_V4, [v4(ip), 0, 0, 0]),
        IpAddr::V6(ip) => (FAMILY_V6, v6(ip)),
    }
}

/// The address that a map holds; `None` for a family that does not exist.
pub(crate) fn decode(family: u8, address: Address) -> Option<IpAddr> {
    match family {
        FAMILY_V4 => Some(from_v4(address[0]).into()),
        FAMILY_V6 => Some(from_v6(address).into()),
        _ => None,
    }
}

pub(crate) fn v4(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

pub(crate) fn from_v4(word: u32) -> Ipv4Addr {
    Ipv4Addr::from(word.to_ne_bytes())
}

pub(crate) fn v6(ip: Ipv6Addr) -> Address {
    let o = ip.octets();
    [0, 4, 8, 12].map(|at| u32::from_ne_bytes([o[at], o[at + 1], o[at + 2], o[at + 3]]))
}

pub(crate) fn from_v6(address: Address) -> Ipv6Addr {
    let mut octets = [0; 16];
    for (to, word) in octets.chunks_exact_mut(4).zip(address) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    octets.into()
}

/// The prefix's address with the bits beyond its length cleared.
pub(crate) fn masked(ip: IpAddr, prefix_len: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len.min(128))).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}
