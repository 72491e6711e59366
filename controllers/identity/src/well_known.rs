//! Decides the numbers that some pods have in every cluster, where that is switched on.

use cilia_crds::labels::SOURCE_K8S;
use cilia_crds::{Labels, NumericIdentity};

/// Component, number, number with the namespace's name as a label too, labels of its own.
type Component = (&'static str, u32, u32, &'static [(&'static str, &'static str)]);

const EKS: &str = "eks.amazonaws.com/component";
const COMPONENTS: &[Component] = &[
    ("kube-dns", 102, 110, &[("k8s-app", "kube-dns")]),
    ("kube-dns", 103, 111, &[("k8s-app", "kube-dns"), (EKS, "kube-dns")]),
    ("coredns", 104, 112, &[("k8s-app", "kube-dns")]),
    (
        "cilium-operator",
        105,
        113,
        &[
            ("name", "cilium-operator"),
            ("io.cilium/app", "operator"),
            ("app.kubernetes.io/part-of", "cilium"),
            ("app.kubernetes.io/name", "cilium-operator"),
        ],
    ),
    ("coredns", 106, 114, &[("k8s-app", "kube-dns"), (EKS, "coredns")]),
];

/// The well-known identities of a cluster whose Cilium runs in `cilium_namespace`.
pub fn well_known(cluster: &str, cilium_namespace: &str) -> Vec<(NumericIdentity, Labels)> {
    let mut identities = Vec::new();
    for (account, plain, with_namespace, own) in COMPONENTS {
        let namespace =
            if *account == "cilium-operator" { cilium_namespace } else { "kube-system" };
        let mut labels = Labels::new();
        for (key, value) in *own {
            labels.insert(SOURCE_K8S, key, value);
        }
        labels.insert(SOURCE_K8S, "io.kubernetes.pod.namespace", namespace);
        labels.insert(SOURCE_K8S, "io.cilium.k8s.policy.serviceaccount", account);
        labels.insert(SOURCE_K8S, crate::CLUSTER_LABEL, cluster);
        identities.push((NumericIdentity(*plain), labels.clone()));
        labels.insert(
            SOURCE_K8S,
            "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name",
            namespace,
        );
        identities.push((NumericIdentity(*with_namespace), labels));
    }
    identities
}
