//! Decides how the progress of long work is shown: one line per step, with the time so far.

use std::time::Instant;

/// A clock with a voice.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    start: Instant,
    quiet: bool,
}

impl Progress {
    /// Speaks on standard error, from now.
    pub fn new() -> Self {
        Self { start: Instant::now(), quiet: false }
    }

    /// Says nothing.
    pub fn quiet() -> Self {
        Self { start: Instant::now(), quiet: true }
    }

    /// One step is done or begins.
    pub fn say(&self, step: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{:6.1} s  {}", self.start.elapsed().as_secs_f64(), step.as_ref());
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
