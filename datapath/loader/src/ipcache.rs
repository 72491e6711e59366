//! The ipcache: which identity is behind a prefix, and through which tunnel.

use std::net::IpAddr;

use cilia_maps::ipcache as kernel;
use cilia_maps::{FAMILY_V6, Plain, Prefix, names};

use crate::address;
use crate::table::Layout;

/// Prefixes of the whole cluster and of the world outside.
#[derive(Debug)]
pub enum IpCache {}

/// Who is behind a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RemoteEndpoint {
    /// Its identity.
    pub identity: u32,
    /// The node to tunnel to; none for the node's own and for what is outside.
    pub tunnel: Option<IpAddr>,
    /// Encryption key, 0 without encryption.
    pub key: u8,
}

impl Layout for IpCache {
    type Key = (IpAddr, u8);
    type Value = RemoteEndpoint;

    const MAPS: &'static [&'static str] = &[names::IPCACHE];

    fn places(&(ip, prefix_len): &(IpAddr, u8)) -> Vec<(usize, Vec<u8>)> {
        let (family, address) = address::encode(address::masked(ip, prefix_len));
        let key = Prefix {
            prefix_len: kernel::IpcacheKey::STATIC_BITS + u32::from(prefix_len),
            data: kernel::IpcacheKey { cluster_id: 0, pad: 0, family, address },
        };
        vec![(0, key.bytes().to_vec())]
    }

    fn encode(key: &(IpAddr, u8), value: &RemoteEndpoint) -> (usize, Vec<u8>, Vec<u8>) {
        let (family, tunnel_endpoint) = value.tunnel.map_or((0, [0; 4]), address::encode);
        let mut flags = 0;
        if value.tunnel.is_some() {
            flags |= kernel::RemoteEndpointInfo::HAS_TUNNEL;
        }
        if family == FAMILY_V6 {
            flags |= kernel::RemoteEndpointInfo::TUNNEL_V6;
        }
        let info = kernel::RemoteEndpointInfo {
            sec_identity: value.identity,
            tunnel_endpoint,
            pad: 0,
            key: value.key,
            flags,
        };
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, info.bytes().to_vec())
    }

    fn decode(_: usize, key: &[u8], value: &[u8]) -> Option<((IpAddr, u8), RemoteEndpoint)> {
        let key = Prefix::<kernel::IpcacheKey>::from_bytes(key)?;
        let info = kernel::RemoteEndpointInfo::from_bytes(value)?;
        let prefix_len = key.prefix_len.checked_sub(kernel::IpcacheKey::STATIC_BITS)?;
        let tunnel = match info.flags {
            f if f & kernel::RemoteEndpointInfo::HAS_TUNNEL == 0 => None,
            f if f & kernel::RemoteEndpointInfo::TUNNEL_V6 != 0 => {
                Some(address::from_v6(info.tunnel_endpoint).into())
            }
            _ => Some(address::from_v4(info.tunnel_endpoint[0]).into()),
        };
        let ip = address::decode(key.data.family, key.data.address)?;
        let value = RemoteEndpoint { identity: info.sec_identity, tunnel, key: info.key };
        Some(((ip, u8::try_from(prefix_len).ok()?), value))
    }
}
