//! What the chart renders.

mod config;
mod objects;
mod rights;
mod secrets;
mod sources;
mod workloads;

use std::collections::BTreeMap;

use cilia_chart::helm::{self, Document};
use serde_json::Value;

fn render(arguments: &[&str]) -> Vec<Document> {
    helm::template(arguments).unwrap_or_else(|error| panic!("helm template {arguments:?}: {error}"))
}

fn find<'a>(documents: &'a [Document], kind: &str, name: &str) -> Option<&'a Document> {
    documents.iter().find(|document| document.kind() == kind && document.name() == name)
}

fn config(arguments: &[&str]) -> BTreeMap<String, Value> {
    let documents = render(arguments);
    let map = find(&documents, "ConfigMap", "cilium-config").expect("ConfigMap cilium-config");
    serde_json::from_value(map.value["data"].clone()).expect("data of cilium-config")
}

/// Pods of the workloads, with the name of their workload.
fn pods(documents: &[Document]) -> Vec<(&str, &Value)> {
    documents
        .iter()
        .filter(|document| ["DaemonSet", "Deployment"].contains(&document.kind()))
        .map(|document| (document.name(), &document.value["spec"]["template"]["spec"]))
        .collect()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten()
}
