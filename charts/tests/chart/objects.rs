//! Which objects there are, and which can be left out.

use std::collections::BTreeSet;

use super::{find, render};

#[test]
fn renders_the_objects_of_a_default_installation() {
    let documents = render(&[]);
    let found: BTreeSet<String> = documents
        .iter()
        .map(|document| format!("{} {}", document.kind(), document.name()))
        .collect();
    let wanted = [
        "ClusterRole cilium",
        "ClusterRole cilium-operator",
        "ClusterRoleBinding cilium",
        "ClusterRoleBinding cilium-operator",
        "ConfigMap cilium-config",
        "DaemonSet cilium",
        "Deployment cilium-operator",
        "Role cilium-config-agent",
        "Role cilium-operator-leader",
        "RoleBinding cilium-config-agent",
        "RoleBinding cilium-operator-leader",
        "ServiceAccount cilium",
        "ServiceAccount cilium-operator",
    ];
    assert_eq!(found, wanted.iter().map(ToString::to_string).collect());
    for document in &documents {
        assert_eq!(
            document.value["metadata"]["labels"]["app.kubernetes.io/part-of"],
            "cilium",
            "{}",
            document.name()
        );
    }
}

#[test]
fn parts_can_be_left_out() {
    /// Kind, name, and whether it is there.
    type Object = (&'static str, &'static str, bool);
    let cases: &[(&str, &[Object])] = &[
        (
            "agent=false",
            &[
                ("DaemonSet", "cilium", false),
                ("ClusterRole", "cilium", false),
                ("ConfigMap", "cilium-config", true),
            ],
        ),
        (
            "operator.enabled=false",
            &[("Deployment", "cilium-operator", false), ("ClusterRole", "cilium-operator", false)],
        ),
        ("agent=false,operator.enabled=false", &[("ConfigMap", "cilium-config", false)]),
        (
            "rbac.create=false",
            &[("ClusterRole", "cilium", false), ("ClusterRoleBinding", "cilium-operator", false)],
        ),
        ("serviceAccounts.cilium.create=false", &[("ServiceAccount", "cilium", false)]),
        ("operator.prometheus.rules.enabled=true", &[("PrometheusRule", "cilium-operator", true)]),
        (
            "operator.podDisruptionBudget.enabled=true",
            &[("PodDisruptionBudget", "cilium-operator", true)],
        ),
        ("prometheus.enabled=true", &[("Service", "cilium-agent", false)]),
        (
            "prometheus.enabled=true,prometheus.metricsService=true",
            &[("Service", "cilium-agent", true)],
        ),
        (
            "prometheus.enabled=true,prometheus.serviceMonitor.enabled=true,prometheus.serviceMonitor.trustCRDsExist=true",
            &[("Service", "cilium-agent", true), ("ServiceMonitor", "cilium-agent", true)],
        ),
        ("dashboards.enabled=true", &[("ConfigMap", "cilium-dashboard", true)]),
        ("operator.dashboards.enabled=true", &[("ConfigMap", "cilium-operator-dashboard", true)]),
        ("operator.prometheus.metricsService=true", &[("Service", "cilium-operator", true)]),
    ];
    for (set, objects) in cases {
        let documents = render(&["--set", set]);
        for (kind, name, there) in *objects {
            assert_eq!(find(&documents, kind, name).is_some(), *there, "{kind} {name} with {set}");
        }
    }
}
