//! Decides from its heartbeats whether another cluster's etcd still takes writes.
//!
//! Only when a heartbeat arrives counts, by this node's own steady clock; the time that it tells is
//! somebody else's, and may jump. A process that was frozen, or a clock that jumped ahead, looks several
//! times before it gives a connection up, so what has arrived meanwhile is heard first.

use std::time::Duration;

use tokio::time::Instant;

/// Without a heartbeat for this long, a look has found none.
const SILENCE: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub(super) struct Pulse {
    heard: Instant,
    missed: u64,
}

impl Pulse {
    /// It counts from now on.
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, missed: 0 }
    }

    /// A heartbeat has arrived.
    pub(super) fn beat(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// A look: nothing, or how it found silence, and whether it was the last one.
    pub(super) fn look(&mut self, now: Instant, tolerated: u64) -> Option<(String, bool)> {
        let silent = now.saturating_duration_since(self.heard);
        if silent <= SILENCE {
            self.missed = 0;
            return None;
        }
        self.missed += 1;
        let (times, seconds) = (self.missed, silent.as_secs());
        let message = format!(
            "quorum check failed {times} times in a row: {seconds}s since last heartbeat update has been received"
        );
        Some((message, times > tolerated))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Pulse;

    #[test]
    fn silence_counts_after_so_many_looks() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(start);
        assert_eq!(pulse.look(at(120), 2), None);
        for (seconds, last) in [(125, false), (130, false), (135, true)] {
            let (message, over) = pulse.look(at(seconds), 2).expect("silence");
            assert_eq!(over, last, "{message}");
        }
        let (message, _) = pulse.look(at(140), 2).expect("silence");
        let want = "quorum check failed 4 times in a row: 140s since last heartbeat update has been received";
        assert_eq!(message, want);
        pulse.beat(at(141));
        assert_eq!(pulse.look(at(142), 0), None);
    }

    #[test]
    fn a_clock_that_jumps_costs_no_connection() {
        let start = Instant::now() + Duration::from_hours(48);
        let mut pulse = Pulse::new(start);
        // A day ahead, or frozen for a day: what has arrived meanwhile is heard before the last look.
        let later = start + Duration::from_hours(24);
        assert!(matches!(pulse.look(later, 2), Some((_, false))));
        pulse.beat(later);
        assert_eq!(pulse.look(later, 2), None);
        // A day back.
        assert_eq!(pulse.look(start, 2), None);
        pulse.beat(start);
        assert_eq!(pulse.look(start + Duration::from_secs(1), 2), None);
    }
}
