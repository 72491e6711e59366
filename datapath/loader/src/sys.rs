//! The `bpf(2)` commands that the loader gives itself: maps, pins and links by file descriptor.
//!
//! aya parses, relocates and loads the object; what follows needs shared (`&self`) access to maps
//! from many tasks, maps inside maps, and links that outlive the process, so it is done here,
//! safely wrapped: every function checks the sizes of what it hands to the kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

mod command {
    pub(super) const MAP_CREATE: i64 = 0;
    pub(super) const MAP_LOOKUP_ELEM: i64 = 1;
    pub(super) const MAP_UPDATE_ELEM: i64 = 2;
    pub(super) const MAP_DELETE_ELEM: i64 = 3;
    pub(super) const MAP_GET_NEXT_KEY: i64 = 4;
    pub(super) const OBJ_PIN: i64 = 6;
    pub(super) const OBJ_GET: i64 = 7;
    pub(super) const PROG_TEST_RUN: i64 = 10;
    pub(super) const OBJ_GET_INFO_BY_FD: i64 = 15;
    pub(super) const MAP_LOOKUP_BATCH: i64 = 24;
    pub(super) const LINK_CREATE: i64 = 28;
    pub(super) const LINK_UPDATE: i64 = 29;
}

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
/// `BPF_MAP_TYPE_LPM_TRIE`.
pub(crate) const LPM_TRIE: u32 = 11;
/// `BPF_MAP_TYPE_HASH_OF_MAPS`.
pub(crate) const HASH_OF_MAPS: u32 = 13;
/// `BPF_MAP_TYPE_RINGBUF`.
pub(crate) const RINGBUF: u32 = 27;
/// `BPF_F_NO_PREALLOC`.
pub(crate) const NO_PREALLOC: u32 = 1;
/// `BPF_TCX_INGRESS`.
pub(crate) const TCX_INGRESS: u32 = 46;
/// `BPF_TCX_EGRESS`.
pub(crate) const TCX_EGRESS: u32 = 47;

/// Runs a `bpf(2)` command on an attribute structure.
fn bpf<A>(command: i64, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: `attributes` is a live `repr(C)` structure of the size given; the pointers in it are
    // made by the callers in this module from slices that outlive the call and are as long as the
    // kernel reads or writes.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// A new descriptor from a command's result.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made the descriptor for this call; nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    // A borrowed descriptor is never negative.
    fd.as_raw_fd().unsigned_abs()
}

fn pointer(bytes: &[u8]) -> u64 {
    bytes.as_ptr().addr() as u64
}

fn pointer_mut(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

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

#[repr(C)]
struct Info {
    fd: u32,
    len: u32,
    info: u64,
}

fn info<const N: usize>(fd: BorrowedFd<'_>) -> io::Result<[u8; N]> {
    let mut out = [0u8; N];
    let mut attributes = Info { fd: raw(fd), len: length(&out), info: pointer_mut(&mut out) };
    bpf(command::OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(out)
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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

/// The device that a tcx link is on; 0 when the device is gone.
pub(crate) fn link_ifindex(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // struct bpf_link_info: type, id, prog_id, pad, then tcx's ifindex.
    Ok(word(&info::<24>(fd)?, 4))
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
        if matches!(self.shape.kind, PERCPU_HASH | PERCPU_ARRAY) {
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
            in_batch: u64,
            out_batch: u64,
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
                in_batch: if first { 0 } else { pointer(&token) },
                out_batch: pointer_mut(&mut next_token),
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

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How many values a per-CPU map's entry has.
pub(crate) fn possible_cpus() -> usize {
    aya::util::nr_cpus().unwrap_or(1)
}

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Opens what is pinned at a path; `None` if nothing is.
pub(crate) fn open_pin(path: &Path) -> io::Result<Option<OwnedFd>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object { path: pointer(path.as_bytes_with_nul()), fd: 0, flags: 0 };
    absent_is_none(bpf(command::OBJ_GET, &mut attributes).map(owned))
}

/// Pins an object at a path.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object { path: pointer(path.as_bytes_with_nul()), fd: raw(fd), flags: 0 };
    bpf(command::OBJ_PIN, &mut attributes).map(drop)
}

/// Attaches a program to a device's tcx hook.
pub(crate) fn link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        relative: u64,
        expected_revision: u64,
    }
    let mut attributes = Create {
        program: raw(program),
        target: ifindex,
        attach_type,
        flags: 0,
        relative: 0,
        expected_revision: 0,
    };
    bpf(command::LINK_CREATE, &mut attributes).map(owned)
}

/// Puts another program behind a link, atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Update {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let mut attributes =
        Update { link: raw(link), program: raw(program), flags: 0, old_program: 0 };
    bpf(command::LINK_UPDATE, &mut attributes).map(drop)
}

/// Runs a packet through a classifier without a device; gives its verdict and the packet after it.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: &[u8],
) -> io::Result<(u32, Vec<u8>)> {
    #[repr(C)]
    struct Run {
        program: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        pad: u32,
    }
    let mut out = vec![0u8; packet.len() + 256];
    let mut attributes = Run {
        program: raw(program),
        retval: 0,
        data_size_in: length(packet),
        data_size_out: length(&out),
        data_in: pointer(packet),
        data_out: pointer_mut(&mut out),
        repeat: 1,
        duration: 0,
        ctx_size_in: length(context),
        ctx_size_out: 0,
        ctx_in: pointer(context),
        ctx_out: 0,
        flags: 0,
        cpu: 0,
        batch_size: 0,
        pad: 0,
    };
    bpf(command::PROG_TEST_RUN, &mut attributes)?;
    out.truncate(attributes.data_size_out as usize);
    Ok((attributes.retval, out))
}
