//! Turns a watch on the API server into a stream of what changed, whatever happens to the connection.
//!
//! The stream never ends and never fails: it reconnects with backoff and logs why it had to. After a gap
//! too long to resume, the new list replaces what was known: unchanged objects are not repeated,
//! vanished ones are [`Event::Deleted`].

mod failures;
mod store;
mod tracker;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::labels::shared;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tracing::{Level, debug, info, warn};

pub use kube::core::PartialObjectMeta;
pub use store::{Change, Store, reflect};

use failures::Failures;
use tracker::Tracker;

/// How long a streamed list may be silent before the server is taken to be one that cannot stream it.
///
/// Servers without the feature answer the request with an error or, older still, with a watch
/// that never says where the list ends.
const SILENT_LIST: Duration = Duration::from_secs(30);

/// An object's place in the cluster; cheap to clone.
///
/// 32 bytes: its texts are kept once per process, however many stores and duties know the object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of an object in a namespace, or of a cluster-scoped one with an empty namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: shared(namespace), name: shared(name) }
    }

    /// The key of `object`.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}", self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What happened to the objects that are watched.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<K> {
    /// The object was there at the start, was created or was changed.
    Applied(K),
    /// The object of this key is gone.
    Deleted(Key),
    /// Everything that was there at the start has been [`Event::Applied`]; sent once.
    Synced,
}

/// Which objects to watch.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// A label selector; empty for all.
    pub labels: String,
    /// A field selector; empty for all.
    pub fields: String,
}

/// Watches all objects of `api`.
///
/// With `Api<PartialObjectMeta<K>>` only metadata are read.
pub fn watch<K>(api: Api<K>) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch_scoped(api, Scope::default())
}

/// Watches the objects of `api` that `scope` selects.
pub fn watch_scoped<K>(api: Api<K>, scope: Scope) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = K::plural(&K::DynamicType::default()).into_owned();
    let source = Source {
        api,
        scope,
        kind,
        streaming: true,
        listing: false,
        events: None,
        failures: Failures::default(),
    };
    stream::unfold((source, Tracker::default()), |(mut source, mut tracker)| async move {
        let event = source.next().await;
        let events = tracker.apply(event);
        Some((stream::iter(events), (source, tracker)))
    })
    .flatten()
}

/// A watcher that is replaced when the server turns out not to stream lists.
struct Source<K> {
    api: Api<K>,
    scope: Scope,
    kind: String,
    streaming: bool,
    /// The list has begun and not ended.
    listing: bool,
    events: Option<BoxStream<'static, watcher::Result<watcher::Event<K>>>>,
    failures: Failures,
}

impl<K> Source<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// The next event; failures are logged and waited out.
    async fn next(&mut self) -> watcher::Event<K> {
        loop {
            let events =
                self.events.get_or_insert_with(|| start(&self.api, &self.scope, self.streaming));
            let next = if self.streaming && self.listing {
                timeout(SILENT_LIST, events.next()).await
            } else {
                Ok(events.next().await)
            };
            match next {
                Ok(Some(Ok(event))) => {
                    match event {
                        watcher::Event::Init => self.listing = true,
                        watcher::Event::InitDone => self.listing = false,
                        _ => {}
                    }
                    // A list that has begun is none yet: where each breaks off, the next shall wait longer.
                    if !self.listing {
                        self.recovered();
                    }
                    return event;
                }
                Ok(Some(Err(error))) if self.streaming && refuses_to_stream(&error) => {
                    self.list_instead();
                }
                Ok(Some(Err(error))) => self.failed(&error).await,
                Ok(None) => self.events = None,
                Err(_) => self.list_instead(),
            }
        }
    }

    fn list_instead(&mut self) {
        info!(kind = self.kind, "the server does not stream lists: listing page by page");
        self.streaming = false;
        self.events = None;
    }

    async fn failed(&mut self, error: &watcher::Error) {
        let (level, wait) = self.failures.add(error, Instant::now());
        match level {
            Level::WARN => warn!(kind = self.kind, %error, "watch failed, will be retried"),
            Level::INFO => {
                info!(kind = self.kind, "the server is setting the kind up, will be retried");
            }
            _ => debug!(kind = self.kind, %error, "watch still failing"),
        }
        // Many watches fail at the same moment; they shall not all come back at the same moment.
        sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
    }

    fn recovered(&mut self) {
        if self.failures.end() {
            info!(kind = self.kind, "watch works again");
        }
    }
}

fn start<K>(
    api: &Api<K>,
    scope: &Scope,
    streaming: bool,
) -> BoxStream<'static, watcher::Result<watcher::Event<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let selector = |text: &String| Some(text.clone()).filter(|selector| !selector.is_empty());
    let mut config = watcher::Config {
        label_selector: selector(&scope.labels),
        field_selector: selector(&scope.fields),
        ..watcher::Config::default()
    };
    if streaming {
        config = config.streaming_lists();
    }
    watcher(api.clone(), config).boxed()
}

/// 400 and 422 are how servers with the feature switched off answer.
fn refuses_to_stream(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if matches!(status.code, 400 | 422))
}

#[cfg(test)]
mod tests;
