//! What other clusters have behind a service that they share.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cilia_kvstore::value::ClusterService;
use cilia_runtime::watch::Key;
use k8s_openapi::api::core::v1::Service;

use super::source::ServicePort;

const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
const AFFINITY: &str = "service.cilium.io/affinity";

/// Whose backends a global service uses, while they are there (`service.cilium.io/affinity`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefer {
    /// All clusters' alike.
    Any,
    /// This cluster's.
    Local,
    /// Other clusters'.
    Remote,
}

/// Whether a service is one with those of its name in other clusters.
pub(super) fn preference(service: &Service) -> Option<Prefer> {
    let annotations = service.metadata.annotations.as_ref()?;
    let global = GLOBAL.into_iter().find_map(|name| annotations.get(name))?;
    global.eq_ignore_ascii_case("true").then(|| {
        match annotations.get(AFFINITY).map(String::as_str) {
            Some("local") => Prefer::Local,
            Some("remote") => Prefer::Remote,
            _ => Prefer::Any,
        }
    })
}

/// Backends by service and cluster. About 60 bytes for each.
#[derive(Debug, Default)]
pub(super) struct Remotes(HashMap<Key, BTreeMap<Arc<str>, Vec<Backend>>>);

type Backend = (IpAddr, ServicePort);

impl Remotes {
    pub(super) fn set(&mut self, cluster: &Arc<str>, service: &ClusterService) {
        let mut backends = Vec::new();
        for (address, ports) in &service.backends {
            let Ok(address) = address.parse() else { continue };
            for (name, port) in ports {
                let Some(proto) = crate::ipcache::protocol(&port.protocol) else { continue };
                let name = name.as_str().into();
                backends.push((address, ServicePort { name, port: port.port, proto }));
            }
        }
        let key = Key::new(&service.namespace, &service.name);
        self.0.entry(key).or_default().insert(cluster.clone(), backends);
    }

    pub(super) fn remove(&mut self, cluster: &str, key: &Key) {
        if let Some(clusters) = self.0.get_mut(key) {
            clusters.remove(cluster);
            if clusters.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// Whether a backend of a service is in another cluster.
    pub(super) fn has(&self, key: &Key, (ip, port, proto): super::table::Place) -> bool {
        let all = self.0.get(key).into_iter().flat_map(BTreeMap::values).flatten();
        all.into_iter()
            .any(|(address, target)| (*address, target.port, target.proto) == (ip, port, proto))
    }

    /// The places of a service's port in other clusters.
    pub(super) fn behind<'a>(
        &'a self,
        key: &Key,
        port: &'a ServicePort,
        ipv4: bool,
    ) -> impl Iterator<Item = super::table::Place> + use<'a> {
        let all = self.0.get(key).into_iter().flat_map(BTreeMap::values).flatten();
        let fits = move |(address, target): &&Backend| {
            address.is_ipv4() == ipv4 && target.name == port.name && target.proto == port.proto
        };
        all.filter(fits).map(|(address, target)| (*address, target.port, target.proto))
    }
}
