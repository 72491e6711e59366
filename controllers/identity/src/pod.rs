//! Decides which labels a pod has as far as security is concerned.

use std::collections::BTreeMap;

use cilia_crds::Labels;
use cilia_crds::labels::SOURCE_K8S;

use crate::Filter;

/// Keys that start so belong to Cilium: a pod cannot claim them.
const OWN_PREFIX: &str = "io.cilium.k8s";
const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";
/// By which label an identity says which cluster its pods are of.
pub const CLUSTER: &str = "io.cilium.k8s.policy.cluster";

/// What of a pod, its namespace and its cluster makes the pod's identity.
#[derive(Debug, Clone, Copy)]
pub struct PodLabels<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's service account; empty when it has none.
    pub service_account: &'a str,
    /// `cluster-name`.
    pub cluster: &'a str,
    /// The pod's own labels.
    pub pod: &'a BTreeMap<String, String>,
    /// The labels of the pod's namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
}

impl PodLabels<'_> {
    /// The labels that make the pod's security identity.
    pub fn identity(&self, filter: &Filter) -> Labels {
        filter.apply(&self.all())
    }

    /// Every label of the pod, whether or not it counts.
    pub fn all(&self) -> Labels {
        let mut labels = self.own();
        labels.extend(&namespace_labels(self.namespace_labels));
        labels
    }

    /// Those that the pod has whatever labels its namespace has.
    ///
    /// The others are [`namespace_labels`]; none is in both, and each counts or doesn't by itself.
    pub fn own(&self) -> Labels {
        let mut labels = Labels::new();
        for (key, value) in self.pod.iter().filter(|(key, _)| !key.starts_with(OWN_PREFIX)) {
            labels.insert(SOURCE_K8S, key, value);
        }
        labels.insert(SOURCE_K8S, NAMESPACE, self.namespace);
        if !self.service_account.is_empty() {
            labels.insert(SOURCE_K8S, SERVICE_ACCOUNT, self.service_account);
        }
        labels.insert(SOURCE_K8S, CLUSTER, self.cluster);
        labels
    }
}

/// The labels that the pods of a namespace have from it.
pub fn namespace_labels(of: &BTreeMap<String, String>) -> Labels {
    let mut labels = Labels::new();
    for (key, value) in of {
        labels.insert(SOURCE_K8S, &format!("{NAMESPACE_LABELS}{key}"), value);
    }
    labels
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::PodLabels;
    use crate::Filter;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn adds_where_it_runs_and_refuses_claims() {
        let pod = map(&[
            ("app", "web"),
            ("io.cilium.k8s.policy.cluster", "forged"),
            ("io.cilium.k8s.namespace.labels.team", "forged"),
            ("io.kubernetes.pod.namespace", "forged"),
            ("pod-template-hash", "1234"),
        ]);
        let namespace_labels = map(&[("kubernetes.io/metadata.name", "shop")]);
        let labels = PodLabels {
            namespace: "shop",
            service_account: "web",
            cluster: "default",
            pod: &pod,
            namespace_labels: &namespace_labels,
        };
        let filter = Filter::new::<&str>(&[], None).expect("defaults are valid");
        assert_eq!(
            labels.identity(&filter).canonical(),
            "k8s:app=web;\
             k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop;\
             k8s:io.cilium.k8s.policy.cluster=default;\
             k8s:io.cilium.k8s.policy.serviceaccount=web;\
             k8s:io.kubernetes.pod.namespace=shop;"
        );
        let anonymous = PodLabels { service_account: "", ..labels };
        assert!(!anonymous.identity(&filter).canonical().contains("serviceaccount"));
    }
}
