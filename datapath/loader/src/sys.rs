//! The `bpf(2)` commands that the loader gives itself: maps, pins and links by file descriptor.
//!
//! aya parses, relocates and loads the object; what follows needs shared (`&self`) access to maps
//! from many tasks, maps inside maps, and links that outlive the process, so it is done here,
//! safely wrapped: every function checks the sizes of what it hands to the kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

mod map;

pub(crate) use map::*;

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

#[repr(C)]
struct Info {
    fd: u32,
    len: u32,
    to: u64,
}

fn info<const N: usize>(fd: BorrowedFd<'_>) -> io::Result<[u8; N]> {
    let mut out = [0u8; N];
    let mut attributes = Info { fd: raw(fd), len: length(&out), to: pointer_mut(&mut out) };
    bpf(command::OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(out)
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The device that a tcx link is on; 0 when the device is gone.
pub(crate) fn link_ifindex(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // struct bpf_link_info: type, id, prog_id, pad, then tcx's ifindex.
    Ok(word(&info::<24>(fd)?, 4))
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
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
