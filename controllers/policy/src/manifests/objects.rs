//! Reads from objects what policies look at, leniently: what is missing is empty.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::directory::{Service, ServiceId};
use crate::l4::protocol;
use crate::names::NamedPorts;
use crate::nodes::Node;

/// An object, or those in a list.
pub(super) fn flat(object: &Value) -> Vec<&Value> {
    match object["items"].as_array() {
        Some(items) => items.iter().flat_map(flat).collect(),
        None => vec![object],
    }
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("default")
}

fn strings(value: &Value) -> BTreeMap<String, String> {
    let all = value.as_object().into_iter().flatten();
    all.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

/// The labels that the API server gives a namespace.
pub(super) fn implied(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())])
}

/// The labels of a namespace.
pub(super) fn namespace(object: &Value) -> BTreeMap<String, String> {
    let mut labels = implied(name(object));
    labels.extend(strings(&object["metadata"]["labels"]));
    labels
}

/// A pod, or what one of a controller would be.
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) service_account: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) address: Option<IpAddr>,
    pub(super) ports: NamedPorts,
    pub(super) host_network: bool,
}

impl Pod {
    pub(super) fn read(object: &Value) -> Option<Self> {
        let (meta, spec) = match object["kind"].as_str()? {
            "Pod" => (&object["metadata"], &object["spec"]),
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" => {
                let template = &object["spec"]["template"];
                (&template["metadata"], &template["spec"])
            }
            "CronJob" => {
                let template = &object["spec"]["jobTemplate"]["spec"]["template"];
                (&template["metadata"], &template["spec"])
            }
            _ => return None,
        };
        let account = spec["serviceAccountName"].as_str().filter(|name| !name.is_empty());
        let address = object["status"]["podIP"].as_str().and_then(|text| text.parse().ok());
        let containers = spec["containers"].as_array().into_iter().flatten();
        let ports = containers.flat_map(|one| one["ports"].as_array().into_iter().flatten());
        Some(Self {
            namespace: namespace_of(object).to_owned(),
            name: name(object).to_owned(),
            service_account: account.unwrap_or("default").to_owned(),
            labels: strings(&meta["labels"]),
            address,
            ports: ports.filter_map(port).collect(),
            host_network: spec["hostNetwork"].as_bool().unwrap_or(false),
        })
    }
}

fn port(port: &Value) -> Option<((Arc<str>, u8), u16)> {
    let name = port["name"].as_str()?.to_ascii_lowercase();
    let proto = match port["protocol"].as_str().unwrap_or("TCP") {
        "UDP" => protocol::UDP,
        "SCTP" => protocol::SCTP,
        _ => protocol::TCP,
    };
    let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
    Some(((name.into(), proto), number))
}

/// The addresses of services' endpoints.
#[derive(Default)]
pub(super) struct Addresses(BTreeMap<ServiceId, BTreeSet<IpAddr>>);

impl Addresses {
    /// Adds those of `Endpoints` or an `EndpointSlice`.
    pub(super) fn add(&mut self, object: &Value) {
        let service = object["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
        let id = (namespace_of(object).into(), service.unwrap_or(name(object)).into());
        let subsets = object["subsets"].as_array().into_iter().flatten();
        let of_subsets = subsets
            .flat_map(|subset| subset["addresses"].as_array().into_iter().flatten())
            .map(|address| &address["ip"]);
        let endpoints = object["endpoints"].as_array().into_iter().flatten();
        let of_endpoints =
            endpoints.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
        let all = of_subsets
            .chain(of_endpoints)
            .filter_map(|address| address.as_str()?.parse::<IpAddr>().ok());
        self.0.entry(id).or_default().extend(all);
    }

    pub(super) fn of(&self, id: &ServiceId) -> BTreeSet<IpAddr> {
        self.0.get(id).cloned().unwrap_or_default()
    }
}

pub(super) fn service(object: &Value, addresses: BTreeSet<IpAddr>) -> Service {
    Service {
        labels: strings(&object["metadata"]["labels"]),
        selector: strings(&object["spec"]["selector"]),
        addresses,
    }
}

pub(super) fn node(object: &Value) -> Node {
    let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
    let addresses = addresses.filter_map(|address| address["address"].as_str()?.parse().ok());
    Node {
        labels: strings(&object["metadata"]["labels"]),
        addresses: addresses.collect(),
        ..Node::default()
    }
}
