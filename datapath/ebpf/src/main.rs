//! The kernel side of Cilia's datapath: one module per hook, one per concern.
//!
//! Hooks: [`from_container`], [`to_container`], [`from_overlay`], [`from_host`], [`netdev`]. A packet function
//! returns an [`Outcome`](verdict::Outcome); what is not forwarded carries Cilium's number of the
//! reason. What is known of the packet in hand is in [`scratch::Scratch`], in a per-CPU map, since
//! the stack has 512 bytes: programs at these hooks run with bottom halves off, so that one packet
//! has it to itself.
#![no_std]
#![no_main]

mod affinity;
mod conntrack;
mod deliver;
mod encap;
mod events;
mod frag;
mod from_container;
mod from_host;
mod from_overlay;
mod host;
mod icmp;
mod ipcache;
mod lb;
mod maps;
mod nat;
mod netdev;
mod parse;
mod policy;
mod reject;
mod scratch;
mod skb;
mod to_container;
mod verdict;

// The kernel gives its helpers only to programs under the GPL.
// SAFETY: nothing else in the object has this name or section, and the loader reads a text there.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
