//! What becomes of a packet, and its accounting.

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT};
use cilia_maps::metrics::MetricsValue;
use cilia_maps::reason;

use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::{events, maps};

/// A packet that goes nowhere, with Cilium's number of the reason.
#[derive(Clone, Copy)]
pub struct Drop(pub u8);

/// What a forwarded packet's program returns to the kernel.
#[must_use]
#[derive(Clone, Copy)]
pub struct Verdict(i32);

/// A verdict, or why there is none.
pub type Outcome = Result<Verdict, Drop>;

impl Verdict {
    /// Go on into the host's stack, or out of the device at whose egress this is.
    pub const PASS: Self = Self(TC_ACT_OK as i32);

    /// What a redirect helper said.
    #[inline(always)]
    pub const fn redirect(code: i32) -> Self {
        Self(code)
    }
}

/// Counts the packet, tells of its drop, and gives the kernel its answer.
#[inline(always)]
pub fn finish(skb: Skb, s: &mut Scratch, direction: u8, outcome: Outcome) -> i32 {
    match outcome {
        Ok(Verdict(code)) => {
            count(s, reason::FORWARDED, direction, skb.len());
            code
        }
        Err(Drop(reason)) => {
            let direction = if s.direction == 0 { direction } else { s.direction };
            count(s, reason, direction, skb.len());
            events::dropped(skb, s, u32::from(reason));
            TC_ACT_SHOT as i32
        }
    }
}

/// Adds a packet to a counter.
#[inline(always)]
pub fn count(s: &mut Scratch, reason: u8, direction: u8, len: u32) {
    s.metrics_key.reason = reason;
    s.metrics_key.dir = direction;
    s.metrics_key.line = 0;
    s.metrics_key.file = 0;
    s.metrics_key.reserved = [0; 3];
    if let Some(value) = maps::get_mut(&maps::METRICS, &raw const s.metrics_key) {
        value.count += 1;
        value.bytes += u64::from(len);
    } else {
        s.metrics_value = MetricsValue { count: 1, bytes: u64::from(len) };
        // A full table of counters loses a count, never a packet.
        let _ = maps::set(&maps::METRICS, &raw const s.metrics_key, &raw const s.metrics_value);
    }
}
