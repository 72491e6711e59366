//! Lets work on the same thing happen one after the other, and on different things at once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// One queue per key; a key that nobody works on costs nothing for long.
#[derive(Debug)]
pub struct Turns<K>(Mutex<HashMap<K, Weak<Turn>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> Turns<K> {
    /// Waits for everybody who asked before; the turn lasts until the guard is dropped.
    pub async fn take(&self, key: K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if turns.len() >= 2 * turns.values().filter(|turn| turn.strong_count() > 0).count() + 64
            {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            let present = turns.get(&key).and_then(Weak::upgrade);
            present.unwrap_or_else(|| {
                let turn = Arc::new(Turn::default());
                turns.insert(key, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn keys_wait_for_themselves_only() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        assert!(turns.take("b").now_or_never().is_some());
        assert!(turns.take("a").now_or_never().is_none());
        drop(first);
        assert!(turns.take("a").now_or_never().is_some());
    }
}
