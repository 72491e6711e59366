//! Decides whether there is a storm: many slices to write, and endpoints that go on to appear.
//!
//! Slices that wait in a storm are written one soon after the other, and for a moment few are left: a storm
//! is over only once they stay few, or nothing appears any more.

use crate::Millis;

/// It is a storm once many slices have had things that appear for so long, and none once they have been few
/// for so long.
const AFTER: Millis = 600;
/// Endpoints go on to appear: in one such time at least one for each so many of the slices that wait.
const ARRIVALS: Millis = 500;
const ONE_FOR: usize = 6;

/// What tells of a storm.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Storm {
    /// Since when slices that wait have been many, but for moments.
    many_since: Option<Millis>,
    /// Since when they are few for a moment.
    few_since: Option<Millis>,
    /// The number of a stretch of time, and how many endpoints have come to wait in it and in the one before.
    stretch: Millis,
    arrived: usize,
    arrived_before: usize,
}

impl Storm {
    /// An endpoint has come to wait.
    pub(crate) fn arrived(&mut self, now: Millis) {
        let stretch = now / ARRIVALS;
        if stretch != self.stretch {
            self.arrived_before = if stretch == self.stretch + 1 { self.arrived } else { 0 };
            (self.stretch, self.arrived) = (stretch, 0);
        }
        self.arrived += 1;
    }

    /// Whether many slices wait now.
    pub(crate) fn many(&mut self, many: bool, now: Millis) {
        if self.is_over(now) {
            (self.many_since, self.few_since) = (None, None);
        }
        if many {
            self.many_since.get_or_insert(now);
            self.few_since = None;
        } else if self.has_begun(now) {
            self.few_since.get_or_insert(now);
        } else {
            self.many_since = None;
        }
    }

    /// Whether there is a storm, with `waiting` slices for which something appears.
    pub(crate) fn goes_on(self, waiting: usize, now: Millis) -> bool {
        self.has_begun(now) && !self.is_over(now) && self.arrivals(now) * ONE_FOR >= waiting
    }

    fn has_begun(self, now: Millis) -> bool {
        self.many_since.is_some_and(|since| now.saturating_sub(since) >= AFTER)
    }

    fn is_over(self, now: Millis) -> bool {
        self.few_since.is_some_and(|since| now.saturating_sub(since) >= AFTER)
    }

    /// How many came to wait in the last whole stretch before `now`.
    fn arrivals(self, now: Millis) -> usize {
        match (now / ARRIVALS).checked_sub(self.stretch) {
            Some(0) => self.arrived_before,
            Some(1) => self.arrived,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Storm;

    /// Ten arrivals each 100 ms, and so many slices from `from` to `to`.
    fn blow(storm: &mut Storm, from: u64, to: u64, many: bool) {
        for now in (from..to).step_by(100) {
            (0..10).for_each(|_| storm.arrived(now));
            storm.many(many, now);
        }
    }

    #[test]
    fn begins_and_ends_with_what_lasts() {
        let mut storm = Storm::default();
        blow(&mut storm, 0, 500, true);
        blow(&mut storm, 500, 600, false);
        blow(&mut storm, 600, 1_100, true);
        assert!(!storm.goes_on(20, 1_100), "it has not lasted");
        blow(&mut storm, 1_100, 1_400, true);
        assert!(storm.goes_on(20, 1_400));
        blow(&mut storm, 1_400, 1_900, false);
        assert!(storm.goes_on(10, 1_900), "a moment with few");
        blow(&mut storm, 1_900, 2_000, true);
        blow(&mut storm, 2_000, 2_500, false);
        assert!(storm.goes_on(10, 2_500), "another moment");
        assert!(!storm.goes_on(10, 2_600), "few for long");
        blow(&mut storm, 3_000, 3_500, true);
        assert!(!storm.goes_on(20, 3_500), "it begins anew");
        blow(&mut storm, 3_500, 3_700, true);
        assert!(storm.goes_on(20, 3_700));
        assert!(!storm.goes_on(20, 4_700), "nothing appears any more");
    }
}
