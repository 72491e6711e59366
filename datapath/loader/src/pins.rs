//! Decides which pinned maps are kept, which are carried over into a new size, and which are made
//! anew.
//!
//! A pinned map whose type, key, value and flags are what this version wants is used as it is;
//! one that differs only in size is replaced, with its entries copied; one whose layout changed
//! is replaced empty, and whoever owns it fills it again.

use std::io;
use std::path::{Path, PathBuf};

use cilia_maps::conntrack::{CtEntry, Tuple4, Tuple6};
use cilia_maps::endpoint::{EndpointInfo, EndpointKey};
use cilia_maps::fragment::{Frag4Key, Frag6Key, FragPorts};
use cilia_maps::ipcache::{IpcacheKey, RemoteEndpointInfo};
use cilia_maps::metrics::{MetricsKey, MetricsValue};
use cilia_maps::policy::{PolicyEntry, PolicyKey, PolicyStats, PolicyStatsKey};
use cilia_maps::service::{
    Affinity, Lb4AffinityKey, Lb4Backend, Lb4Key, Lb4ReverseNat, Lb6AffinityKey, Lb6Backend,
    Lb6Key, Lb6ReverseNat, LbService,
};
use cilia_maps::{Address, Prefix, config, names};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::config::MapSizes;
use crate::error::Error;
use crate::sys::{self, MapShape, RawMap};

fn shape<K, V>(kind: u32, max_entries: u32, flags: u32) -> MapShape {
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    MapShape {
        kind,
        id: 0,
        key_size: size(size_of::<K>()),
        value_size: size(size_of::<V>()),
        max_entries,
        flags,
    }
}

/// Every pinned map of the object, with the shape that it must have.
pub(crate) fn shapes(sizes: &MapSizes) -> Vec<(&'static str, MapShape)> {
    use sys::{ARRAY, HASH, HASH_OF_MAPS, LPM_TRIE, LRU_HASH, NO_PREALLOC};
    let (tcp, any, lb) = (sizes.conntrack_tcp, sizes.conntrack_any, sizes.services);
    vec![
        (names::LXC, shape::<EndpointKey, EndpointInfo>(HASH, sizes.endpoints, NO_PREALLOC)),
        (
            names::IPCACHE,
            shape::<Prefix<IpcacheKey>, RemoteEndpointInfo>(LPM_TRIE, sizes.ipcache, NO_PREALLOC),
        ),
        (names::POLICY_MAPS, shape::<u32, u32>(HASH_OF_MAPS, sizes.endpoints, NO_PREALLOC)),
        (
            names::POLICY_STATS,
            shape::<PolicyStatsKey, PolicyStats>(
                sys::LRU_PERCPU_HASH,
                sizes.policy_stats,
                sys::NO_COMMON_LRU,
            ),
        ),
        (names::POLICY_OPTIONS, shape::<u32, u32>(HASH, sizes.endpoints, NO_PREALLOC)),
        (names::BLOCK4, shape::<Prefix<u32>, u32>(LPM_TRIE, sizes.blocks, NO_PREALLOC)),
        (names::BLOCK6, shape::<Prefix<Address>, u32>(LPM_TRIE, sizes.blocks, NO_PREALLOC)),
        (names::CT_TCP4, shape::<Tuple4, CtEntry>(LRU_HASH, tcp, 0)),
        (names::CT_ANY4, shape::<Tuple4, CtEntry>(LRU_HASH, any, 0)),
        (names::CT_TCP6, shape::<Tuple6, CtEntry>(LRU_HASH, tcp, 0)),
        (names::CT_ANY6, shape::<Tuple6, CtEntry>(LRU_HASH, any, 0)),
        (names::LB4_SERVICES, shape::<Lb4Key, LbService>(HASH, lb, NO_PREALLOC)),
        (names::LB6_SERVICES, shape::<Lb6Key, LbService>(HASH, lb, NO_PREALLOC)),
        (names::LB4_BACKENDS, shape::<u32, Lb4Backend>(HASH, lb, NO_PREALLOC)),
        (names::LB6_BACKENDS, shape::<u32, Lb6Backend>(HASH, lb, NO_PREALLOC)),
        (names::LB4_REVERSE_NAT, shape::<u16, Lb4ReverseNat>(HASH, lb, NO_PREALLOC)),
        (names::LB6_REVERSE_NAT, shape::<u16, Lb6ReverseNat>(HASH, lb, NO_PREALLOC)),
        (names::LB4_AFFINITY, shape::<Lb4AffinityKey, Affinity>(LRU_HASH, lb, 0)),
        (names::LB6_AFFINITY, shape::<Lb6AffinityKey, Affinity>(LRU_HASH, lb, 0)),
        (names::FRAG4, shape::<Frag4Key, FragPorts>(LRU_HASH, sizes.fragments, 0)),
        (names::FRAG6, shape::<Frag6Key, FragPorts>(LRU_HASH, sizes.fragments, 0)),
        (names::METRICS, shape::<MetricsKey, MetricsValue>(sys::PERCPU_HASH, 1024, 0)),
        (names::EVENTS, shape::<(), ()>(sys::RINGBUF, sizes.events_bytes, 0)),
        (names::EVENTS_LOST, shape::<u32, u64>(sys::PERCPU_ARRAY, 1, 0)),
        (names::NODE_CONFIG, shape::<u32, config::NodeConfig>(ARRAY, 1, 0)),
    ]
}

