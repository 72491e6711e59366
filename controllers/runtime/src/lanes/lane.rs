//! How a lane treats its keys, and what happens to those that fail.

use std::time::Duration;

/// One lane; those with a smaller index go first.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Its name in metrics.
    pub name: &'static str,
    /// How long a new key waits, so that a burst of events becomes one run.
    pub delay: Duration,
    /// One run in this many is this lane's, however busy the lanes before it are; 0 for none.
    pub share: u32,
    /// Tokens of the write budget that this lane leaves for the lanes before it.
    pub reserve: f64,
    /// Runs of this lane under way at once; the other workers are for the lanes before it.
    pub most: usize,
    /// The next run begins once those before it have ended, or else so long after the last of them began.
    pub apart: Duration,
}

impl Lane {
    /// A lane without delay, share, reserve or limit.
    pub fn new(name: &'static str) -> Self {
        let (delay, apart) = (Duration::ZERO, Duration::ZERO);
        Self { name, delay, share: 0, reserve: 0.0, most: usize::MAX, apart }
    }
}

/// What happens to a key that fails.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Wait after the first failure; doubles with each one.
    pub base: Duration,
    /// The longest such wait.
    pub cap: Duration,
    /// Retries after which a key counts as given up.
    pub max: u32,
    /// When a key that was given up is looked at again, so that nothing stays wrong for ever.
    pub recheck: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(100),
            max: 15,
            recheck: Duration::from_mins(5),
        }
    }
}
