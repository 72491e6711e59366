//! Follows `CiliumPodIPPool`s and says out of which a pod gets its addresses.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use cilia_crds::CiliumPodIpPool;
use cilia_ipam::{Candidate, ChoiceError, Family, Selectable, choose};
use cilia_runtime::watch::{Event, watch};
use futures::StreamExt as _;
use ipnet::IpNet;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

/// Which address of which pool an endpoint wants.
pub type Wanted = Vec<(Family, String)>;

#[derive(Debug, Default)]
struct Known {
    selectable: BTreeMap<String, Selectable>,
    ranges: BTreeMap<String, Vec<IpNet>>,
}

/// The pools; clones share them. Without pools every address comes from the one there is.
#[derive(Debug, Clone, Default)]
pub struct PodPools(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    default: String,
    known: RwLock<Known>,
    synced: tokio::sync::watch::Sender<bool>,
}

impl PodPools {
    /// No pools known yet; pods that nothing is said about get their addresses out of `default`.
    pub fn new(default: &str) -> Self {
        let synced = tokio::sync::watch::Sender::new(false);
        Self(Some(Arc::new(Shared {
            default: default.to_owned(),
            known: RwLock::default(),
            synced,
        })))
    }

    /// Watches pools until the token is cancelled, and calls `changed` when one has.
    pub async fn run(self, client: Client, token: CancellationToken, changed: impl Fn()) {
        let Some(shared) = self.0 else { return token.cancelled().await };
        let events = watch::<CiliumPodIpPool>(Api::all(client));
        let follow = events.for_each(|event| {
            let known = || shared.known.write().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Applied(pool) => {
                    let name = pool.metadata.name.clone().unwrap_or_default();
                    let mut known = known();
                    known.ranges.insert(name.clone(), ranges(&pool));
                    known.selectable.insert(name, selectable(pool));
                }
                Event::Deleted(key) => {
                    let mut known = known();
                    known.ranges.remove(&*key.name);
                    known.selectable.remove(&*key.name);
                }
                Event::Synced => _ = shared.synced.send_replace(true),
            }
            changed();
            std::future::ready(())
        });
        tokio::select! {
            () = token.cancelled() => {}
            () = follow => {}
        }
    }

    /// Returns once all pools are known.
    pub async fn wait_synced(&self) {
        if let Some(shared) = &self.0 {
            // The sender lives as long as `self`.
            let _ = shared.synced.subscribe().wait_for(|synced| *synced).await;
        }
    }

    /// The ranges of every pool, once they are known.
    pub fn ranges(&self) -> Option<BTreeMap<String, Vec<IpNet>>> {
        let shared = self.0.as_ref().filter(|shared| *shared.synced.borrow())?;
        Some(shared.known.read().unwrap_or_else(PoisonError::into_inner).ranges.clone())
    }

    /// Out of which pool a pod gets its address of each family; what is no pod has the default pool.
    pub fn choose(
        &self,
        families: impl IntoIterator<Item = Family>,
        pod: Option<Candidate<'_>>,
    ) -> Result<Wanted, ChoiceError> {
        let Some(shared) = &self.0 else {
            return Ok(families.into_iter().map(|family| (family, String::new())).collect());
        };
        let known = shared.known.read().unwrap_or_else(PoisonError::into_inner);
        let of = |family| {
            let pool = match pod {
                Some(pod) => choose(family, pod, &known.selectable, &shared.default)?,
                None => shared.default.clone(),
            };
            Ok((family, pool))
        };
        families.into_iter().map(of).collect()
    }
}

fn ranges(pool: &CiliumPodIpPool) -> Vec<IpNet> {
    let v4 = pool.spec.ipv4.iter().flat_map(|own| &own.cidrs);
    let v6 = pool.spec.ipv6.iter().flat_map(|own| &own.cidrs);
    v4.chain(v6).filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.trunc()).collect()
}

fn selectable(pool: CiliumPodIpPool) -> Selectable {
    Selectable {
        v4: pool.spec.ipv4.is_some_and(|own| !own.cidrs.is_empty()),
        v6: pool.spec.ipv6.is_some_and(|own| !own.cidrs.is_empty()),
        pods: pool.spec.pod_selector,
        namespaces: pool.spec.namespace_selector,
    }
}

#[cfg(test)]
impl PodPools {
    /// There is this pool, and no other.
    pub(super) fn know(&self, pool: &str, range: &str) {
        let shared = self.0.as_ref().unwrap();
        let ranges = vec![range.parse().unwrap()];
        shared.known.write().unwrap().ranges.insert(pool.to_owned(), ranges);
        shared.synced.send_replace(true);
    }
}
