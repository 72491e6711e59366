//! Decides which of the pods without an endpoint to restart.

use std::collections::HashMap;
use std::time::Duration;

use cilia_runtime::watch::Key;

/// A pod this young may still get its endpoint.
const YOUNG: Duration = Duration::from_secs(30);
/// A pod of a name is not restarted again for this long.
const PAUSE: Duration = Duration::from_mins(5);
/// How long restarts are remembered.
const MEMORY: Duration = Duration::from_mins(10);

/// A running pod without an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unmanaged {
    pub(super) key: Key,
    /// Since it was started; nothing if that isn't known.
    pub(super) age: Option<Duration>,
}

/// The pods that were restarted, by name, with when that was.
#[derive(Debug, Default)]
pub(super) struct Restarts(HashMap<Key, Duration>);

impl Restarts {
    /// A pod was restarted.
    pub(super) fn remember(&mut self, key: Key, at: Duration) {
        let last = self.0.entry(key).or_default();
        *last = at.max(*last);
    }

    /// The pods that may be restarted `now`. To restart one is enough until the next look: the others may
    /// serve those who wait for it.
    pub(super) fn candidates<'p>(
        &mut self,
        unmanaged: &'p [Unmanaged],
        now: Duration,
    ) -> Vec<&'p Unmanaged> {
        self.0.retain(|_, at| now.saturating_sub(*at) < MEMORY);
        let rested = |pod: &Unmanaged| {
            self.0.get(&pod.key).is_none_or(|at| now.saturating_sub(*at) >= PAUSE)
        };
        let old = |pod: &Unmanaged| pod.age.is_some_and(|age| age > YOUNG);
        unmanaged.iter().filter(|pod| old(pod) && rested(pod)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cilia_runtime::watch::Key;

    use super::{Restarts, Unmanaged};

    #[test]
    fn restarts_what_is_old_enough_and_has_rested() {
        let now = Duration::from_hours(1);
        let minutes = |minutes| Some(now.saturating_sub(Duration::from_mins(minutes)));
        let cases: &[(&str, Option<u64>, Option<Duration>, bool)] = &[
            ("UNM-01", Some(31), None, true),
            ("UNM-02", Some(20), None, false),
            ("exactly 30 s", Some(30), None, false),
            ("start not known", None, None, false),
            ("UNM-03: 4 min ago", Some(60), minutes(4), false),
            ("UNM-03: 6 min ago", Some(60), minutes(6), true),
            ("long ago", Some(60), minutes(11), true),
        ];
        for &(name, age, restarted, want) in cases {
            let key = Key::new("kube-system", "dns");
            let mut restarts = Restarts::default();
            if let Some(at) = restarted {
                restarts.remember(key.clone(), at);
                restarts.remember(key.clone(), Duration::ZERO);
            }
            let pods = [Unmanaged { key, age: age.map(Duration::from_secs) }];
            assert_eq!(!restarts.candidates(&pods, now).is_empty(), want, "{name}");
        }
    }
}
