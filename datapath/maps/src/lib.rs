#![no_std]
//! Key and value types of every eBPF map, shared by the kernel and the user side.
//!
//! Layouts are Cilium's, byte for byte, where Cilium has the map; each type states its size and
//! a constant assertion holds it there. Addresses are in network byte order: an IPv4 address is
//! the first of four words, the other three zero. Ports are in network byte order where the
//! field says so.

pub mod config;
pub mod conntrack;
pub mod endpoint;
pub mod event;
pub mod fragment;
pub mod identity;
pub mod ipcache;
pub mod metrics;
pub mod names;
pub mod policy;
pub mod reason;
pub mod service;

/// Plain old data without padding: every bit pattern is a value, and every byte of it is defined.
///
/// # Safety
/// The type is `repr(C)` of integers and arrays of them only, and has no implicit padding.
pub unsafe trait Plain: Copy + 'static {
    /// The value's bytes, as the kernel stores them.
    fn bytes(&self) -> &[u8] {
        // SAFETY: a `Plain` has no padding, so each of its bytes is initialised; the slice
        // borrows `self`.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value whose bytes these are; `None` if there are fewer bytes than it has.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: the slice is long enough, any bit pattern is valid, the read needs no alignment.
        Some(unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

// SAFETY: integers have neither padding nor invalid patterns.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// Declares that a type is [`Plain`] and holds it to its size.
macro_rules! plain {
    ($($name:ty = $size:expr),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: `repr(C)` of integers whose sizes add up to the asserted size: no padding.
        unsafe impl $crate::Plain for $name {}
    )+};
}
pub(crate) use plain;

/// An IPv4 or IPv6 address in network byte order; IPv4 in the first word, the rest zero.
pub type Address = [u32; 4];

/// Address family as maps write it: IPv4.
pub const FAMILY_V4: u8 = 1;
/// Address family as maps write it: IPv6.
pub const FAMILY_V6: u8 = 2;

/// The key of a longest-prefix-match map: how many bits of `data` count, then the data.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix<K> {
    /// Bits of `data` that count.
    pub prefix_len: u32,
    /// What is matched.
    pub data: K,
}

plain! {
    Prefix<policy::PolicyKey> = 12,
    Prefix<ipcache::IpcacheKey> = 24,
    Prefix<u32> = 8,
    Prefix<Address> = 20,
}
