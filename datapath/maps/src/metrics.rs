//! Counters of what was forwarded and why something was dropped.

use crate::plain;

/// Key of `cilium_metrics`, 8 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricsKey {
    /// A drop reason, or one of the small numbers of [`crate::reason`].
    pub reason: u8,
    /// [`INGRESS`], [`EGRESS`] or [`SERVICE`].
    pub dir: u8,
    /// Source line, 0 here.
    pub line: u16,
    /// Source file, 0 here.
    pub file: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// Value of `cilium_metrics`: `PERCPU_HASH`, 16 bytes, 1024 entries; owner: the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricsValue {
    /// Packets.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Towards an endpoint.
pub const INGRESS: u8 = 1;
/// From an endpoint.
pub const EGRESS: u8 = 2;
/// At a service.
pub const SERVICE: u8 = 3;

plain!(MetricsKey = 8, MetricsValue = 16);
