//! Follows the slices, as an agent would: who is in one, since when, and how many writes it took.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use cilia_crds::CiliumEndpointSlice;
use futures::{StreamExt, pin_mut};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

/// An endpoint: namespace and name.
pub(crate) type Key = (String, String);

/// What the watch has shown so far.
pub(crate) struct Slices {
    seen: Arc<Mutex<Seen>>,
    watch: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    first: HashMap<Key, Instant>,
    slices: HashMap<String, HashSet<Key>>,
    writes: usize,
}

impl Slices {
    /// Lists and then watches until dropped.
    pub(crate) async fn follow(client: Client) -> Result<Self> {
        let api: Api<CiliumEndpointSlice> = Api::all(client);
        let list = api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let seen = Arc::new(Mutex::new(Seen::default()));
        for slice in &list.items {
            lock(&seen).apply(slice, false);
        }
        let shared = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            if let Err(error) = follow_from(api, version, &shared).await {
                eprintln!("watch of CiliumEndpointSlices ended: {error}");
            }
        });
        Ok(Self { seen, watch })
    }

    pub(crate) fn members(&self) -> usize {
        lock(&self.seen).slices.values().map(HashSet::len).sum()
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.seen).slices.len()
    }

    pub(crate) fn writes(&self) -> usize {
        lock(&self.seen).writes
    }

    pub(crate) fn reset_writes(&self) {
        lock(&self.seen).writes = 0;
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        lock(&self.seen).first.contains_key(key)
    }

    /// How long after `made` the endpoint was first in a slice.
    pub(crate) fn seconds_since(&self, key: &Key, made: Instant) -> Option<f64> {
        let first = *lock(&self.seen).first.get(key)?;
        Some(first.saturating_duration_since(made).as_secs_f64())
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Seen {
    fn apply(&mut self, slice: &CiliumEndpointSlice, deleted: bool) {
        let namespace = slice.namespace.clone().unwrap_or_default();
        let members: HashSet<Key> = if deleted {
            HashSet::new()
        } else {
            let names = slice.endpoints.iter().filter_map(|endpoint| endpoint.name.clone());
            names.map(|name| (namespace.clone(), name)).collect()
        };
        let before = self.slices.remove(&slice.name_any()).unwrap_or_default();
        for key in members.difference(&before) {
            self.first.entry(key.clone()).or_insert_with(Instant::now);
        }
        if !deleted {
            self.slices.insert(slice.name_any(), members);
        }
    }
}

async fn follow_from(
    api: Api<CiliumEndpointSlice>,
    mut version: String,
    seen: &Mutex<Seen>,
) -> Result<()> {
    // A server ends a watch after a while: go on from the last version seen.
    loop {
        let events = api.watch(&WatchParams::default().timeout(290), &version).await?;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let (slice, deleted) = match event? {
                WatchEvent::Added(slice) | WatchEvent::Modified(slice) => (slice, false),
                WatchEvent::Deleted(slice) => (slice, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => anyhow::bail!("{}", status.message),
            };
            version = slice.resource_version().unwrap_or(version);
            let mut seen = lock(seen);
            seen.writes += 1;
            seen.apply(&slice, deleted);
        }
    }
}

/// No thread panics while it holds the lock; if one did, the figures up to there still stand.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
