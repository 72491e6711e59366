//! Tells users about an object through Kubernetes events, without ever delaying who tells.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder as Publisher, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

/// Events waiting to be sent; more than these are dropped.
const QUEUE: usize = 256;
/// The same text about the same object is not sent again for this long.
const QUIET: Duration = Duration::from_mins(1);
/// What the API server accepts as a note.
const NOTE_BYTES: usize = 1024;

/// Sends events; cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(ObjectReference, EventType, &'static str, String)>,
}

impl Recorder {
    /// Events reported by `controller`, the component's name. Must be called inside a Tokio runtime.
    pub fn new(client: Client, controller: &str) -> Self {
        let publisher = Publisher::new(client, Reporter::from(controller));
        let (queue, events) = mpsc::channel(QUEUE);
        tokio::spawn(publish(publisher, events));
        Self { queue }
    }

    /// A warning about `object`: `reason` is one `CamelCase` word, `note` says what to do about it.
    pub fn warning<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &'static str,
        note: impl Into<String>,
    ) {
        self.about(object.object_ref(&()), EventType::Warning, reason, note.into());
    }

    /// Something worth knowing about `object`.
    pub fn normal<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        reason: &'static str,
        note: impl Into<String>,
    ) {
        self.about(object.object_ref(&()), EventType::Normal, reason, note.into());
    }

    /// An event about an object that is known by reference only.
    pub fn about(
        &self,
        object: ObjectReference,
        kind: EventType,
        reason: &'static str,
        mut note: String,
    ) {
        if note.len() > NOTE_BYTES {
            note.truncate(note.floor_char_boundary(NOTE_BYTES));
        }
        if self.queue.try_send((object, kind, reason, note)).is_err() {
            debug!(reason, "event dropped: too many at once");
        }
    }
}

async fn publish(
    publisher: Publisher,
    mut events: mpsc::Receiver<(ObjectReference, EventType, &'static str, String)>,
) {
    let mut sent: HashMap<(Option<String>, &'static str, String), Instant> = HashMap::new();
    while let Some((object, type_, reason, note)) = events.recv().await {
        let now = Instant::now();
        sent.retain(|_, at| now.duration_since(*at) < QUIET);
        let same = (object.uid.clone().or_else(|| object.name.clone()), reason, note.clone());
        if sent.insert(same, now).is_some() {
            continue;
        }
        let event = Event {
            type_,
            reason: reason.into(),
            note: Some(note),
            action: reason.into(),
            secondary: None,
        };
        if let Err(error) = publisher.publish(&event, &object).await {
            debug!(%error, reason, "event not sent");
        }
    }
}
