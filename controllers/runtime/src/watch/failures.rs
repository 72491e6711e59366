//! Decides what to say of a watch that fails, and how long to wait before it is tried again.

use std::time::Duration;

use kube::runtime::watcher;
use tokio::time::Instant;
use tracing::Level;

const FIRST_RETRY: Duration = Duration::from_millis(250);
const SLOWEST_RETRY: Duration = Duration::from_secs(15);
/// A failure this long after the last one is the first of its kind.
const CALM: Duration = Duration::from_mins(1);

/// The failures of one watch since it worked last.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
    warned: bool,
}

impl Failures {
    /// One more at `now`: how loudly to tell of it, and the longest time to wait.
    pub(super) fn add(&mut self, error: &watcher::Error, now: Instant) -> (Level, Duration) {
        // A watch of what seldom changes has no event to tell that it works again.
        if self.last.replace(now).is_some_and(|last| now - last > CALM) {
            (self.count, self.warned) = (0, false);
        }
        let level = if is_being_set_up(error) {
            if self.count == 0 { Level::INFO } else { Level::DEBUG }
        } else if std::mem::replace(&mut self.warned, true) {
            Level::DEBUG
        } else {
            Level::WARN
        };
        let wait = FIRST_RETRY.saturating_mul(1 << self.count.min(16)).min(SLOWEST_RETRY);
        self.count += 1;
        (level, wait)
    }

    /// It works; whether somebody was warned that it did not.
    pub(super) fn end(&mut self) -> bool {
        self.count = 0;
        std::mem::take(&mut self.warned)
    }
}

/// The server answers so for a second or two after a kind was registered. Nobody has to act on it.
fn is_being_set_up(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return false;
    };
    status.code == 429 && status.message.contains("initializing")
}

#[cfg(test)]
mod tests {
    use super::{CALM, Failures};
    use kube::core::Status;
    use kube::runtime::watcher::Error;
    use std::time::Duration;
    use tokio::time::Instant;
    use tracing::Level;

    fn status(code: u16, message: &str) -> Error {
        let status = Status::failure(message, "").with_code(code);
        Error::WatchStartFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn warns_once_of_what_somebody_may_have_to_act_on() {
        let setting_up = status(429, "storage is (re)initializing");
        let (busy, broken) = (status(429, "too many requests"), status(500, "etcd is away"));
        let (mut failures, mut now) = (Failures::default(), Instant::now());
        let mut add = |failures: &mut Failures, error| {
            now += Duration::from_secs(1);
            failures.add(error, now).0
        };
        assert_eq!(add(&mut failures, &setting_up), Level::INFO);
        assert_eq!(add(&mut failures, &setting_up), Level::DEBUG);
        assert!(!failures.end(), "nobody was warned");
        assert_eq!(add(&mut failures, &setting_up), Level::INFO);
        assert_eq!(add(&mut failures, &broken), Level::WARN, "it is more than that");
        assert_eq!(add(&mut failures, &busy), Level::DEBUG);
        assert!(failures.end());
        assert_eq!(add(&mut failures, &busy), Level::WARN);
        now += CALM + Duration::from_secs(1);
        assert_eq!(failures.add(&busy, now).0, Level::WARN, "calm lies between");
    }

    #[test]
    fn waits_longer_each_time_but_not_for_ever() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let waits: Vec<u128> =
            (0..8).map(|_| failures.add(&status(500, ""), now).1.as_millis()).collect();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000]);
    }
}
