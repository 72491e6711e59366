//! Service tables: frontends with their slots, backends, and the frontend to put back on replies.

use std::net::IpAddr;

use cilia_maps::service as kernel;
use cilia_maps::{Plain, names};

use crate::address;
use crate::table::Layout;

/// Frontends (slot 0) and their backend slots (1 to count).
#[derive(Debug)]
pub enum Services {}

/// A frontend or one of its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    /// Frontend address.
    pub address: IpAddr,
    /// Frontend port.
    pub port: u16,
    /// IP protocol: 6, 17 or 132.
    pub proto: u8,
    /// 0 for the frontend, 1 to its count for the slots.
    pub slot: u16,
    /// 0 for all callers, 1 for callers inside the cluster only.
    pub scope: u8,
}

/// What a frontend or slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ServiceEntry {
    /// Of a slot: the backend's id. Of a frontend with [`Self::AFFINITY`]: for how many seconds a
    /// client keeps its backend. 0 in other frontends.
    pub backend: u32,
    /// Of a frontend: how many slots follow.
    pub count: u16,
    /// Reverse-NAT id, the same in the frontend and its slots, not 0.
    pub rev_nat: u16,
    /// Cilium's `flags` (low byte) and `flags2` (high byte).
    pub flags: u16,
}

impl ServiceEntry {
    /// Bit of a frontend's `flags`: `sessionAffinity: ClientIP`.
    pub const AFFINITY: u16 = kernel::FLAG_AFFINITY as u16;
}

impl Layout for Services {
    type Key = ServiceKey;
    type Value = ServiceEntry;

    const MAPS: &'static [&'static str] = &[names::LB4_SERVICES, names::LB6_SERVICES];

    fn places(key: &ServiceKey) -> Vec<(usize, Vec<u8>)> {
        let (dport, backend_slot) = (key.port.to_be(), key.slot);
        let (proto, scope) = (key.proto, key.scope);
        match key.address {
            IpAddr::V4(ip) => {
                let address = address::v4(ip);
                let key = kernel::Lb4Key { address, dport, backend_slot, proto, scope, pad: 0 };
                vec![(0, key.bytes().to_vec())]
            }
            IpAddr::V6(ip) => {
                let address = address::v6(ip);
                let key = kernel::Lb6Key { address, dport, backend_slot, proto, scope, pad: 0 };
                vec![(1, key.bytes().to_vec())]
            }
        }
    }

    fn encode(key: &ServiceKey, value: &ServiceEntry) -> (usize, Vec<u8>, Vec<u8>) {
        let [flags, flags2] = value.flags.to_le_bytes();
        let service = kernel::LbService {
            backend_id: value.backend,
            count: value.count,
            rev_nat_index: value.rev_nat.to_be(),
            flags,
            flags2,
            qcount: 0,
        };
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, service.bytes().to_vec())
    }

    fn decode(map: usize, key: &[u8], value: &[u8]) -> Option<(ServiceKey, ServiceEntry)> {
        let key = if map == 0 {
            let key = kernel::Lb4Key::from_bytes(key)?;
            ServiceKey {
                address: address::from_v4(key.address).into(),
                port: u16::from_be(key.dport),
                proto: key.proto,
                slot: key.backend_slot,
                scope: key.scope,
            }
        } else {
            let key = kernel::Lb6Key::from_bytes(key)?;
            ServiceKey {
                address: address::from_v6(key.address).into(),
                port: u16::from_be(key.dport),
                proto: key.proto,
                slot: key.backend_slot,
                scope: key.scope,
            }
        };
        let service = kernel::LbService::from_bytes(value)?;
        let entry = ServiceEntry {
            backend: service.backend_id,
            count: service.count,
            rev_nat: u16::from_be(service.rev_nat_index),
            flags: u16::from_le_bytes([service.flags, service.flags2]),
        };
        Some((key, entry))
    }
}

/// Backends by id. An id names one backend, of either family.
#[derive(Debug)]
pub enum Backends {}

/// Where a backend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port; 0 keeps the packet's.
    pub port: u16,
    /// IP protocol.
    pub proto: u8,
    /// Whether it takes connections.
    pub state: BackendState,
    /// Its zone's number, 0 for none.
    pub zone: u8,
}

