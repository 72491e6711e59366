//! Keeps the shared services of this cluster in the kvstore.

use std::collections::BTreeSet;
use std::time::Duration;

use cilia_kvstore::{Client, Mirror, keys, value};
use cilia_runtime::watch::{Change, Key, reflect, watch};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;

use super::export::{self, Cluster};
use crate::wiring::Context;

const RESYNC: Duration = Duration::from_mins(30);

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let config = &context.config;
    if !config.bool("synchronize-k8s-services") || !config.bool("enable-k8s") {
        client.bootstrapped();
        return;
    }
    let cluster = Cluster {
        name: config.string("cluster-name").to_owned(),
        id: u32::try_from(config.uint("cluster-id")).unwrap_or_default(),
    };
    let services: Api<Service> = Api::all(context.client.clone());
    let (services, service_changes) = reflect(watch(services), |service| export::shared(&service));
    let slices: Api<EndpointSlice> = Api::all(context.client.clone());
    let (slices, slice_changes) = reflect(watch(slices), |slice| export::backends(&slice));
    let prefix = format!("{}/{}/", keys::SERVICES, cluster.name);
    let mirror = Mirror::new(client.clone(), "kvstore-services", RESYNC, &context.workqueues);
    let of = |key: &Key| keys::service(&cluster.name, &key.namespace, &key.name);
    let write = |key: &Key| match services.get(key) {
        None => mirror.remove(&of(key)),
        Some(service) => {
            let all = slices.all();
            let own = all.iter().filter(|(slice, backends)| {
                slice.namespace == key.namespace && *backends.service == *key.name
            });
            let own = own.map(|(_, backends)| &**backends);
            let told = export::export(&cluster, (&key.namespace, &key.name), &service, own);
            mirror.set(of(key), value::encode(&told));
        }
    };
    let follow = async {
        let (mut service_changes, mut slice_changes) =
            (std::pin::pin!(service_changes), std::pin::pin!(slice_changes));
        // Nothing is told before everything is known: a service without its slices has no backends.
        let mut missing = 2;
        loop {
            let touched: Vec<Key> = tokio::select! {
                Some(change) = service_changes.next() => match change {
                    Change::Synced => { missing -= 1; Vec::new() }
                    Change::Object { key, .. } => vec![key],
                },
                Some(change) = slice_changes.next() => match change {
                    Change::Synced => { missing -= 1; Vec::new() }
                    Change::Object { key, old, new } => {
                        let of = |backends: &export::Backends| {
                            Key::new(&key.namespace, &backends.service)
                        };
                        let both = [old.as_deref().map(of), new.as_deref().map(of)];
                        both.into_iter().flatten().collect()
                    }
                },
                else => return,
            };
            if missing > 0 {
                continue;
            }
            if touched.is_empty() {
                services.all().iter().for_each(|(key, _)| write(key));
                tokio::spawn(complete(
                    client.clone(),
                    mirror.clone(),
                    prefix.clone(),
                    cluster.name.clone(),
                ));
            }
            touched.iter().for_each(&write);
        }
    };
    let repair = mirror.repair(client.watch(&prefix));
    // Without it a reader that comes later would wait for ever.
    let canary = mirror.repair(client.watch(&keys::synced(&cluster.name, keys::SERVICES)));
    tokio::select! {
        () = mirror.run(context.stop.clone()) => {}
        () = follow => {}
        () = repair => {}
        () = canary => {}
    }
}

/// Deletes what a former operator told and is not so any more, and says that all is there.
async fn complete(client: Client, mirror: Mirror, prefix: String, cluster: String) {
    mirror.settled().await;
    client.bootstrapped();
    let canary = keys::synced(&cluster, keys::SERVICES);
    let done = async {
        let desired: BTreeSet<String> = mirror.keys().into_iter().collect();
        let (present, _) = client.list(&prefix).await?;
        for kv in present {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if !desired.contains(&key) {
                let txn = cilia_kvstore::Txn::new();
                let txn = txn.if_unchanged_since(&key, kv.mod_revision).delete(&key);
                client.txn("delete", &key, txn).await?;
                tracing::info!(key, "service deleted from the kvstore: it is not shared any more");
            }
        }
        Ok::<_, cilia_kvstore::Error>(())
    };
    if let Err(error) = done.await {
        tracing::warn!(%error, "former services not deleted: they go with their lease");
    }
    mirror.set(canary, value::now());
}
