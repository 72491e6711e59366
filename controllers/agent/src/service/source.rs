//! Reads what load balancing needs out of Services and `EndpointSlices`.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_runtime::watch::Key;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::remote::Prefer;

/// A service, as far as load balancing is concerned. About 200 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slim {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ports: Vec<ServicePort>,
    /// Backends of this node only (`internalTrafficPolicy: Local`).
    pub(super) local_only: bool,
    /// For how many seconds a client keeps its backend (`sessionAffinity: ClientIP`).
    pub(super) affinity: Option<u32>,
    /// It is one with the services of its name in other clusters.
    pub(super) global: Option<Prefer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServicePort {
    pub(super) name: Arc<str>,
    pub(super) port: u16,
    pub(super) proto: u8,
}

/// The endpoints of a slice. About 40 bytes for each endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlimSlice {
    pub(super) service: Key,
    pub(super) ports: Vec<ServicePort>,
    pub(super) endpoints: Vec<SlimEndpoint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlimEndpoint {
    pub(super) address: IpAddr,
    pub(super) ready: bool,
    /// Ends, but still answers.
    pub(super) draining: bool,
    pub(super) local: bool,
}

/// Kubernetes' default for how long a client keeps its backend, in seconds.
const AFFINITY: u32 = 10_800;
/// The longest that the map can say.
const LONGEST_AFFINITY: u32 = 0x00ff_ffff;

/// The service, unless it has no address of its own.
pub(super) fn service(service: &Service) -> Option<Slim> {
    let spec = service.spec.as_ref()?;
    let single = spec.cluster_ip.iter().filter(|_| spec.cluster_ips.is_none());
    let texts = spec.cluster_ips.iter().flatten().chain(single);
    let addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
    if addresses.is_empty() || spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        let name = port.name.as_deref().unwrap_or_default().into();
        let proto = crate::ipcache::protocol(port.protocol.as_deref().unwrap_or("TCP"))?;
        Some(ServicePort { name, port: u16::try_from(port.port).ok()?, proto })
    };
    let ports = spec.ports.iter().flatten().filter_map(port).collect();
    Some(Slim {
        addresses,
        ports,
        local_only: spec.internal_traffic_policy.as_deref() == Some("Local"),
        affinity: (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| affinity(spec)),
        global: super::remote::preference(service),
    })
}

fn affinity(spec: &ServiceSpec) -> u32 {
    let client = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client.and_then(|client| client.timeout_seconds);
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok()).filter(|s| *s > 0);
    seconds.unwrap_or(AFFINITY).min(LONGEST_AFFINITY)
}

/// The slice, if it belongs to a service.
pub(super) fn slice(slice: &EndpointSlice, node: &str) -> Option<SlimSlice> {
    let labels = slice.metadata.labels.as_ref()?;
    let service = labels.get("kubernetes.io/service-name")?;
    let service = Key::new(slice.metadata.namespace.as_deref().unwrap_or_default(), service);
    let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
        let name = port.name.as_deref().unwrap_or_default().into();
        let proto = crate::ipcache::protocol(port.protocol.as_deref().unwrap_or("TCP"))?;
        Some(ServicePort { name, port: u16::try_from(port.port?).ok()?, proto })
    };
    let ports = slice.ports.iter().flatten().filter_map(port).collect();
    let mut endpoints = Vec::new();
    for endpoint in slice.endpoints.iter().flatten() {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let serving = conditions.and_then(|c| c.serving).unwrap_or(ready);
        let terminating = conditions.and_then(|c| c.terminating).unwrap_or(false);
        let local = endpoint.node_name.as_deref() == Some(node);
        for address in endpoint.addresses.iter().filter_map(|text| text.parse().ok()) {
            endpoints.push(SlimEndpoint {
                address,
                ready,
                draining: serving && terminating,
                local,
            });
        }
    }
    Some(SlimSlice { service, ports, endpoints })
}
