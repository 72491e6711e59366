//! Decides how long an endpoint waits before it takes on an identity that the cluster has only just got.
//!
//! Packets carry the sender's identity, so a node that has not heard of a new one drops them. Nobody can say when
//! the last node has heard of it; but all watch the same API server, and how late it tells this node what this node
//! wrote is known. The wait is some times that, at least a quarter of a second (the other nodes write their policy
//! maps in that time, too), and at most `identity-change-grace-period`; all of that while this node's own watch has
//! not told of the identity yet. It counts from when the identity was first seen: one that others use is not waited
//! for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cilia_crds::NumericIdentity;

/// Times the delay of this node's own watch. Others may be slower, but an edit of labels shall count within a second.
const TIMES: u32 = 5;
const LEAST: Duration = Duration::from_millis(250);
/// The watch's delay where it could not be measured yet: where the operator makes identities, it is always the first
/// to tell of them. An API server whose own target is kept (99 % of requests within a second) is faster.
const ASSUMED: Duration = Duration::from_millis(100);
/// What is remembered of an identity is forgotten after so many graces.
const FORGET_AFTER: u32 = 4;

/// Identities that were seen for the first time not long ago; about 100 bytes each.
#[derive(Debug)]
pub(super) struct Grace {
    most: Duration,
    /// By how much the watch was late, the last time that could be told.
    delay: Option<Duration>,
    seen: HashMap<NumericIdentity, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    first: Instant,
    /// The watch has told of it, too.
    heard: bool,
}

impl Grace {
    pub(super) fn new(most: Duration) -> Self {
        Self { most, delay: None, seen: HashMap::new() }
    }

    /// The identity exists: whoever says so.
    pub(super) fn seen(&mut self, number: NumericIdentity, now: Instant) {
        if self.most.is_zero() || self.seen.contains_key(&number) {
            return;
        }
        let limit = self.most * FORGET_AFTER;
        self.seen.retain(|_, seen| now.duration_since(seen.first) < limit);
        self.seen.insert(number, Seen { first: now, heard: false });
    }

    /// The watch says that it exists.
    pub(super) fn heard(&mut self, number: NumericIdentity, now: Instant) {
        let known = self.seen.contains_key(&number);
        self.seen(number, now);
        let Some(seen) = self.seen.get_mut(&number).filter(|seen| !seen.heard) else { return };
        seen.heard = true;
        // Of what it is the first to tell nobody knows how late it is.
        if known {
            let late = now.duration_since(seen.first);
            // What was bad a moment ago may become so again.
            self.delay = Some(late.max(self.delay.unwrap_or_default() / 2));
        }
    }

    pub(super) fn forget(&mut self, number: NumericIdentity) {
        self.seen.remove(&number);
    }

    /// When to ask again; nothing if it need not be waited for any more.
    pub(super) fn left(&self, number: NumericIdentity, now: Instant) -> Option<Duration> {
        let seen = self.seen.get(&number)?;
        let waited = now.duration_since(seen.first);
        if !seen.heard {
            // The watch may tell of it at any moment, and then it is soon over.
            let left = self.most.saturating_sub(waited);
            return Some(left.min(LEAST)).filter(|left| !left.is_zero());
        }
        let whole = (self.delay.unwrap_or(ASSUMED) * TIMES).max(LEAST).min(self.most);
        Some(whole.saturating_sub(waited)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use cilia_crds::NumericIdentity;

    use super::Grace;

    const NEW: NumericIdentity = NumericIdentity(1000);

    const MOST: Duration = Duration::from_secs(5);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// When an endpoint takes on an identity of which the watch tells so late, by asking when it is told to.
    fn taken_on(grace: &mut Grace, number: NumericIdentity, start: Instant, late: u64) -> u64 {
        grace.seen(number, start);
        let (mut now, mut heard) = (Duration::ZERO, false);
        loop {
            if !heard && now >= millis(late) {
                heard = true;
                grace.heard(number, start + millis(late));
            }
            match grace.left(number, start + now) {
                Some(left) => now += left,
                None => return u64::try_from(now.as_millis()).expect("not long"),
            }
        }
    }

    #[test]
    fn the_wait_follows_the_watch() {
        // It is asked again every 250 ms as long as the watch has told nothing.
        for (late, want) in
            [(0, 250), (10, 250), (50, 250), (150, 750), (400, 2000), (2000, 5000), (6000, 5000)]
        {
            let mut grace = Grace::new(MOST);
            assert_eq!(taken_on(&mut grace, NEW, Instant::now(), late), want, "{late} ms late");
        }
    }

    #[test]
    fn a_watch_that_was_late_is_not_trusted_at_once() {
        let (mut grace, start) = (Grace::new(MOST), Instant::now());
        let at = |second: u64| start + Duration::from_secs(second);
        taken_on(&mut grace, NumericIdentity(1), start, 800);
        assert_eq!(taken_on(&mut grace, NumericIdentity(2), at(10), 10), 2000);
        assert_eq!(taken_on(&mut grace, NumericIdentity(3), at(20), 10), 1000);
        // What others made says nothing of the watch.
        for other in 100..200 {
            grace.heard(NumericIdentity(other), at(30));
        }
        assert_eq!(grace.left(NumericIdentity(199), at(30)), Some(millis(1000)));
    }

    #[test]
    fn what_the_watch_tells_first_is_waited_for_a_moment() {
        let (mut grace, start) = (Grace::new(MOST), Instant::now());
        grace.heard(NEW, start);
        grace.heard(NEW, start + Duration::from_mins(1));
        assert_eq!(grace.left(NEW, start), Some(millis(500)));
        assert_eq!(grace.left(NEW, start + millis(500)), None);
    }

    #[test]
    fn what_is_old_is_not_waited_for() {
        let (mut grace, now) = (Grace::new(Duration::from_secs(5)), Instant::now());
        assert_eq!(grace.left(NEW, now), None, "it was there when the agent started");
        grace.seen(NEW, now);
        assert_eq!(grace.left(NEW, now + Duration::from_secs(5)), None);
        for other in 0..10 {
            grace.seen(NumericIdentity(other), now + Duration::from_secs(30));
        }
        assert!(!grace.seen.contains_key(&NEW));
        let mut off = Grace::new(Duration::ZERO);
        off.seen(NEW, now);
        assert_eq!(off.left(NEW, now), None);
    }
}
