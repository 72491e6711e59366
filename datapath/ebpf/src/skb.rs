//! The packet as the kernel hands it over: one function per kind of access.
//!
//! Heads are copied in and out by helper, never read in place: packets stay as they are, GSO
//! frames and fragments lists included, and no check of bounds is ever in the program.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_TUNINFO_IPV6, BPF_F_ZERO_CSUM_TX,
    bpf_tunnel_key,
};
use aya_ebpf::helpers;
use cilia_maps::Address;

/// Offset of the IP head: every device here is an Ethernet.
pub const L3: u32 = 14;
/// Offset of the destination MAC.
const ETH_DESTINATION: u32 = 0;
/// Packet type of frames for this host.
const PACKET_HOST: u32 = 0;
/// Flag of `bpf_l4_csum_replace`: the packet is IPv6, so a checksum of the whole frame changes
/// with its addresses (Linux 6.16).
const CSUM_IPV6: u64 = 1 << 7;

/// The packet.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Skb(pub *mut __sk_buff);

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident),+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(self) -> u32 {
            // SAFETY: the context that the kernel passed to the program; the verifier knows it.
            unsafe { (*self.0).$name }
        }
    )+};
}

impl Skb {
    fields!(
        /// Length of the whole packet.
        len,
        /// `EtherType`, network byte order in the low half.
        protocol,
        /// Device at whose hook this is.
        ifindex,
        /// Device by which it came to this host, 0 for one that was made here.
        ingress_ifindex,
        /// Whom the frame was for.
        pkt_type
    );

