//! Turns addresses into numbers and back, so that both families are counted the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::Family;

pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address of a number that was made from the same family.
pub(crate) fn address(family: Family, number: u128) -> IpAddr {
    match (family, u32::try_from(number)) {
        (Family::V4, Ok(number)) => Ipv4Addr::from_bits(number).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

pub(crate) fn contains(outer: IpNet, inner: IpNet) -> bool {
    outer.contains(&inner)
}

pub(crate) fn overlap(a: IpNet, b: IpNet) -> bool {
    contains(a, b) || contains(b, a)
}

/// `[a b c]`, as Cilium writes lists in its messages.
pub(crate) fn list(nets: &[IpNet]) -> String {
    let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
    format!("[{}]", nets.join(" "))
}
