//! Decides how long an endpoint waits before it takes on an identity that the cluster has only just got.
//!
//! Packets carry the sender's identity, so a node that has not heard of a new one drops them. Nobody can say when
//! the last node has heard of it; but all watch the same API server, and how late it tells this node what was
//! written is known. The wait is many times that, at least a second, and at most `identity-change-grace-period`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cilia_crds::NumericIdentity;

/// Times the delay of this node's own watch.
const TIMES: u32 = 50;
const LEAST: Duration = Duration::from_secs(1);
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
        let Some(seen) = self.seen.get_mut(&number).filter(|seen| !seen.heard) else { return };
        seen.heard = true;
        let late = now.duration_since(seen.first);
        // What was bad a moment ago may become so again.
        self.delay = Some(late.max(self.delay.unwrap_or_default() / 2));
    }

    pub(super) fn forget(&mut self, number: NumericIdentity) {
        self.seen.remove(&number);
    }

    /// How long still; nothing if it need not be waited for.
    pub(super) fn left(&self, number: NumericIdentity, now: Instant) -> Option<Duration> {
        let seen = self.seen.get(&number)?;
        let wanted = match self.delay {
            Some(delay) if seen.heard => (delay * TIMES).max(LEAST).min(self.most),
            _ => self.most,
        };
        let left = wanted.saturating_sub(now.duration_since(seen.first));
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use cilia_crds::NumericIdentity;

    use super::Grace;

    const NEW: NumericIdentity = NumericIdentity(1000);

    fn left_after(late: u64) -> Option<u64> {
        let (start, millis) = (Instant::now(), Duration::from_millis);
        let mut grace = Grace::new(Duration::from_secs(5));
        grace.seen(NEW, start);
        assert_eq!(grace.left(NEW, start), Some(Duration::from_secs(5)), "nothing is known");
        grace.heard(NEW, start + millis(late));
        grace.heard(NEW, start + millis(60_000));
        let left = grace.left(NEW, start + millis(late));
        left.map(|left| u64::try_from(left.as_millis()).unwrap() + late)
    }

    #[test]
    fn the_wait_follows_the_watch() {
        let cases = [(0, Some(1000)), (10, Some(1000)), (50, Some(2500)), (400, Some(5000))];
        for (late, want) in cases {
            assert_eq!(left_after(late), want, "{late} ms late");
        }
        assert_eq!(left_after(6000), None, "it has been waited long enough");
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
