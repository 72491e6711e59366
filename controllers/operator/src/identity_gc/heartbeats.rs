//! Decides what becomes of an identity: from when it was last heard of, and whether it is marked.
//!
//! An identity that is not in use and has been silent for the timeout is marked; the mark itself is
//! a sign of life, so that whoever wants to use the identity has another timeout to take it off.

use std::collections::HashMap;
use std::time::Duration;

use cilia_crds::NumericIdentity;

/// Signs of life older than this many timeouts are forgotten.
const FORGET_AFTER: u32 = 10;

/// What to do about an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    Keep,
    /// It is in use again: take the mark off.
    Unmark,
    Mark,
    Delete,
}

/// When each identity was last heard of; time counts from the start of the process.
#[derive(Debug)]
pub(super) struct Heartbeats {
    timeout: Duration,
    last: HashMap<NumericIdentity, Duration>,
}

impl Heartbeats {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, last: HashMap::new() }
    }

    /// The identity was written, or is in use.
    pub(super) fn beat(&mut self, identity: NumericIdentity, now: Duration) {
        self.last.insert(identity, now);
    }

    /// The identity is gone.
    pub(super) fn forget(&mut self, identity: NumericIdentity) {
        self.last.remove(&identity);
    }

    /// Forgets what was last heard of very long ago.
    pub(super) fn purge(&mut self, now: Duration) {
        let limit = self.timeout * FORGET_AFTER;
        self.last.retain(|_, last| now.saturating_sub(*last) < limit);
    }

    pub(super) fn judge(
        &mut self,
        identity: NumericIdentity,
        marked: bool,
        in_use: bool,
        now: Duration,
    ) -> Judgement {
        if in_use {
            self.beat(identity, now);
        }
        match (in_use, self.lives(identity, now), marked) {
            (true, _, true) => Judgement::Unmark,
            (true, ..) | (_, true, _) => Judgement::Keep,
            (_, _, false) => Judgement::Mark,
            (_, _, true) => Judgement::Delete,
        }
    }

    /// One never heard of lives while the process is younger than the timeout.
    fn lives(&self, identity: NumericIdentity, now: Duration) -> bool {
        let last = self.last.get(&identity).copied().unwrap_or(Duration::ZERO);
        now.saturating_sub(last) < self.timeout
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_crds::NumericIdentity;

    use super::{Heartbeats, Judgement::*};

    const ID: NumericIdentity = NumericIdentity(1000);

    fn minutes(minutes: u64) -> Duration {
        Duration::from_mins(minutes)
    }

    #[test]
    fn two_silences_end_an_identity() {
        let mut heartbeats = Heartbeats::new(minutes(30));
        heartbeats.beat(ID, minutes(0));
        assert_eq!(heartbeats.judge(ID, false, false, minutes(15)), Keep);
        assert_eq!(heartbeats.judge(ID, false, false, minutes(30)), Mark);
        // The mark's own event.
        heartbeats.beat(ID, minutes(30));
        assert_eq!(heartbeats.judge(ID, true, false, minutes(45)), Keep);
        assert_eq!(heartbeats.judge(ID, true, false, minutes(60)), Delete);
    }

    #[test]
    fn use_brings_it_back() {
        let mut heartbeats = Heartbeats::new(minutes(30));
        assert_eq!(heartbeats.judge(ID, true, true, minutes(60)), Unmark);
        assert_eq!(heartbeats.judge(ID, false, true, minutes(75)), Keep);
        assert_eq!(heartbeats.judge(ID, false, false, minutes(90)), Keep, "used not long ago");
        assert_eq!(heartbeats.judge(ID, false, false, minutes(105)), Mark, "full silence again");
    }

    #[test]
    fn one_never_heard_of_has_the_process_s_age() {
        let mut heartbeats = Heartbeats::new(minutes(30));
        assert_eq!(heartbeats.judge(ID, false, false, minutes(1)), Keep, "IDGC-07");
        assert_eq!(heartbeats.judge(ID, false, false, minutes(24 * 60)), Mark);
        heartbeats.beat(ID, minutes(1));
        heartbeats.purge(minutes(2));
        assert_eq!(heartbeats.last.len(), 1, "IDGC-03");
        heartbeats.purge(minutes(24 * 60));
        assert_eq!(heartbeats.last.len(), 0, "IDGC-05");
        heartbeats.beat(ID, minutes(1));
        heartbeats.forget(ID);
        assert_eq!(heartbeats.last.len(), 0, "IDGC-06");
    }
}
