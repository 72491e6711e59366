//! The right to write, and the moment at which it ends by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

/// Whether this process leads; cheap to clone and to ask.
///
/// It ends without anyone doing anything: its deadline lies before the moment at which another
/// replica may take the lease, by the monotonic clock, so a process that was frozen past its lease
/// finds itself without it when it thaws.
#[derive(Debug, Clone)]
pub struct Leadership {
    base: Instant,
    /// Milliseconds after `base`.
    deadline: Arc<AtomicU64>,
    /// The lease was taken from a holder that had not given it up.
    cut_off: Arc<AtomicBool>,
}

impl Leadership {
    /// Leadership until `deadline`, unless it is extended.
    pub fn until(deadline: Instant) -> Self {
        let leadership =
            Self { base: Instant::now(), deadline: Arc::default(), cut_off: Arc::default() };
        leadership.extend(deadline);
        leadership
    }

    /// Whether this process leads now.
    pub fn held(&self) -> bool {
        Instant::now() < self.deadline()
    }

    /// When leadership ends if it is not extended.
    pub fn deadline(&self) -> Instant {
        self.base + Duration::from_millis(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the former holder did not give the lease up: requests that it had sent may still be
    /// under way, and be carried out later.
    pub fn cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// Notes how the lease was got.
    pub fn set_cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Release);
    }

    /// The lease was renewed.
    pub(crate) fn extend(&self, deadline: Instant) {
        let after = deadline.saturating_duration_since(self.base).as_millis();
        self.deadline.store(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The lease is about to be given up.
    pub(crate) fn end(&self) {
        self.deadline.store(0, Ordering::Release);
    }
}
