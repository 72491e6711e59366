//! Keeps the identities of this cluster in the kvstore where only Kubernetes has them, for other clusters.
//!
//! In the other modes agents write them. A number that agents of a former mode left is overwritten,
//! never deleted: it is not on this process's lease.

use std::time::Duration;

use cilia_crds::CiliumIdentity;
use cilia_kvstore::{Client, Mirror, keys};
use cilia_runtime::watch::{Change, reflect, watch};
use futures::StreamExt;
use kube::Api;

use crate::wiring::Context;

const RESYNC: Duration = Duration::from_mins(30);

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let config = &context.config;
    if config.string("identity-allocation-mode") != "crd" || !config.bool("enable-k8s") {
        return;
    }
    let all: Api<CiliumIdentity> = Api::all(context.client.clone());
    // Identities without labels are nobody's.
    let text = |identity: CiliumIdentity| {
        Some(identity.labels().canonical()).filter(|text| !text.is_empty())
    };
    let (_, changes) = reflect(watch(all), text);
    let mirror = Mirror::new(client.clone(), "kvstore-identities", RESYNC, &context.workqueues);
    let follow = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.next().await {
            let Change::Object { key, new, .. } = change else { continue };
            let Ok(number) = key.name.parse() else { continue };
            let id = keys::identity_id(number);
            match new {
                Some(labels) => mirror.set(id, labels.as_bytes().to_vec()),
                None => mirror.remove(&id),
            }
        }
    };
    let repair = mirror.repair(client.watch(&keys::identity_ids()));
    tokio::select! {
        () = mirror.run(context.stop.clone()) => {}
        () = follow => {}
        () = repair => {}
    }
}