    /// Copies bytes out of the packet.
    #[inline(always)]
    pub fn load<T: Copy>(self, offset: u32) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes all of `value`, or fails, where it is not used. `T` is only
        // ever a head of plain integers.
        unsafe {
            let size = size_of::<T>() as u32;
            if helpers::bpf_skb_load_bytes(self.0.cast(), offset, value.as_mut_ptr().cast(), size)
                == 0
            {
                Some(value.assume_init())
            } else {
                None
            }
        }
    }

    /// Copies the packet's first bytes to where an event is written.
    #[inline(always)]
    pub fn capture(self, to: *mut c_void, len: u32) {
        // SAFETY: there are at least `len` bytes at `to`, which the verifier checks. When it
        // fails, the helper clears what it was to write.
        unsafe {
            helpers::bpf_skb_load_bytes(self.0.cast(), 0, to, len);
        }
    }

    /// Writes bytes into the packet; says whether it worked.
    #[inline(always)]
    pub fn store<T: Copy>(self, offset: u32, value: *const T) -> bool {
        // SAFETY: the helper reads a `T` from where `value` points; the verifier refuses a program in
        // which that is not initialised memory of this size.
        unsafe {
            let size = size_of::<T>() as u32;
            helpers::bpf_skb_store_bytes(self.0, offset, value.cast(), size, 0) == 0
        }
    }

    /// Corrects an IPv4 head's checksum for a field of `size` bytes.
    #[inline(always)]
    pub fn l3_csum(self, offset: u32, from: u32, to: u32, size: u64) -> bool {
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_l3_csum_replace(self.0, offset, from.into(), to.into(), size) == 0 }
    }

    /// Corrects an L4 checksum for a changed port.
    #[inline(always)]
    pub fn l4_csum_port(self, offset: u32, from: u16, to: u16, udp: bool) -> bool {
        let flags = 2 | zero_means_none(udp);
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_l4_csum_replace(self.0, offset, from.into(), to.into(), flags) == 0 }
    }

    /// Corrects an L4 checksum for a changed IPv4 address of the pseudo head.
    #[inline(always)]
    pub fn l4_csum_addr(self, offset: u32, from: u32, to: u32, udp: bool) -> bool {
        let flags = 4 | u64::from(BPF_F_PSEUDO_HDR) | zero_means_none(udp);
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_l4_csum_replace(self.0, offset, from.into(), to.into(), flags) == 0 }
    }

    /// Corrects an L4 checksum for a changed IPv6 address of the pseudo head.
    #[inline(always)]
    pub fn l4_csum_addr6(
        self,
        offset: u32,
        from: *const Address,
        to: *const Address,
        udp: bool,
    ) -> bool {
        let difference = difference(from, to);
        let flags = u64::from(BPF_F_PSEUDO_HDR) | zero_means_none(udp);
        // SAFETY: no pointers but the context.
        unsafe {
            helpers::bpf_l4_csum_replace(self.0, offset, 0, difference, flags | CSUM_IPV6) == 0
                || helpers::bpf_l4_csum_replace(self.0, offset, 0, difference, flags) == 0
        }
    }

    /// Corrects an L4 checksum for a changed IPv6 address inside what it covers.
    #[inline(always)]
    pub fn l4_csum_bytes6(self, offset: u32, from: *const Address, to: *const Address) -> bool {
        let difference = difference(from, to);
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_l4_csum_replace(self.0, offset, 0, difference, 0) == 0 }
    }

    /// Makes the frame one for this host, whatever its destination MAC.
    #[inline(always)]
    pub fn for_this_host(self) -> bool {
        // SAFETY: no pointers but the context.
        self.pkt_type() == PACKET_HOST
            || unsafe { helpers::bpf_skb_change_type(self.0, PACKET_HOST) == 0 }
    }

    /// Writes both MACs, destination first.
    #[inline(always)]
    pub fn set_macs(self, macs: *const [u16; 6]) -> bool {
        self.store(ETH_DESTINATION, macs)
    }

    /// Cuts the packet to a length, or makes it longer by zeros.
    #[inline(always)]
    pub fn resize(self, len: u32) -> bool {
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_skb_change_tail(self.0, len, 0) == 0 }
    }

    /// Moves the packet to the other end of a veth, past the stack of this namespace.
    #[inline(always)]
    pub fn redirect_peer(self, ifindex: u32) -> i32 {
        // SAFETY: no pointers.
        unsafe { helpers::bpf_redirect_peer(ifindex, 0) as i32 }
    }

    /// Sends the packet out of a device.
    #[inline(always)]
    pub fn redirect(self, ifindex: u32) -> i32 {
        // SAFETY: no pointers.
        unsafe { helpers::bpf_redirect(ifindex, 0) as i32 }
    }

    /// The number that came with the packet through the tunnel.
    #[inline(always)]
    pub fn tunnel_id(self) -> Option<u32> {
        let mut key = MaybeUninit::<bpf_tunnel_key>::zeroed();
        // SAFETY: `bpf_tunnel_key` is plain integers, for which zero is valid; the helper writes
        // no more than the size it is told. It fails, for lack of the flag, if the tunnel is IPv6.
        unsafe {
            let size = size_of::<bpf_tunnel_key>() as u32;
            let skb = self.0;
            if helpers::bpf_skb_get_tunnel_key(skb, key.as_mut_ptr(), size, 0) == 0
                || helpers::bpf_skb_get_tunnel_key(
                    skb,
                    key.as_mut_ptr(),
                    size,
                    BPF_F_TUNINFO_IPV6.into(),
                ) == 0
            {
                Some((*key.as_ptr()).tunnel_id)
            } else {
                None
            }
        }
    }

    /// Says through which tunnel the packet goes, and its number there.
    #[inline(always)]
    pub fn set_tunnel(self, id: u32, remote: &Address, v6: bool) -> bool {
        let mut key = MaybeUninit::<bpf_tunnel_key>::zeroed();
        // SAFETY: as in `tunnel_id`; the fields written are inside `key`.
        unsafe {
            let to = &mut *key.as_mut_ptr();
            to.tunnel_id = id;
            to.tunnel_ttl = 64;
            let flags = if v6 {
                to.__bindgen_anon_1.remote_ipv6 = *remote;
                BPF_F_TUNINFO_IPV6
            } else {
                to.__bindgen_anon_1.remote_ipv4 = u32::from_be(remote[0]);
                BPF_F_ZERO_CSUM_TX
            };
            let size = size_of::<bpf_tunnel_key>() as u32;
            helpers::bpf_skb_set_tunnel_key(self.0, key.as_mut_ptr(), size, flags.into()) == 0
        }
    }

    /// The flow's hash.
    #[inline(always)]
    pub fn hash(self) -> u32 {
        // SAFETY: no pointers but the context.
        unsafe { helpers::bpf_get_hash_recalc(self.0) }
    }
}

#[inline(always)]
fn zero_means_none(udp: bool) -> u64 {
    if udp { BPF_F_MARK_MANGLED_0.into() } else { 0 }
}

#[inline(always)]
fn difference(from: *const Address, to: *const Address) -> u64 {
    let size = size_of::<Address>() as u32;
    // SAFETY: the helper reads an address from where each points, as the verifier checks.
    unsafe {
        helpers::bpf_csum_diff(from.cast_mut().cast(), size, to.cast_mut().cast(), size, 0) as u64
    }
}

/// The sum over a value's bytes, added to another sum.
#[inline(always)]
pub fn sum<T>(of: *const T, seed: u32) -> u32 {
    let size = size_of::<T>() as u32;
    // SAFETY: the helper reads a `T`, whose size is a multiple of four, from where `of` points.
    unsafe {
        helpers::bpf_csum_diff(core::ptr::null_mut(), 0, of.cast_mut().cast(), size, seed) as u32
    }
}

/// The internet checksum of a sum.
#[inline(always)]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Seconds of monotonic time.
#[inline(always)]
pub fn seconds() -> u32 {
    // SAFETY: no pointers.
    (unsafe { helpers::bpf_ktime_get_ns() } / 1_000_000_000) as u32
}

/// A random number.
#[inline(always)]
pub fn random() -> u32 {
    // SAFETY: no pointers.
    unsafe { helpers::bpf_get_prandom_u32() }
}
