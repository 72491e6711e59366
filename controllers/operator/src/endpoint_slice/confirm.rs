//! Makes certain of every slice once this process leads.
//!
//! What a standby has heard may be older than the last writes of the leader before it. Until every
//! slice has been read after the take-over, no endpoint is taken out of a slice for being in another.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cilia_crds::CiliumEndpointSlice;
use kube::{Api, Client, ResourceExt};
use tracing::{info, warn};

use super::reconciler::Reconciler;
use super::slim::Slim;
use super::store::seen;
use crate::listing;

/// Slices read at once: one of a hundred endpoints has some 20 kB.
const PAGE: u32 = 25;
/// When to try again if they can't be read.
const RETRY: Duration = Duration::from_secs(1);

/// Reads all slices and tells the core, until that has worked once.
pub(super) fn run(
    client: &Client,
    reconciler: &Arc<Reconciler>,
) -> impl Future<Output = ()> + Send + use<> {
    let api: Api<Slim<CiliumEndpointSlice>> = Api::all(client.clone());
    let reconciler = Arc::clone(reconciler);
    async move {
        // One that is made meanwhile is no other leader's.
        let known: HashSet<String> =
            reconciler.tell(|slices, _| slices.names().map(str::to_owned).collect());
        loop {
            let mut there = HashSet::new();
            let told = listing::objects_by(PAGE, &api, "CiliumEndpointSlice", |Slim(slice)| {
                there.insert(slice.name_any());
                reconciler.tell(|slices, now| slices.apply(seen(&slice), now));
            });
            match told.await {
                Ok(()) => {
                    reconciler.tell(|slices, _| {
                        slices.relisted(|name| !known.contains(name) || there.contains(name));
                        slices.confirm();
                    });
                    info!(slices = there.len(), "made certain of all slices");
                    return;
                }
                Err(error) => {
                    warn!(%error, "could not make certain of all slices, will be retried");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
