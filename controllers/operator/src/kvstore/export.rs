//! Decides what other clusters learn of a service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cilia_kvstore::value::{ClusterService, L4Addr, PortConfiguration, Zone, ZoneHint};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use kube::ResourceExt;

const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
const SHARED: [&str; 2] = ["service.cilium.io/shared", "io.cilium/shared-service"];
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Which cluster this is.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) name: String,
    pub(super) id: u32,
}

/// What is kept of a service: nothing, unless it is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shared {
    addresses: Vec<String>,
    ports: PortConfiguration,
    labels: BTreeMap<String, String>,
    selector: BTreeMap<String, String>,
}

/// What is kept of a slice. About 100 bytes an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Backends {
    pub(super) service: String,
    ports: PortConfiguration,
    endpoints: Vec<(String, Option<String>, Zone)>,
}

/// A service that is to be shared.
pub(super) fn shared(service: &Service) -> Option<Shared> {
    let says = |names: [&str; 2]| {
        names
            .into_iter()
            .find_map(|name| service.annotations().get(name))
            .map(|value| value.eq_ignore_ascii_case("true"))
    };
    if says(GLOBAL) != Some(true) || says(SHARED) == Some(false) {
        return None;
    }
    let spec = service.spec.clone().unwrap_or_default();
    let own = spec.cluster_ip.filter(|_| spec.cluster_ips.is_none());
    let addresses = spec.cluster_ips.unwrap_or_default().into_iter().chain(own);
    let headless = service.labels().contains_key(HEADLESS);
    let addresses =
        addresses.filter(|address| !headless && address != "None" && !address.is_empty());
    let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
        let number = u16::try_from(port.port).ok()?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        Some((port.name.clone().unwrap_or_default(), L4Addr { protocol, port: number }))
    };
    Some(Shared {
        addresses: addresses.collect(),
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
        labels: service.labels().clone().into_iter().collect(),
        selector: spec.selector.unwrap_or_default().into_iter().collect(),
    })
}

/// What a slice says; nothing if it is no service's.
pub(super) fn backends(slice: &EndpointSlice) -> Option<Backends> {
    let service = slice.labels().get("kubernetes.io/service-name")?.clone();
    if slice.address_type == "FQDN" {
        return None;
    }
    let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
        let number = u16::try_from(port.port?).ok()?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        Some((port.name.clone().unwrap_or_default(), L4Addr { protocol, port: number }))
    };
    let ports = slice.ports.iter().flatten().filter_map(port).collect();
    let mut endpoints = Vec::new();
    for endpoint in slice.endpoints.iter().flatten() {
        // An endpoint that does not say is ready, and serves. One that ends may serve still.
        let says = |what: fn(&EndpointConditions) -> Option<bool>| {
            endpoint.conditions.as_ref().and_then(what).unwrap_or(true)
        };
        if !says(|conditions| conditions.ready) && !says(|conditions| conditions.serving) {
            continue;
        }
        let hints = endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
        let zone = Zone {
            zone: endpoint.zone.clone().unwrap_or_default(),
            for_zones: hints.map(|hint| ZoneHint { name: hint.name.clone() }).collect(),
        };
        for address in &endpoint.addresses {
            // In the one spelling that other clusters compare with others.
            let Ok(address) = address.parse::<IpAddr>() else { continue };
            endpoints.push((address.to_string(), endpoint.hostname.clone(), zone.clone()));
        }
    }
    Some(Backends { service, ports, endpoints })
}

