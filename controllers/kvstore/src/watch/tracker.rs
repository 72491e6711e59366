//! Decides what a list or an answer of a watch means, given what has been told before.
//!
//! About 100 bytes a key: its name and the revision of its last write.

use std::collections::BTreeMap;

use super::Event;
use crate::messages::{KeyValue, WatchedEvent};

const DELETE: i32 = 1;

#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// The revision of the last write that was told, and the list in which the key was seen last.
    known: BTreeMap<Vec<u8>, (i64, u32)>,
    list: u32,
}

impl Tracker {
    /// From here on keys are listed.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// What was told may be another's history: the next list tells everything anew.
    pub(super) fn doubt(&mut self) {
        self.known.values_mut().for_each(|(revision, _)| *revision = 0);
    }

    /// The key that was written last, and when.
    pub(super) fn latest(&self) -> Option<(Vec<u8>, i64)> {
        let latest = self.known.iter().max_by_key(|(_, (revision, _))| *revision);
        latest.map(|(key, (revision, _))| (key.clone(), *revision))
    }

    /// A part of the list: what is new in it.
    pub(super) fn page(&mut self, page: Vec<KeyValue>) -> Vec<Event> {
        let list = self.list;
        let mut events = Vec::new();
        for kv in page {
            let seen = self.known.insert(kv.key.clone(), (kv.mod_revision, list));
            if seen.is_none_or(|(revision, _)| revision != kv.mod_revision) {
                events.push(Event::Put(kv));
            }
        }
        events
    }

    /// The list is complete: what is not in it is gone.
    pub(super) fn end_list(&mut self) -> Vec<Event> {
        let list = self.list;
        let gone = self.known.extract_if(.., |_, (_, seen)| *seen != list);
        gone.map(|(key, _)| Event::Deleted(text(&key))).collect()
    }

    pub(super) fn apply(&mut self, events: Vec<WatchedEvent>) -> Vec<Event> {
        let list = self.list;
        let mut news = Vec::new();
        for event in events {
            let Some(kv) = event.kv else { continue };
            if event.kind == DELETE {
                if self.known.remove(&kv.key).is_some() {
                    news.push(Event::Deleted(text(&kv.key)));
                }
            } else {
                self.known.insert(kv.key.clone(), (kv.mod_revision, list));
                news.push(Event::Put(kv));
            }
        }
        news
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::{Event, KeyValue, Tracker, WatchedEvent};

    type Store = BTreeMap<String, i64>;

    fn kv(key: &str, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), mod_revision, ..KeyValue::default() }
    }

    fn take(told: &mut Store, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Put(kv) => {
                    let key = String::from_utf8(kv.key).unwrap();
                    assert_ne!(told.insert(key, kv.mod_revision), Some(kv.mod_revision), "no news");
                }
                Event::Deleted(key) => {
                    assert!(told.remove(&key).is_some(), "{key} was not told of");
                }
                Event::Listed | Event::Progress(_) => {}
            }
        }
    }

    #[test]
    fn after_a_doubt_everything_is_told_again() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.latest(), None);
        tracker.begin_list();
        assert_eq!(tracker.page(vec![kv("a", 5), kv("b", 7)]).len(), 2);
        assert_eq!(tracker.end_list(), []);
        assert_eq!(tracker.latest(), Some((b"b".to_vec(), 7)));
        // The same revision of another history.
        tracker.doubt();
        tracker.begin_list();
        assert_eq!(tracker.page(vec![kv("a", 5)]), [Event::Put(kv("a", 5))]);
        assert_eq!(tracker.end_list(), [Event::Deleted("b".into())]);
    }

    /// However often the watch breaks, the reader ends up with what is there.
    #[test]
    fn a_reader_knows_what_a_list_would_say() {
        let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| rand::rng().random());
        println!("CILIA_SEED={seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut tracker, mut store, mut told) = (Tracker::default(), Store::new(), Store::new());
        let (mut revision, mut connected) = (0, false);
        for _ in 0..20_000 {
            revision += 1;
            let key = format!("k{}", rng.random_range(0..20));
            let event = if rng.random_bool(0.5) {
                store.insert(key.clone(), revision);
                Some(WatchedEvent { kind: 0, kv: Some(kv(&key, revision)) })
            } else {
                let deleted = WatchedEvent { kind: 1, kv: Some(kv(&key, revision)) };
                store.remove(&key).map(|_| deleted)
            };
            match event {
                Some(event) if connected => take(&mut told, tracker.apply(vec![event])),
                _ => {}
            }
            connected &= rng.random_bool(0.95);
            if !connected && rng.random_bool(0.2) {
                tracker.begin_list();
                let all: Vec<KeyValue> = store.iter().map(|(key, at)| kv(key, *at)).collect();
                for page in all.chunks(7) {
                    take(&mut told, tracker.page(page.to_vec()));
                }
                take(&mut told, tracker.end_list());
                connected = true;
            }
            if connected {
                assert_eq!(told, store, "at revision {revision}");
            }
        }
    }
}
