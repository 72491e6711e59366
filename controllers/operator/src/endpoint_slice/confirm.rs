//! Makes certain of every slice once this process leads.
//!
//! What a standby has heard may be older than the last writes of the leader before it. Until every
//! slice has been read after the take-over, no endpoint is taken out of a slice for being in another.

use std::collections::HashSet;

use kube::{Api, Client, ResourceExt};
use tracing::info;

use super::reconciler::Reconciler;
use super::slim::Slice;
use super::store::heard;
use crate::failure::Failure;
use crate::listing;

/// Slices read at once: one of a hundred endpoints has some 20 kB.
const PAGE: u32 = 25;

/// Reads all slices and tells the core.
pub(super) async fn confirm(client: &Client, reconciler: &Reconciler) -> Result<(), Failure> {
    let api: Api<Slice> = Api::all(client.clone());
    // One that is made meanwhile is no other leader's.
    let known: HashSet<String> =
        reconciler.tell(|slices, _| slices.names().map(str::to_owned).collect());
    let mut there = HashSet::new();
    listing::objects_by(PAGE, &api, "CiliumEndpointSlice", |slice: Slice| {
        there.insert(slice.name_any());
        reconciler.tell(|slices, now| heard(slices, &slice, now));
    })
    .await?;
    reconciler.tell(|slices, _| {
        slices.relisted(|name| !known.contains(name) || there.contains(name));
        slices.confirm();
    });
    info!(slices = there.len(), "made certain of all slices");
    Ok(())
}