/// What other clusters learn. An address that is in several slices has the ports of all of them.
pub(super) fn export<'a>(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    service: &Shared,
    slices: impl Iterator<Item = &'a Backends>,
) -> ClusterService {
    let mut export = ClusterService {
        cluster: cluster.name.clone(),
        namespace: namespace.into(),
        name: name.into(),
        labels: service.labels.clone(),
        selector: service.selector.clone(),
        include_external: true,
        shared: true,
        cluster_id: cluster.id,
        ..ClusterService::default()
    };
    for address in &service.addresses {
        export.frontends.insert(address.clone(), service.ports.clone());
    }
    for slice in slices {
        for (address, hostname, zone) in &slice.endpoints {
            export.backends.entry(address.clone()).or_default().extend(slice.ports.clone());
            if let Some(hostname) = hostname.clone().filter(|hostname| !hostname.is_empty()) {
                export.hostnames.insert(address.clone(), hostname);
            }
            // Without one, hints mean nothing.
            if !zone.zone.is_empty() {
                export.zones.insert(address.clone(), zone.clone());
            }
        }
    }
    export
}

#[cfg(test)]
mod tests {
    use super::{Cluster, backends, export, shared};
    use cilia_kvstore::value::encode;
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::{Value, json};

    fn service(annotations: &Value, cluster_ip: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "default", "annotations": annotations },
            "spec": { "clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": [{ "name": "http", "port": 80 }] },
        }))
        .expect("a service")
    }

    fn slice(address: &str, port: &Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [address], "hostname": "web-0", "zone": "a" }],
            "ports": [port],
        }))
        .expect("a slice")
    }

    #[test]
    fn only_global_services_that_are_shared_are_told() {
        let global = "service.cilium.io/global";
        for (annotations, want) in [
            (json!({}), false),
            (json!({ global: "true" }), true),
            (json!({ global: "TRUE" }), true),
            (json!({ global: "yes" }), false),
            (json!({ "io.cilium/global-service": "true" }), true),
            (json!({ global: "true", "service.cilium.io/shared": "false" }), false),
            (json!({ global: "true", "io.cilium/shared-service": "true" }), true),
            (json!({ "service.cilium.io/shared": "true" }), false),
        ] {
            assert_eq!(
                shared(&service(&annotations, "10.96.0.1")).is_some(),
                want,
                "{annotations}"
            );
        }
    }

    #[test]
    fn ports_of_an_address_in_two_slices_add_up() {
        let annotations = json!({ "service.cilium.io/global": "true" });
        let web = shared(&service(&annotations, "10.96.0.1")).expect("shared");
        let slices = [
            backends(&slice(
                "10.0.0.5",
                &json!({ "name": "http", "port": 8080, "protocol": "TCP" }),
            )),
            backends(&slice(
                "10.0.0.5",
                &json!({ "name": "alt", "port": 9090, "protocol": "TCP" }),
            )),
        ];
        let cluster = Cluster { name: "east".into(), id: 1 };
        let told = export(&cluster, ("default", "web"), &web, slices.iter().flatten());
        let text = String::from_utf8(encode(&told)).expect("text");
        let want = r#""frontends":{"10.96.0.1":{"http":{"Protocol":"TCP","Port":80}}},"backends":{"10.0.0.5":{"alt":{"Protocol":"TCP","Port":9090},"http":{"Protocol":"TCP","Port":8080}}},"hostnames":{"10.0.0.5":"web-0"},"zones":{"10.0.0.5":{"zone":"a","forZones":[]}}"#;
        assert!(text.contains(want), "{text}");
        let headless = shared(&service(&annotations, "None")).expect("shared");
        let told = export(&cluster, ("default", "web"), &headless, std::iter::empty());
        assert!(told.frontends.is_empty());
    }

    #[test]
    fn endpoints_that_are_ready_or_serve_are_told() {
        let annotations = json!({ "service.cilium.io/global": "true" });
        let web = shared(&service(&annotations, "10.96.0.1")).expect("shared");
        let cluster = Cluster { name: "east".into(), id: 1 };
        for (conditions, want) in [
            (json!({}), true),
            (json!({ "ready": true }), true),
            (json!({ "ready": false, "serving": true, "terminating": true }), true),
            (json!({ "ready": false, "serving": false }), false),
            // Who does not say serves.
            (json!({ "ready": false }), true),
            (json!({ "ready": true, "serving": false }), true),
        ] {
            let endpoint = json!({
                "addresses": ["FD00:0::5", "none"], "conditions": conditions,
                "hints": { "forZones": [{ "name": "a" }] },
            });
            let slice = json!({
                "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
                "addressType": "IPv6", "endpoints": [endpoint], "ports": [],
            });
            let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
            let backends = backends(&slice).expect("a service's");
            let told = export(&cluster, ("default", "web"), &web, [&backends].into_iter());
            let addresses: Vec<&str> = told.backends.keys().map(String::as_str).collect();
            assert_eq!(addresses, if want { vec!["fd00::5"] } else { vec![] }, "{conditions}");
            assert!(told.zones.is_empty(), "hints without a zone mean nothing");
        }
    }

    #[test]
    fn values_are_those_of_the_contract() {
        let cluster = Cluster { name: "cluster3".into(), id: 3 };
        let told = |service: &Value, slices: &[Value]| {
            let service: Service = serde_json::from_value(service.clone()).expect("a service");
            let slices: Vec<EndpointSlice> = slices
                .iter()
                .map(|one| serde_json::from_value(one.clone()).expect("a slice"))
                .collect();
            let backends: Vec<_> = slices.iter().filter_map(backends).collect();
            let told = export(&cluster, ("test", "echo"), &shared(&service)?, backends.iter());
            Some(serde_json::from_slice::<Value>(&encode(&told)).expect("JSON"))
        };
        let service = |port: Value, shared: &str| {
            json!({
                "metadata": { "name": "echo", "namespace": "test", "annotations": {
                    "service.cilium.io/global": "true", "service.cilium.io/shared": shared,
                } },
                "spec": { "clusterIP": "10.96.50.104", "clusterIPs": ["10.96.50.104"], "ports": [port] },
            })
        };
        let slice = |address: &str, port: Value| {
            json!({
                "metadata": { "name": "echo-1", "labels": { "kubernetes.io/service-name": "echo" } },
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": [address], "zone": "zone1",
                    "hints": { "forZones": [{ "name": "zone1" }] },
                }],
                "ports": [port],
            })
        };
        let (http, named) = (
            json!({ "name": "http", "port": 80 }),
            |port: u16| json!({ "name": "http", "port": port, "protocol": "TCP" }),
        );
        let alone = told(&service(http.clone(), "true"), &[]).expect("it is shared");
        let port = |port: u16| json!({ "http": { "Protocol": "TCP", "Port": port } });
        let want = json!({
            "cluster": "cluster3", "namespace": "test", "name": "echo",
            "frontends": { "10.96.50.104": port(80) },
            "backends": {}, "labels": {}, "selector": {},
            "includeExternal": true, "shared": true, "clusterID": 3,
        });
        assert_eq!(alone, want, "SVC-01");
        let zone = json!({ "zone": "zone1", "forZones": [{ "name": "zone1" }] });
        let cases = [("SVC-02", "10.244.1.1", 8080), ("SVC-03", "10.244.1.2", 8081)];
        for (name, address, number) in cases {
            let has = told(&service(http.clone(), "true"), &[slice(address, named(number))]);
            let has = has.expect("it is shared");
            assert_eq!(has["backends"], json!({ address: port(number) }), "{name}");
            assert_eq!(has["zones"], json!({ address: zone }), "{name}");
        }
        let (front, back) = (json!({ "port": 80 }), json!({ "port": 8080, "protocol": "TCP" }));
        let unnamed = told(&service(front, "true"), &[slice("10.244.1.1", back)]);
        let unnamed = unnamed.expect("it is shared");
        let port = |port: u16| json!({ "": { "Protocol": "TCP", "Port": port } });
        assert_eq!(unnamed["frontends"]["10.96.50.104"], port(80), "SVC-10");
        assert_eq!(unnamed["backends"]["10.244.1.1"], port(8080), "SVC-10");
        assert_eq!(told(&service(http, "false"), &[]), None, "SVC-09");
    }
}
