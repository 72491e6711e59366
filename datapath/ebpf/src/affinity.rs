//! Session affinity: a client keeps its backend of a service for a while.

use cilia_maps::service::Affinity;

use crate::scratch::Scratch;
use crate::{lb, maps};

/// Slots that are searched for a backend which is no longer where it was.
const SEARCHED: u32 = 32;

#[inline(always)]
fn fill_key(s: &mut Scratch) {
    if s.v6() {
        s.client6.client = s.saddr;
        s.client6.rev_nat_id = s.rev_nat_index;
        s.client6.flags = 0;
        s.client6.pad = 0;
    } else {
        s.client4.client = [s.saddr[0], 0];
        s.client4.rev_nat_id = s.rev_nat_index;
        s.client4.flags = 0;
        s.client4.pad = 0;
    }
}

#[inline(always)]
fn find(s: &Scratch) -> Option<&'static Affinity> {
    if s.v6() {
        maps::get(&maps::LB6_AFFINITY, (&raw const s.client6).cast())
    } else {
        maps::get(&maps::LB4_AFFINITY, (&raw const s.client4).cast())
    }
}

/// The slot of the backend that the client has kept for less than `lasts` seconds, or 0.
#[inline(never)]
pub fn recall(s: &mut Scratch, count: u32, scope: u8, lasts: u32) -> u32 {
    fill_key(s);
    let Some(known) = find(s) else { return 0 };
    if u64::from(s.ct.now) > known.last_used + u64::from(lasts) {
        return 0;
    }
    let (id, hint) = (known.backend_id, known.slot);
    if hint >= 1 && hint <= count && has(s, hint, scope, id) {
        return hint;
    }
    let mut slot = 1;
    while slot <= SEARCHED {
        if slot > count {
            return 0;
        }
        if has(s, slot, scope, id) {
            return slot;
        }
        slot += 1;
    }
    0
}

#[inline(always)]
fn has(s: &mut Scratch, slot: u32, scope: u8, id: u32) -> bool {
    lb::service(s, slot as u16, scope).is_some_and(|place| place.backend_id == id)
}

/// Keeps the backend for the client.
#[inline(always)]
pub fn remember(s: &mut Scratch, id: u32, slot: u32) {
    fill_key(s);
    s.affinity = Affinity { last_used: s.ct.now.into(), backend_id: id, slot };
    let value = &raw const s.affinity;
    // Without room for it the client may get another backend next time, and that is all.
    let _ = if s.v6() {
        maps::set(&maps::LB6_AFFINITY, (&raw const s.client6).cast(), value)
    } else {
        maps::set(&maps::LB4_AFFINITY, (&raw const s.client4).cast(), value)
    };
}
