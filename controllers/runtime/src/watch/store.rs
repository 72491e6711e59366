//! Keeps of each watched object only what is needed, and tells what changed about that.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use futures::stream::{Stream, StreamExt};
use kube::Resource;

use super::{Event, Key};

/// A change of a store, made before it is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<V> {
    /// The slim form of an object is new, different or gone.
    Object {
        /// Which object.
        key: Key,
        /// What was known.
        old: Option<Arc<V>>,
        /// What is known now.
        new: Option<Arc<V>>,
    },
    /// The store holds everything that was there at the start; sent once.
    Synced,
}

/// The slim forms of all objects of a watch; cheap to clone, read from anywhere.
#[derive(Debug)]
pub struct Store<V>(Arc<RwLock<HashMap<Key, Arc<V>>>>);

impl<V> Clone for Store<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<V> Store<V> {
    /// The slim form of the object of this key.
    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.read().get(key).cloned()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<(Key, Arc<V>)> {
        self.read().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Key, Arc<V>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `new` in place; the change, if it is one.
    fn put(&self, key: Key, new: Option<V>) -> Option<Change<V>>
    where
        V: PartialEq,
    {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let old = map.get(&key).cloned();
        if old.as_deref() == new.as_ref() {
            return None;
        }
        let new = new.map(Arc::new);
        match &new {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(&key),
        };
        Some(Change::Object { key, old, new })
    }
}

/// A store that follows `events`, which it must be polled for: the changes come out as a stream.
///
/// `slim` turns an object into what is kept of it, or `None` if the object does not concern us.
/// An event that leaves the slim form as it was is not told.
pub fn reflect<K, V>(
    events: impl Stream<Item = Event<K>> + Send,
    slim: impl Fn(K) -> Option<V> + Send,
) -> (Store<V>, impl Stream<Item = Change<V>> + Send)
where
    K: Resource + Send,
    V: PartialEq + Send + Sync,
{
    let store = Store::default();
    let kept: Store<V> = store.clone();
    let changes = events.filter_map(move |event| {
        let change = match event {
            Event::Applied(object) => kept.put(Key::of(&object), slim(object)),
            Event::Deleted(key) => kept.put(key, None),
            Event::Synced => Some(Change::Synced),
        };
        std::future::ready(change)
    });
    (store, changes)
}

#[cfg(test)]
mod tests {
    use super::{Change, Event, Key, reflect};
    use futures::StreamExt;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;
    use std::sync::Arc;

    fn applied(name: &str, size: usize) -> Event<ConfigMap> {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let data = (0..size).map(|n| (n.to_string(), String::new())).collect();
        Event::Applied(ConfigMap { metadata, data: Some(data), ..ConfigMap::default() })
    }

    #[tokio::test]
    async fn tells_only_what_changes_the_slim_form() {
        let key = Key::new("", "a");
        let events = vec![
            applied("a", 1),
            Event::Synced,
            applied("a", 1),
            applied("a", 2),
            applied("big", 100),
            applied("a", 100),
            applied("a", 3),
            Event::Deleted(key.clone()),
            Event::Deleted(key.clone()),
        ];
        let slim = |map: ConfigMap| map.data.map(|data| data.len()).filter(|&size| size < 10);
        let (store, changes) = reflect(futures::stream::iter(events), slim);
        let changes: Vec<Change<usize>> = changes.collect().await;
        let of = |old: Option<usize>, new: Option<usize>| Change::Object {
            key: key.clone(),
            old: old.map(Arc::new),
            new: new.map(Arc::new),
        };
        let want = [
            of(None, Some(1)),
            Change::Synced,
            of(Some(1), Some(2)),
            of(Some(2), None),
            of(None, Some(3)),
            of(Some(3), None),
        ];
        assert_eq!(changes, want);
        assert!(store.is_empty());
    }
}