/// The shape of one endpoint's policy map.
pub(crate) fn policy_shape(sizes: &MapSizes) -> MapShape {
    shape::<Prefix<PolicyKey>, PolicyEntry>(sys::LPM_TRIE, sizes.policy, sys::NO_PREALLOC)
}

/// What becomes of a pinned map.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    CopyInto,
    Replace,
}

fn fate(pinned: MapShape, wanted: MapShape) -> Fate {
    let layout = |s: MapShape| (s.kind, s.key_size, s.value_size, s.flags);
    if layout(pinned) != layout(wanted) {
        Fate::Replace
    } else if pinned.max_entries == wanted.max_entries {
        Fate::Keep
    } else if matches!(wanted.kind, sys::RINGBUF | sys::HASH_OF_MAPS) {
        // Nothing to carry over; policy maps are put back by their owner from their own pins.
        Fate::Replace
    } else {
        Fate::CopyInto
    }
}

pub(crate) fn pin_error(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Pin { operation, path: path.to_path_buf(), source }
}

/// A map that was pinned under a name but has another size than is wanted now.
#[derive(Debug)]
pub(crate) struct Outgrown {
    name: &'static str,
    old: RawMap,
}

/// The directory of map pins.
#[derive(Debug)]
pub(crate) struct Pins {
    pub(crate) directory: PathBuf,
}

