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
    /// Milliseconds after `base` until which writes without an answer may be carried out.
    unanswered: Arc<AtomicU64>,
}

/// So long after it was sent a request may be carried out, though nobody waits for its answer: an API
/// server gives up after a minute.
const LATE: Duration = Duration::from_secs(90);

/// A write that has been sent. Dropped before it is answered, it may still be carried out.
#[derive(Debug)]
pub struct OpenWrite(Option<Leadership>);

impl OpenWrite {
    /// The API server has said what became of it.
    pub fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for OpenWrite {
    fn drop(&mut self) {
        if let Some(leadership) = self.0.take() {
            let until = leadership.after(Instant::now() + LATE);
            leadership.unanswered.fetch_max(until, Ordering::AcqRel);
        }
    }
}

impl Leadership {
    /// Leadership until `deadline`, unless it is extended.
    pub fn until(deadline: Instant) -> Self {
        let leadership = Self {
            base: Instant::now(),
            deadline: Arc::default(),
            cut_off: Arc::default(),
            unanswered: Arc::default(),
        };
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

    /// A write is sent.
    pub fn open_write(&self) -> OpenWrite {
        OpenWrite(Some(self.clone()))
    }

    /// Whether a write of which nobody knows what became of it may still be carried out.
    pub fn may_still_write(&self) -> bool {
        self.after(Instant::now()) < self.unanswered.load(Ordering::Acquire)
    }

    /// The lease was renewed.
    pub(crate) fn extend(&self, deadline: Instant) {
        self.deadline.store(self.after(deadline), Ordering::Release);
    }

    fn after(&self, time: Instant) -> u64 {
        let after = time.saturating_duration_since(self.base).as_millis();
        u64::try_from(after).unwrap_or(u64::MAX)
    }

    /// The lease is about to be given up.
    pub(crate) fn end(&self) {
        self.deadline.store(0, Ordering::Release);
    }
}
