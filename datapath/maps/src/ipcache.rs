//! Prefixes and who is behind them.

use crate::{Address, plain};

/// Key of `cilium_ipcache_v2` after its prefix length (24 bytes with it).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpcacheKey {
    /// The cluster of an overlapping address; 0 here.
    pub cluster_id: u16,
    /// Zero.
    pub pad: u8,
    /// [`crate::FAMILY_V4`] or [`crate::FAMILY_V6`].
    pub family: u8,
    /// The address, bits beyond the prefix zero.
    pub address: Address,
}

impl IpcacheKey {
    /// Bits before the address, which always count.
    pub const STATIC_BITS: u32 = 32;
}

/// Value of `cilium_ipcache_v2`: LPM trie, 24 bytes, 512000 entries; owner: the agent's `ipcache`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteEndpointInfo {
    /// Identity of the prefix.
    pub sec_identity: u32,
    /// The node to tunnel to.
    pub tunnel_endpoint: Address,
    /// Zero.
    pub pad: u16,
    /// Encryption key.
    pub key: u8,
    /// Bits below.
    pub flags: u8,
}

impl RemoteEndpointInfo {
    /// Reach it without the tunnel.
    pub const SKIP_TUNNEL: u8 = 1;
    /// `tunnel_endpoint` holds an address.
    pub const HAS_TUNNEL: u8 = 2;
    /// That address is IPv6.
    pub const TUNNEL_V6: u8 = 4;
}

plain!(IpcacheKey = 20, RemoteEndpointInfo = 24);
