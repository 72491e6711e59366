//! Reads and writes slices, every write guarded by what the slice was when it was decided on.

use cilia_crds::{CiliumEndpointSlice, CoreCiliumEndpoint};
use cilia_slices::{Action, Event, Millis, Outcome, SliceObject, Slices, Write};
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use serde::Serialize;

use super::slim::Slice;
use crate::failure::{CONFLICT, Failure, NOT_FOUND};

const KIND: &str = "CiliumEndpointSlice";

/// The merge patch that makes a slice what it should be.
#[derive(Debug, Serialize)]
struct Update<'a> {
    metadata: Guard<'a>,
    namespace: &'a str,
    endpoints: &'a [CoreCiliumEndpoint],
}

/// Only if the object still is this one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Guard<'a> {
    uid: &'a str,
    resource_version: &'a str,
}

#[derive(Debug, Clone)]
pub(super) struct Store(Api<CiliumEndpointSlice>);

impl Store {
    pub(super) fn new(client: Client) -> Self {
        Self(Api::all(client))
    }

    /// Does a write; with a failure comes what is known of its effect.
    pub(super) async fn write(&self, write: &Write) -> Result<Outcome, (Outcome, Failure)> {
        let name: &str = &write.slice;
        let result = match &write.action {
            Action::Create { namespace, endpoints } => {
                let object = CiliumEndpointSlice {
                    metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
                    namespace: (!namespace.is_empty()).then(|| namespace.to_string()),
                    endpoints: endpoints.clone(),
                };
                let created = self.0.create(&PostParams::default(), &object).await;
                created
                    .map(|object| stored(&object.metadata))
                    .map_err(Failure::of("create", KIND, name))
            }
            Action::Update { uid, resource_version, namespace, endpoints } => {
                // A patch leaves alone what others have put into the metadata.
                let metadata = Guard { uid, resource_version };
                let patch = Patch::Merge(Update { metadata, namespace, endpoints });
                let patched = self.0.patch_metadata(name, &PatchParams::default(), &patch).await;
                patched
                    .map(|object| stored(&object.metadata))
                    .map_err(Failure::of("update", KIND, name))
            }
            Action::Delete { uid, resource_version } => {
                let guarded = DeleteParams::default().preconditions(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(resource_version.clone()),
                });
                let deleted = self.0.delete(name, &guarded).await;
                deleted.map(|_| Outcome::Deleted).map_err(Failure::of("delete", KIND, name))
            }
            // Nothing to write.
            Action::Read => Ok(Outcome::Refused),
        };
        result.map_err(|failure| (effect(&failure), failure))
    }

    /// The slice as it is now.
    pub(super) async fn read(&self, name: &str) -> Result<Option<CiliumEndpointSlice>, Failure> {
        let slice = self.0.get_opt(name).await;
        slice.map_err(Failure::of("read", KIND, name))
    }
}

/// Tells the core what a slice is; its entries are read only if that is news.
pub(super) fn heard(slices: &mut Slices, slice: &Slice, now: Millis) {
    let metadata = &slice.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let resource_version = metadata.resource_version.as_deref().unwrap_or_default();
    let news = slices.is_news(name, resource_version);
    let endpoints = if news { slice.endpoints() } else { Vec::new() };
    let object = SliceObject {
        name,
        uid: metadata.uid.as_deref().unwrap_or_default(),
        resource_version,
        namespace: slice.namespace.as_deref().unwrap_or_default(),
        endpoints: &endpoints,
    };
    slices.apply(Event::Slice(object), now);
}

/// The event that says what a slice is.
pub(super) fn seen(slice: &CiliumEndpointSlice) -> Event<'_> {
    Event::Slice(SliceObject {
        name: slice.metadata.name.as_deref().unwrap_or_default(),
        uid: slice.metadata.uid.as_deref().unwrap_or_default(),
        resource_version: slice.metadata.resource_version.as_deref().unwrap_or_default(),
        namespace: slice.namespace.as_deref().unwrap_or_default(),
        endpoints: &slice.endpoints,
    })
}

fn stored(metadata: &ObjectMeta) -> Outcome {
    Outcome::Stored {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// What a failed write may have done.
fn effect(failure: &Failure) -> Outcome {
    match failure.code() {
        Some(CONFLICT | NOT_FOUND) => Outcome::Unknown,
        Some(400..=499) => Outcome::Refused,
        // The server may have done it before something broke.
        _ => Outcome::Unknown,
    }
}