/// Whether a backend takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BackendState {
    /// New ones and its own.
    #[default]
    Active,
    /// Its own.
    Terminating,
    /// None until it is healthy.
    Quarantined,
    /// None.
    Maintenance,
}

impl Layout for Backends {
    type Key = u32;
    type Value = Backend;

    const MAPS: &'static [&'static str] = &[names::LB4_BACKENDS, names::LB6_BACKENDS];

    fn places(id: &u32) -> Vec<(usize, Vec<u8>)> {
        (0..2).map(|map| (map, id.bytes().to_vec())).collect()
    }

    fn encode(id: &u32, value: &Backend) -> (usize, Vec<u8>, Vec<u8>) {
        let state = match value.state {
            BackendState::Active => kernel::state::ACTIVE,
            BackendState::Terminating => kernel::state::TERMINATING,
            BackendState::Quarantined => kernel::state::QUARANTINED,
            BackendState::Maintenance => kernel::state::MAINTENANCE,
        };
        let (port, proto, zone) = (value.port.to_be(), value.proto, value.zone);
        let (cluster_id, pad) = (0, 0);
        let (map, bytes) = match value.address {
            IpAddr::V4(ip) => {
                let address = address::v4(ip);
                let backend =
                    kernel::Lb4Backend { address, port, proto, state, cluster_id, zone, pad };
                (0, backend.bytes().to_vec())
            }
            IpAddr::V6(ip) => {
                let address = address::v6(ip);
                let backend =
                    kernel::Lb6Backend { address, port, proto, state, cluster_id, zone, pad };
                (1, backend.bytes().to_vec())
            }
        };
        (map, id.bytes().to_vec(), bytes)
    }

    fn decode(map: usize, key: &[u8], value: &[u8]) -> Option<(u32, Backend)> {
        let (address, port, proto, state, zone): (IpAddr, _, _, _, _) = if map == 0 {
            let b = kernel::Lb4Backend::from_bytes(value)?;
            (address::from_v4(b.address).into(), b.port, b.proto, b.state, b.zone)
        } else {
            let b = kernel::Lb6Backend::from_bytes(value)?;
            (address::from_v6(b.address).into(), b.port, b.proto, b.state, b.zone)
        };
        let state = match state {
            kernel::state::ACTIVE => BackendState::Active,
            kernel::state::TERMINATING => BackendState::Terminating,
            kernel::state::QUARANTINED => BackendState::Quarantined,
            _ => BackendState::Maintenance,
        };
        let backend = Backend { address, port: u16::from_be(port), proto, state, zone };
        Some((u32::from_bytes(key)?, backend))
    }
}

/// Frontends by reverse-NAT id.
#[derive(Debug)]
pub enum RevNat {}

/// The frontend that replies appear to come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frontend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

impl Layout for RevNat {
    type Key = u16;
    type Value = Frontend;

    const MAPS: &'static [&'static str] = &[names::LB4_REVERSE_NAT, names::LB6_REVERSE_NAT];

    fn places(id: &u16) -> Vec<(usize, Vec<u8>)> {
        (0..2).map(|map| (map, id.to_be_bytes().to_vec())).collect()
    }

    fn encode(id: &u16, value: &Frontend) -> (usize, Vec<u8>, Vec<u8>) {
        let port = value.port.to_be();
        let (map, bytes) = match value.address {
            IpAddr::V4(ip) => {
                let entry = kernel::Lb4ReverseNat { address: address::v4(ip), port };
                (0, entry.bytes().to_vec())
            }
            IpAddr::V6(ip) => {
                let entry = kernel::Lb6ReverseNat { address: address::v6(ip), port };
                (1, entry.bytes().to_vec())
            }
        };
        (map, id.to_be_bytes().to_vec(), bytes)
    }

    fn decode(map: usize, key: &[u8], value: &[u8]) -> Option<(u16, Frontend)> {
        let id = u16::from_be_bytes(key.try_into().ok()?);
        let (address, port): (IpAddr, u16) = if map == 0 {
            let entry = kernel::Lb4ReverseNat::from_bytes(value)?;
            (address::from_v4(entry.address).into(), entry.port)
        } else {
            let entry = kernel::Lb6ReverseNat::from_bytes(value)?;
            (address::from_v6(entry.address).into(), entry.port)
        };
        Some((id, Frontend { address, port: u16::from_be(port) }))
    }
}
