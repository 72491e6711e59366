//! Keeps the load-balancing maps equal to the cluster's Services and `EndpointSlices`.
//!
//! `ClusterIPs` only. Identifiers of frontends and backends outlive the agent in the pinned maps, so
//! connections through a service outlive it too.

mod map;
mod numbers;
mod remote;
mod source;
mod table;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cilia_loader::Datapath;
use cilia_runtime::watch::{Event, Key, watch};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

pub use table::ServiceView;
use table::Table;

/// The gate that opens once the maps are right.
pub const GATE: &str = "service";
const RETRY: Duration = Duration::from_secs(1);
/// How many events are taken together before the maps are written.
const BATCH: usize = 4096;

/// The cluster's services; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Services(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// Another cluster says something new.
    news: Notify,
}

impl Services {
    /// Every frontend with its backends, by identifier.
    pub fn list(&self) -> Vec<ServiceView> {
        self.table(|table| table.list())
    }

    /// Another cluster shares a service.
    pub fn set_remote(&self, cluster: &Arc<str>, service: &cilia_kvstore::value::ClusterService) {
        self.table(|table| table.remotes.set(cluster, service));
        self.0.news.notify_one();
    }

    /// Another cluster does not share a service any more.
    pub fn remove_remote(&self, cluster: &str, namespace: &str, name: &str) {
        self.table(|table| table.remotes.remove(cluster, &Key::new(namespace, name)));
        self.0.news.notify_one();
    }

    fn table<R>(&self, use_it: impl FnOnce(&mut Table) -> R) -> R {
        use_it(&mut self.0.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps the maps right until `stop`. `node` is this node's name, for services that stay local.
    pub async fn run(
        self,
        client: Client,
        node: String,
        datapath: Arc<Datapath>,
        readiness: Readiness,
        stop: CancellationToken,
    ) {
        let mut services = Box::pin(watch(Api::<Service>::all(client.clone())));
        let mut slices = Box::pin(watch(Api::<EndpointSlice>::all(client)));
        let mut maps = None;
        let mut unlisted = 2u8;
        loop {
            let mut failed = false;
            if unlisted == 0 {
                failed = self.write(&mut maps, &datapath, &readiness);
            }
            let retry = tokio::time::sleep(RETRY);
            tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = services.next() => {
                    let mut next = Some(event);
                    for _ in 0..BATCH {
                        let Some(event) = next else { break };
                        match event {
                            Event::Applied(service) => {
                                let key = Key::of(&service);
                                self.table(|table| table.set_service(key, source::service(&service)));
                            }
                            Event::Deleted(key) => self.table(|table| table.set_service(key, None)),
                            Event::Synced => unlisted -= 1,
                        }
                        next = services.next().now_or_never().flatten();
                    }
                }
                Some(event) = slices.next() => {
                    let mut next = Some(event);
                    for _ in 0..BATCH {
                        let Some(event) = next else { break };
                        match event {
                            Event::Applied(slice) => {
                                let key = Key::of(&slice);
                                self.table(|table| table.set_slice(key, source::slice(&slice, &node)));
                            }
                            Event::Deleted(key) => self.table(|table| table.set_slice(key, None)),
                            Event::Synced => unlisted -= 1,
                        }
                        next = slices.next().now_or_never().flatten();
                    }
                }
                () = self.0.news.notified() => {}
                () = retry, if failed => {}
            }
        }
    }

    /// Makes the maps right. True if that must be tried again.
    fn write(
        &self,
        maps: &mut Option<map::Written>,
        datapath: &Datapath,
        readiness: &Readiness,
    ) -> bool {
        let result = (|| {
            let written = if let Some(written) = maps.take() {
                written
            } else {
                let written = map::Written::read(datapath)?;
                self.table(|table| table.restore(&written));
                written
            };
            let desired = self.table(Table::desired);
            let written = written.become_desired(desired, datapath)?;
            *maps = Some(written);
            Ok::<(), cilia_loader::Error>(())
        })();
        match result {
            Ok(()) => readiness.open(GATE),
            Err(error) => {
                tracing::error!(%error, "services not written");
                readiness.close(GATE, error.to_string());
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "service/tests.rs"]
mod tests;
