//! Decides how fast identities are deleted, and how soon the next run is: as the user says while numbers abound,
//! faster when new identities would otherwise take up the range.

use std::time::Duration;

/// Deletions a second that are asked of the API server at most, unless the user wants more.
const MOST: f64 = 200.0;
/// The part of the range below which nothing but the API server's health counts: one number in so many.
const SCARCE: u32 = 20;
/// The part of the range that is free while nothing is out of the ordinary: one number in so many.
const AMPLE: u32 = 4;

/// How the range is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Numbers of the cluster.
    pub(super) size: u32,
    /// Those that an identity has.
    pub(super) taken: u32,
    /// Identities that could be deleted now.
    pub(super) due: u32,
    /// New identities a second.
    pub(super) made: f64,
}

impl Load {
    fn free(&self) -> u32 {
        self.size.saturating_sub(self.taken)
    }

    /// Whether most numbers are taken.
    pub(super) fn is_filling(&self) -> bool {
        self.free() < self.size / 2
    }

    /// Deletions a second, at least `floor`.
    ///
    /// Half of the time until the range is full has to do for all that is due, and as many as are made must go.
    pub(super) fn deletions(&self, floor: f64) -> f64 {
        let free = f64::from(self.free());
        let needed = if self.free() < self.size / SCARCE {
            MOST
        } else if self.made > 0.0 {
            self.made + f64::from(self.due) * 2.0 * self.made / free
        } else {
            0.0
        };
        needed.min(MOST).max(floor)
    }

    /// From the end of a run to the next one, usually `usual`.
    pub(super) fn interval(&self, usual: Duration) -> Duration {
        if self.free() < self.size / AMPLE { usual / 4 } else { usual }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::Load;

    #[test]
    fn the_users_rate_is_the_least() {
        let calm = Load { size: 65_280, taken: 1000, due: 500, made: 0.0 };
        let busy = Load { made: 30.0, taken: 30_000, due: 20_000, ..calm };
        let full = Load { taken: 65_280, due: 1, ..calm };
        for (name, load, floor, want) in [
            ("calm", calm, 41.0, 41.0),
            ("busy, and the user allows little", busy, 1.0, 64.0),
            ("busy, and the user allows enough", busy, 100.0, 100.0),
            ("full", full, 1.0, 200.0),
            ("full, and the user allows more", full, 1000.0, 1000.0),
        ] {
            assert!(
                (load.deletions(floor) - want).abs() < 1.0,
                "{name}: {}",
                load.deletions(floor)
            );
        }
        let quarter = Duration::from_secs(15);
        assert_eq!(full.interval(4 * quarter), quarter);
        assert_eq!(calm.interval(4 * quarter), 4 * quarter);
    }

    /// New identities every second, each unused after a minute and due two minutes later; whether the range fills.
    fn fills(size: u32, made: u32, paced: bool) -> bool {
        let (floor, interval) = (2.0, 60);
        let (mut young, mut due, mut next) = (VecDeque::new(), 0, interval);
        let mut tokens = 0.0;
        for second in 0..3600 {
            let taken = young.len() + due as usize;
            let taken = u32::try_from(taken).expect("few");
            if taken + made > size {
                return true;
            }
            young.extend((0..made).map(|_| second + 180));
            while young.front().is_some_and(|due| *due <= second) {
                young.pop_front();
                due += 1;
            }
            let load = Load { size, taken, due, made: f64::from(made) };
            if second == next {
                tokens = 0.0;
            }
            if second >= next {
                // A run lasts until all that is due is gone.
                tokens += if paced { load.deletions(floor) } else { floor };
                while tokens >= 1.0 && due > 0 {
                    (tokens, due) = (tokens - 1.0, due - 1);
                }
                if due == 0 {
                    let usual = Duration::from_secs(interval);
                    next = second + if paced { load.interval(usual).as_secs() } else { interval };
                }
            }
        }
        false
    }

    #[test]
    fn churn_does_not_fill_the_range() {
        // What is young is 180 × made; the rest is what the pace has to do with.
        for (size, made) in [(1000, 3), (4000, 15), (10_000, 40)] {
            assert!(fills(size, made, false), "{size} at {made}/s would fill");
            assert!(!fills(size, made, true), "{size} at {made}/s fills");
        }
    }
}
