//! Decides how many entries each map holds.

use std::fs;

use cilia_loader::MapSizes;
use cilia_runtime::config::{Config as Flags, Error};

/// Bytes of the maps that share the dynamic budget, at their default sizes: TCP and other
/// connections, NAT, neighbours, reverse sockets; keys and values of both families.
const DEFAULT_BYTES: u64 = 524_288 * (14 + 56 + 38 + 56)
    + 262_144 * (14 + 56 + 38 + 56)
    + 524_288 * (14 + 40 + 38 + 56)
    + 524_288 * (4 + 8 + 16 + 8)
    + 262_144 * (16 + 8 + 32 + 20);
const TCP_FLOOR: u64 = 128 << 10;
const ANY_FLOOR: u64 = 64 << 10;
const CEILING: u64 = 16 << 20;

/// The sizes that the flags and the machine's memory ask for.
pub(super) fn read(flags: &Flags) -> Result<MapSizes, Error> {
    let defaults = MapSizes::default();
    let ratio = flags.float("bpf-map-dynamic-size-ratio");
    if !(0.0..=1.0).contains(&ratio) {
        return Err(flags.reject("bpf-map-dynamic-size-ratio", "a share of memory from 0 to 1"));
    }
    let memory = memory_bytes();
    let dynamic = |flag: &str, default: u32, floor| {
        if flags.is_set(flag) {
            bounded(flags, flag, 1 << 10, CEILING)
        } else {
            Ok(scaled(default, ratio, memory, floor))
        }
    };
    Ok(MapSizes {
        policy: bounded(flags, "bpf-policy-map-max", 256, 65_536)?,
        policy_stats: bounded(flags, "bpf-policy-stats-map-max", 1 << 10, CEILING)?,
        conntrack_tcp: dynamic("bpf-ct-global-tcp-max", defaults.conntrack_tcp, TCP_FLOOR)?,
        conntrack_any: dynamic("bpf-ct-global-any-max", defaults.conntrack_any, ANY_FLOOR)?,
        services: bounded(flags, "bpf-lb-map-max", 256, CEILING)?,
        fragments: bounded(flags, "bpf-fragments-map-max", 256, 65_536)?,
        ..defaults
    })
}

/// A map's size when all that scale together may use `ratio` of the memory.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rough share, clamped afterwards"
)]
fn scaled(default: u32, ratio: f64, memory: u64, floor: u64) -> u32 {
    if ratio == 0.0 || memory == 0 {
        return default;
    }
    let entries = f64::from(default) * (memory as f64 * ratio) / DEFAULT_BYTES as f64;
    (entries as u64).clamp(floor, CEILING) as u32
}

fn bounded(flags: &Flags, flag: &str, least: u64, most: u64) -> Result<u32, Error> {
    let value = u64::try_from(flags.int(flag)).ok().filter(|value| (least..=most).contains(value));
    let value = value.and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| flags.reject(flag, format!("a number from {least} to {most}")))
}

/// The machine's memory; 0 if it can't be read.
fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

#[cfg(test)]
mod tests {
    use super::{ANY_FLOOR, TCP_FLOOR, scaled};

    #[test]
    fn sizes_follow_memory_between_floor_and_ceiling() {
        let gib = 1 << 30;
        assert_eq!(scaled(524_288, 0.0, 24 * gib, TCP_FLOOR), 524_288, "off");
        assert_eq!(u64::from(scaled(524_288, 0.0025, gib, TCP_FLOOR)), TCP_FLOOR);
        assert_eq!(u64::from(scaled(262_144, 0.0025, gib, ANY_FLOOR)), ANY_FLOOR);
        let large = scaled(524_288, 0.0025, 384 * gib, TCP_FLOOR);
        assert!((1 << 20..1 << 22).contains(&large), "{large}");
        assert_eq!(scaled(524_288, 1.0, 1 << 50, TCP_FLOOR), 16 << 20);
    }
}