impl Pins {
    pub(crate) fn new(bpf_root: &Path) -> Result<Self, Error> {
        let directory = bpf_root.join("tc/globals");
        std::fs::create_dir_all(&directory)
            .map_err(|source| Error::Directory { path: directory.clone(), source })?;
        let system = statfs(&directory)
            .map_err(|errno| Error::Directory { path: directory.clone(), source: errno.into() })?;
        if system.filesystem_type() != BPF_FS_MAGIC {
            return Err(Error::NotBpf { path: bpf_root.to_path_buf() });
        }
        Ok(Self { directory })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Opens a pinned map; `None` if there is none.
    pub(crate) fn open(&self, name: &str) -> Result<Option<RawMap>, Error> {
        let path = self.path(name);
        sys::open_pin(&path)
            .and_then(|fd| fd.map(RawMap::new).transpose())
            .map_err(|source| pin_error("open", &path, source))
    }

    /// Opens a map that must be pinned.
    pub(crate) fn require(&self, name: &str) -> Result<RawMap, Error> {
        self.open(name)?.ok_or_else(|| {
            pin_error("open", &self.path(name), io::Error::from(io::ErrorKind::NotFound))
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(pin_error("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Unpins what does not fit, before the object is loaded; gives what is to be copied after.
    pub(crate) fn make_room(
        &self,
        shapes: &[(&'static str, MapShape)],
    ) -> Result<Vec<Outgrown>, Error> {
        let mut outgrown = Vec::new();
        for &(name, wanted) in shapes {
            let Some(old) = self.open(name)? else { continue };
            match fate(old.shape, wanted) {
                Fate::Keep => continue,
                Fate::CopyInto => {
                    tracing::info!(
                        map = name,
                        from = old.shape.max_entries,
                        to = wanted.max_entries,
                        "pinned map gets another size; its entries are copied"
                    );
                    outgrown.push(Outgrown { name, old });
                }
                Fate::Replace => tracing::warn!(
                    map = name,
                    pinned = ?old.shape,
                    ?wanted,
                    "pinned map has another layout; it is replaced by an empty one"
                ),
            }
            self.remove(name)?;
        }
        Ok(outgrown)
    }

    /// Copies the entries of maps that got another size.
    pub(crate) fn carry_over(&self, outgrown: &[Outgrown]) -> Result<(), Error> {
        for Outgrown { name, old } in outgrown {
            let refused = copy(old, &self.require(name)?, name)?;
            tracing::info!(map = name, refused, "entries copied");
        }
        Ok(())
    }

    /// Opens an endpoint's policy map, or makes an empty one and pins it.
    pub(crate) fn policy_map(&self, endpoint: u16, sizes: &MapSizes) -> Result<RawMap, Error> {
        let name = policy_name(endpoint);
        let wanted = policy_shape(sizes);
        let failed = |source| Error::CreateMap { map: name.clone(), source };
        let make = || sys::map_create(&name, wanted).and_then(RawMap::new).map_err(failed);
        let Some(old) = self.open(&name)? else {
            let new = make()?;
            self.pin(&new, &name)?;
            return Ok(new);
        };
        match fate(old.shape, wanted) {
            Fate::Keep => return Ok(old),
            Fate::Replace => {
                tracing::warn!(map = name, "pinned policy map has another layout; it is replaced");
                let new = make()?;
                self.swap(&new, &name)?;
                return Ok(new);
            }
            Fate::CopyInto => {}
        }
        // The endpoint keeps the old map until the new one says the same.
        let new = make()?;
        let refused = copy(&old, &new, &name)?;
        if refused > 0 {
            tracing::warn!(
                map = name,
                size = wanted.max_entries,
                refused,
                "policy does not fit into the wanted size; its map stays as it is"
            );
            return Ok(old);
        }
        self.swap(&new, &name)?;
        Ok(new)
    }

    fn pin(&self, map: &RawMap, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        sys::pin(map.fd(), &path).map_err(|source| pin_error("make", &path, source))
    }

    /// Pins a map under a name in place of what is there, atomically.
    fn swap(&self, map: &RawMap, name: &str) -> Result<(), Error> {
        let aside = format!("{name}_new");
        // What a swap that was interrupted left.
        self.remove(&aside)?;
        self.pin(map, &aside)?;
        let path = self.path(name);
        std::fs::rename(self.path(&aside), &path)
            .map_err(|source| pin_error("replace", &path, source))
    }

    /// Endpoints that have a pinned policy map.
    pub(crate) fn policies(&self) -> Result<Vec<u16>, Error> {
        let failed = |source| pin_error("list", &self.directory, source);
        let mut endpoints = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(names::POLICY_PREFIX));
            endpoints.extend(id.and_then(|id| id.parse::<u16>().ok()));
        }
        endpoints.sort_unstable();
        Ok(endpoints)
    }
}

/// Copies every entry of a map; says how many the other one did not take.
fn copy(from: &RawMap, to: &RawMap, name: &str) -> Result<u64, Error> {
    let mut refused = 0;
    from.for_each(|key, value| refused += u64::from(to.update(key, value).is_err()))
        .map_err(|source| Error::Map { operation: "list", map: name.into(), source })?;
    Ok(refused)
}

/// The name of an endpoint's policy map.
pub(crate) fn policy_name(endpoint: u16) -> String {
    format!("{}{endpoint:05}", names::POLICY_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::{Fate, fate, shapes};
    use crate::config::MapSizes;

    #[test]
    fn what_becomes_of_a_pinned_map() {
        let (name, wanted) = shapes(&MapSizes::default())[0];
        let cases = [
            ("as wanted", wanted, Fate::Keep),
            ("another id", super::MapShape { id: 7, ..wanted }, Fate::Keep),
            ("another size", super::MapShape { max_entries: 1, ..wanted }, Fate::CopyInto),
            ("another value", super::MapShape { value_size: 1, ..wanted }, Fate::Replace),
            ("another type", super::MapShape { kind: 9, ..wanted }, Fate::Replace),
        ];
        for (case, pinned, want) in cases {
            assert_eq!(fate(pinned, wanted), want, "{name}: {case}");
        }
    }
}
