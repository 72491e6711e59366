//! Follows identities: since when there is one for an app.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cilia_crds::CiliumIdentity;
use futures::{StreamExt, pin_mut};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::task::JoinHandle;

/// What the watch has shown so far: when the last identity of each app came.
pub(super) struct Made {
    seen: Arc<Mutex<HashMap<String, Instant>>>,
    watch: JoinHandle<()>,
}

impl Made {
    /// Watches what comes from now on, until dropped.
    pub(super) async fn follow(client: Client) -> Result<Self> {
        let api: Api<CiliumIdentity> = Api::all(client);
        let now = api.list_metadata(&ListParams::default().limit(1)).await?;
        let version = now.metadata.resource_version.unwrap_or_default();
        let seen: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let shared = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            if let Err(error) = follow_from(api, version, &shared).await {
                eprintln!("watch of CiliumIdentities ended: {error}");
            }
        });
        Ok(Self { seen, watch })
    }

    /// Forgets what was seen.
    pub(super) fn forget(&self) {
        lock(&self.seen).clear();
    }

    pub(super) fn seconds_since(&self, app: &str, asked: Instant) -> Option<f64> {
        let seen = *lock(&self.seen).get(app)?;
        Some(seen.saturating_duration_since(asked).as_secs_f64())
    }

    /// Waits until all of these apps have been seen.
    pub(super) async fn wait(
        &self,
        apps: impl Iterator<Item = &String> + Clone,
        limit: Duration,
    ) -> Result<()> {
        let begin = Instant::now();
        loop {
            let missing = {
                let seen = lock(&self.seen);
                apps.clone().filter(|app| !seen.contains_key(*app)).count()
            };
            if missing == 0 {
                return Ok(());
            }
            ensure!(begin.elapsed() < limit, "{missing} identities were not made within {limit:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn lock(seen: &Mutex<HashMap<String, Instant>>) -> MutexGuard<'_, HashMap<String, Instant>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow_from(
    api: Api<CiliumIdentity>,
    mut version: String,
    seen: &Mutex<HashMap<String, Instant>>,
) -> Result<()> {
    loop {
        let events = api.watch(&WatchParams::default(), &version).await?;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(identity) => {
                    version = identity.metadata.resource_version.unwrap_or_default();
                    if let Some(app) = identity.security_labels.get("k8s:app") {
                        lock(seen).insert(app.clone(), Instant::now());
                    }
                }
                WatchEvent::Modified(identity) | WatchEvent::Deleted(identity) => {
                    version = identity.metadata.resource_version.unwrap_or_default();
                }
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(error) => anyhow::bail!("{}", error.message),
            }
        }
    }
}
