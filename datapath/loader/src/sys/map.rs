//! Maps by file descriptor: made, looked into, written, walked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{absent_is_none, bpf, command, info, owned, pointer, pointer_mut, raw, word};

/// `BPF_MAP_TYPE_HASH`.
pub(crate) const HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`.
pub(crate) const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PERCPU_HASH`.
pub(crate) const PERCPU_HASH: u32 = 5;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`.
pub(crate) const PERCPU_ARRAY: u32 = 6;
/// `BPF_MAP_TYPE_LRU_HASH`.
pub(crate) const LRU_HASH: u32 = 9;
/// `BPF_MAP_TYPE_LRU_PERCPU_HASH`.
pub(crate) const LRU_PERCPU_HASH: u32 = 10;
/// `BPF_MAP_TYPE_LPM_TRIE`.
pub(crate) const LPM_TRIE: u32 = 11;
/// `BPF_MAP_TYPE_HASH_OF_MAPS`.
pub(crate) const HASH_OF_MAPS: u32 = 13;
/// `BPF_MAP_TYPE_RINGBUF`.
pub(crate) const RINGBUF: u32 = 27;
/// `BPF_F_NO_PREALLOC`.
pub(crate) const NO_PREALLOC: u32 = 1;
/// `BPF_F_NO_COMMON_LRU`: a list of each CPU's own.
pub(crate) const NO_COMMON_LRU: u32 = 2;
/// What the kernel says of a map.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MapShape {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
}

/// The shape of a map.
pub(crate) fn map_shape(fd: BorrowedFd<'_>) -> io::Result<MapShape> {
    let words = info::<24>(fd)?;
    Ok(MapShape {
        kind: word(&words, 0),
        id: word(&words, 1),
        key_size: word(&words, 2),
        value_size: word(&words, 3),
        max_entries: word(&words, 4),
        flags: word(&words, 5),
    })
}

/// Makes a map.
pub(crate) fn map_create(name: &str, shape: MapShape) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        name: [u8; 16],
    }
    let mut short = [0u8; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let mut attributes = Create {
        kind: shape.kind,
        key_size: shape.key_size,
        value_size: shape.value_size,
        max_entries: shape.max_entries,
        flags: shape.flags,
        inner_map_fd: 0,
        numa_node: 0,
        name: short,
    };
    bpf(command::MAP_CREATE, &mut attributes).map(owned)
}

#[repr(C)]
struct Element {
    fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A map with the sizes that its entries have, so that no caller can get them wrong.
#[derive(Debug)]
pub(crate) struct RawMap {
    fd: OwnedFd,
    pub(crate) shape: MapShape,
}

impl RawMap {
    /// Asks the kernel for the shape of the map behind a descriptor.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let shape = map_shape(fd.as_fd())?;
        Ok(Self { fd, shape })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn check(&self, key: &[u8], value: Option<usize>) -> io::Result<()> {
        let fits = key.len() == self.shape.key_size as usize
            && value.is_none_or(|value| value == self.value_size());
        if fits { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidInput)) }
    }

    /// Its descriptor as the value of a map of maps.
    pub(crate) fn descriptor(&self) -> [u8; 4] {
        raw(self.fd()).to_ne_bytes()
    }

    /// Bytes of a value as user space sees it: every CPU's, for a per-CPU map.
    fn value_size(&self) -> usize {
        let one = self.shape.value_size as usize;
        if matches!(self.shape.kind, PERCPU_HASH | LRU_PERCPU_HASH | PERCPU_ARRAY) {
            one.next_multiple_of(8) * possible_cpus()
        } else {
            one
        }
    }

    /// The value of a key.
    pub(crate) fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key, None)?;
        let mut value = vec![0u8; self.value_size()];
        let mut attributes = Element {
            fd: raw(self.fd()),
            pad: 0,
            key: pointer(key),
            value: pointer_mut(&mut value),
            flags: 0,
        };
        absent_is_none(bpf(command::MAP_LOOKUP_ELEM, &mut attributes).map(|_| value))
    }

    /// Sets the value of a key.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, Some(value.len()))?;
        let mut attributes = Element {
            fd: raw(self.fd()),
            pad: 0,
            key: pointer(key),
            value: pointer(value),
            flags: 0,
        };
        bpf(command::MAP_UPDATE_ELEM, &mut attributes).map(drop)
    }

    /// Removes a key; says whether it was there.
    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.check(key, None)?;
        let mut attributes =
            Element { fd: raw(self.fd()), pad: 0, key: pointer(key), value: 0, flags: 0 };
        absent_is_none(bpf(command::MAP_DELETE_ELEM, &mut attributes)).map(|done| done.is_some())
    }

    fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        let mut next = vec![0u8; self.shape.key_size as usize];
        let mut attributes = Element {
            fd: raw(self.fd()),
            pad: 0,
            key: key.map_or(0, pointer),
            value: pointer_mut(&mut next),
            flags: 0,
        };
        absent_is_none(bpf(command::MAP_GET_NEXT_KEY, &mut attributes).map(|_| next))
    }

    /// Calls `visit` with every entry. Entries that come or go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        match self.for_each_batch(&mut visit) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | 524)) => {
                let mut last = self.next_key(None)?;
                while let Some(key) = last {
                    if let Some(value) = self.lookup(&key)? {
                        visit(&key, &value);
                    }
                    last = self.next_key(Some(&key))?;
                }
                Ok(())
            }
            result => result,
        }
    }

    /// As [`Self::for_each`], thousands of entries per system call; `EINVAL` or `ENOTSUPP`, before
    /// anything was visited, where the kernel has no batches for this kind of map.
    fn for_each_batch(&self, visit: &mut impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        #[repr(C)]
        struct Batch {
            start: u64,
            next: u64,
            keys: u64,
            values: u64,
            count: u32,
            fd: u32,
            element_flags: u64,
            flags: u64,
        }
        const AT_ONCE: u32 = 1024;
        let (key_size, value_size) = (self.shape.key_size as usize, self.value_size());
        let mut capacity = AT_ONCE.min(self.shape.max_entries.max(1));
        let mut token = vec![0u8; key_size.max(8)];
        let mut next_token = token.clone();
        let mut first = true;
        loop {
            let mut keys = vec![0u8; key_size * capacity as usize];
            let mut values = vec![0u8; value_size * capacity as usize];
            let mut attributes = Batch {
                start: if first { 0 } else { pointer(&token) },
                next: pointer_mut(&mut next_token),
                keys: pointer_mut(&mut keys),
                values: pointer_mut(&mut values),
                count: capacity,
                fd: raw(self.fd()),
                element_flags: 0,
                flags: 0,
            };
            let result = bpf(command::MAP_LOOKUP_BATCH, &mut attributes);
            let last = match result {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // One bucket holds more than there is room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    capacity = capacity.saturating_mul(2);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let count = attributes.count.min(capacity) as usize;
            for (key, value) in
                keys.chunks_exact(key_size).zip(values.chunks_exact(value_size)).take(count)
            {
                visit(key, value);
            }
            if last || count == 0 {
                return Ok(());
            }
            std::mem::swap(&mut token, &mut next_token);
            first = false;
        }
    }
}

/// How many values a per-CPU map's entry has.
pub(crate) fn possible_cpus() -> usize {
    aya::util::nr_cpus().unwrap_or(1)
}
