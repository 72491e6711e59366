//! Options of single endpoints that the programs look at.

use cilia_maps::policy::options;
use cilia_maps::{Plain, names};

use crate::table::Layout;

/// Endpoints with settings of their own, by id.
#[derive(Debug)]
pub enum Options {}

/// The settings of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointOptions {
    /// Record what policy says, do not enforce it (`PolicyAuditMode`); whatever counts for others.
    pub policy_audit: bool,
}

impl Layout for Options {
    type Key = u16;
    type Value = EndpointOptions;

    const MAPS: &'static [&'static str] = &[names::POLICY_OPTIONS];

    fn places(key: &u16) -> Vec<(usize, Vec<u8>)> {
        vec![(0, u32::from(*key).bytes().to_vec())]
    }

    fn encode(key: &u16, value: &EndpointOptions) -> (usize, Vec<u8>, Vec<u8>) {
        let bits = if value.policy_audit { options::AUDIT } else { 0 };
        let (map, key) = Self::places(key).swap_remove(0);
        (map, key, bits.bytes().to_vec())
    }

    fn decode(_: usize, key: &[u8], value: &[u8]) -> Option<(u16, EndpointOptions)> {
        let id = u16::try_from(u32::from_bytes(key)?).ok()?;
        let bits = u32::from_bytes(value)?;
        Some((id, EndpointOptions { policy_audit: bits & options::AUDIT != 0 }))
    }
}
