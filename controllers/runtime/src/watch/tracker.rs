//! Decides what the events of one watch mean, given what was known before.
//!
//! Keeps per object its key, whose texts are shared, and two hashes: about 75 bytes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use kube::Resource;
use kube::runtime::watcher;

use super::{Event, Key};

/// What is known about the objects of a watch.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    known: HashMap<Key, Known>,
    /// Counts lists; what the last one did not show is gone.
    list: u32,
    synced: bool,
}

#[derive(Debug)]
struct Known {
    /// Of 32 bits: it counts only where a deletion was missed.
    uid: u32,
    version: u64,
    list: u32,
}

impl Tracker {
    /// What `event` means to those who listen.
    pub(super) fn apply<K: Resource>(&mut self, event: watcher::Event<K>) -> Vec<Event<K>> {
        match event {
            watcher::Event::Init => {
                self.list = self.list.wrapping_add(1);
                Vec::new()
            }
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                self.applied(object)
            }
            watcher::Event::Delete(object) => {
                let key = Key::of(&object);
                self.known.remove(&key).map(|_| Event::Deleted(key)).into_iter().collect()
            }
            watcher::Event::InitDone => self.listed(),
        }
    }

    fn applied<K: Resource>(&mut self, object: K) -> Vec<Event<K>> {
        let meta = object.meta();
        let now = Known {
            uid: (hash(meta.uid.as_ref()) >> u32::BITS).try_into().unwrap_or_default(),
            version: hash(meta.resource_version.as_ref()),
            list: self.list,
        };
        let key = Key::of(&object);
        let (uid, version) = (now.uid, now.version);
        match self.known.insert(key.clone(), now) {
            Some(old) if (old.uid, old.version) == (uid, version) => Vec::new(),
            // The deletion in between was missed.
            Some(old) if old.uid != uid => vec![Event::Deleted(key), Event::Applied(object)],
            _ => vec![Event::Applied(object)],
        }
    }

    fn listed<K>(&mut self) -> Vec<Event<K>> {
        let list = self.list;
        let gone = self.known.extract_if(|_, known| known.list != list);
        let mut events: Vec<Event<K>> = gone.map(|(key, _)| Event::Deleted(key)).collect();
        if !std::mem::replace(&mut self.synced, true) {
            events.push(Event::Synced);
        }
        events
    }
}

fn hash(value: Option<&String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::Tracker;
    use crate::watch::Event;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;
    use kube::runtime::watcher::Event as Raw;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    fn object(name: &str, uid: u32, version: u32) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("ns".into()),
            name: Some(name.into()),
            uid: Some(uid.to_string()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn told(tracker: &mut Tracker, events: Vec<Raw<ConfigMap>>) -> Vec<String> {
        let events = events.into_iter().flat_map(|event| tracker.apply(event));
        events
            .map(|event| match event {
                Event::Applied(o) => {
                    let (name, version) =
                        (o.metadata.name.unwrap(), o.metadata.resource_version.unwrap());
                    format!("{name}@{version}")
                }
                Event::Deleted(key) => format!("-{key}"),
                Event::Synced => "synced".into(),
            })
            .collect()
    }

    #[test]
    fn a_new_list_replaces_what_was_known() {
        let mut tracker = Tracker::default();
        let first = vec![
            Raw::Init,
            Raw::InitApply(object("a", 1, 1)),
            Raw::InitApply(object("b", 2, 2)),
            Raw::InitDone,
        ];
        assert_eq!(told(&mut tracker, first), ["a@1", "b@2", "synced"]);
        let live = vec![
            Raw::Apply(object("c", 3, 3)),
            Raw::Apply(object("a", 1, 4)),
            Raw::Delete(object("c", 3, 5)),
        ];
        assert_eq!(told(&mut tracker, live), ["c@3", "a@4", "-ns/c"]);
        assert_eq!(told(&mut tracker, vec![Raw::Delete(object("c", 3, 5))]), [""; 0], "told once");
        // a was recreated, b vanished, d is new.
        let second = vec![
            Raw::Init,
            Raw::InitApply(object("a", 9, 9)),
            Raw::InitApply(object("d", 4, 8)),
            Raw::InitDone,
        ];
        assert_eq!(told(&mut tracker, second), ["-ns/a", "a@9", "d@8", "-ns/b"]);
        let third = vec![
            Raw::Init,
            Raw::InitApply(object("a", 9, 9)),
            Raw::InitApply(object("d", 4, 8)),
            Raw::InitDone,
        ];
        assert_eq!(told(&mut tracker, third), [""; 0], "nothing is repeated");
    }

    #[test]
    fn an_interrupted_list_deletes_nothing() {
        let mut tracker = Tracker::default();
        told(
            &mut tracker,
            vec![Raw::Init, Raw::InitApply(object("a", 1, 1)), Raw::InitApply(object("b", 2, 2))],
        );
        let again = vec![
            Raw::Init,
            Raw::InitApply(object("b", 2, 2)),
            Raw::Init,
            Raw::InitApply(object("b", 2, 3)),
            Raw::InitDone,
        ];
        assert_eq!(told(&mut tracker, again), ["b@3", "-ns/a", "synced"]);
    }

    /// Whoever follows the events knows, after each complete list, exactly what the server has.
    #[test]
    fn followers_know_what_the_server_has() {
        for seed in 0..1_000 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut server: BTreeMap<String, (u32, u32)> = BTreeMap::new();
            let mut follower: BTreeMap<String, (u32, u32)> = BTreeMap::new();
            let mut tracker = Tracker::default();
            let mut version = 0;
            for _ in 0..30 {
                let connected = random.random_range(0..3) > 0;
                let mut raw = Vec::new();
                for _ in 0..random.random_range(0..6) {
                    version += 1;
                    let name = format!("n{}", random.random_range(0..5));
                    if random.random_range(0..3) == 0 {
                        if let Some((uid, _)) = server.remove(&name) {
                            raw.push(Raw::Delete(object(&name, uid, version)));
                        }
                    } else {
                        let entry = server.entry(name.clone()).or_insert((version, version));
                        entry.1 = version;
                        raw.push(Raw::Apply(object(&name, entry.0, version)));
                    }
                }
                if !connected {
                    raw = vec![Raw::Init];
                    raw.extend(
                        server
                            .iter()
                            .map(|(name, (uid, v))| Raw::InitApply(object(name, *uid, *v))),
                    );
                    raw.push(Raw::InitDone);
                }
                for event in raw.into_iter().flat_map(|event| tracker.apply(event)) {
                    match event {
                        Event::Applied(o) => {
                            let m = o.metadata;
                            let number = |text: Option<String>| text.unwrap().parse().unwrap();
                            follower.insert(
                                m.name.unwrap(),
                                (number(m.uid), number(m.resource_version)),
                            );
                        }
                        Event::Deleted(key) => {
                            assert!(follower.remove(&*key.name).is_some(), "seed {seed}");
                        }
                        Event::Synced => {}
                    }
                }
                assert_eq!(follower, server, "seed {seed}");
            }
        }
    }
}
