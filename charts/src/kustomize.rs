//! Decides which file of `config/` each rendered object goes to.

use std::collections::BTreeMap;

use crate::helm::Document;
use crate::{Error, helm};

const HEADER: &str = "# Generated from charts/cilia by `make manifests`. Do not edit.\n";
/// What the bases contain beyond the chart's defaults: the objects for Prometheus and Grafana.
const OPTIONAL: &[&str] = &[
    "--set=prometheus.enabled=true,prometheus.serviceMonitor.enabled=true,prometheus.serviceMonitor.trustCRDsExist=true",
    "--set=operator.prometheus.serviceMonitor.enabled=true,operator.prometheus.rules.enabled=true",
    "--set=dashboards.enabled=true,operator.dashboards.enabled=true",
];

/// The generated files below `config/`, by path.
pub fn generate() -> Result<BTreeMap<String, String>, Error> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let optional = helm::template(OPTIONAL)?;
    let optional = optional.iter().filter(|document| is_optional(document));
    for document in helm::template(&[])?.iter().chain(optional) {
        let file = files.entry(place(document)?).or_insert_with(|| HEADER.to_owned());
        file.push_str("---\n");
        file.push_str(document.text.trim_start_matches('\n'));
    }
    let mut folders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for path in files.keys() {
        if let Some((folder, file)) = path.split_once('/') {
            folders.entry(folder).or_default().push(file);
        }
    }
    let mut kustomizations = BTreeMap::new();
    for (folder, mut resources) in folders {
        if folder == "default" {
            resources.extend(["../crd", "../rbac", "../agent", "../operator"]);
        }
        let list: String = resources.iter().flat_map(|name| ["  - ", name, "\n"]).collect();
        let text = format!(
            "{HEADER}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{list}"
        );
        kustomizations.insert(format!("{folder}/kustomization.yaml"), text);
    }
    files.extend(kustomizations);
    Ok(files)
}

fn is_optional(document: &Document) -> bool {
    matches!(document.kind(), "Service" | "ServiceMonitor" | "PrometheusRule")
        || is_dashboard(document)
}

fn is_dashboard(document: &Document) -> bool {
    document.kind() == "ConfigMap" && document.name().contains("dashboard")
}

fn place(document: &Document) -> Result<String, Error> {
    let component = if document.name().contains("operator") { "operator" } else { "agent" };
    Ok(match document.kind() {
        "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
            format!("rbac/{component}.yaml")
        }
        "Service" | "ServiceMonitor" | "PrometheusRule" => format!("prometheus/{component}.yaml"),
        "ConfigMap" if is_dashboard(document) => format!("grafana/{component}.yaml"),
        "ConfigMap" => "default/configmap.yaml".into(),
        "DaemonSet" => "agent/daemonset.yaml".into(),
        "Deployment" => "operator/deployment.yaml".into(),
        kind => {
            return Err(Error::Parse {
                what: format!("{kind} {}", document.name()),
                cause: "no place in config/".into(),
            });
        }
    })
}
