//! Local addresses and the endpoints that have them.

use crate::{Address, plain};

/// Key of `cilium_lxc`, 20 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointKey {
    /// The address.
    pub address: Address,
    /// [`crate::FAMILY_V4`] or [`crate::FAMILY_V6`].
    pub family: u8,
    /// Unused.
    pub key: u8,
    /// The cluster of an overlapping address; 0 here.
    pub cluster_id: u16,
}

/// Value of `cilium_lxc`: HASH, 48 bytes, 65535 entries; owner: the agent's `endpoint`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointInfo {
    /// Interface index of the host side of the endpoint's device.
    pub ifindex: u32,
    /// Unused.
    pub unused: u16,
    /// The endpoint's id.
    pub lxc_id: u16,
    /// [`Self::HOST`] and others.
    pub flags: u32,
    /// Hole.
    pub hole: u32,
    /// MAC of the endpoint's own device, in the low six bytes as they are on the wire.
    pub mac: u64,
    /// MAC of the host side of the device.
    pub node_mac: u64,
    /// The endpoint's identity.
    pub sec_id: u32,
    /// Unused.
    pub parent_ifindex: u32,
    /// Zero.
    pub pad: u64,
}

impl EndpointInfo {
    /// The address is the node's own: deliver to the stack.
    pub const HOST: u32 = 1;
    /// As [`Self::HOST`].
    pub const AT_HOST_NS: u32 = 2;
}

plain!(EndpointKey = 20, EndpointInfo = 48);
