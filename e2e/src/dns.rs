//! Decides how the cluster's names are resolved: `CoreDNS` behind a fixed address.

use serde_json::{Value, json};

use crate::Options;
use crate::image::catalog::COREDNS_IMAGE;
use crate::node::DNS_ADDRESS;

const COREFILE: &str = "\
.:53 {
  errors
  health
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    pods insecure
    ttl 5
  }
  cache 5
  loadbalance
}
";

/// The manifests, for `kubectl apply`.
pub(crate) fn manifests(options: &Options) -> String {
    let items = [
        account(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(),
            "data": {"Corefile": COREFILE},
        }),
        role(),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "cluster-dns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "cluster-dns",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        }),
        deployment(),
        service(options),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn meta() -> Value {
    json!({"name": "coredns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}})
}

fn account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta()})
}

fn role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "cluster-dns"},
        "rules": [
            {
                "apiGroups": [""], "resources": ["services", "pods", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            },
        ],
    })
}

fn deployment() -> Value {
    let probe = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {
                "metadata": {"labels": {"k8s-app": "kube-dns"}},
                "spec": {
                    "serviceAccountName": "coredns",
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-cluster-critical",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "coredns",
                        "image": COREDNS_IMAGE,
                        "imagePullPolicy": "Never",
                        "args": ["-conf", "/etc/coredns/Corefile"],
                        "ports": [
                            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
                        ],
                        "readinessProbe": probe("/ready", 8181),
                        "livenessProbe": probe("/health", 8080),
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                            "readOnlyRootFilesystem": true,
                        },
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                    }],
                    "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                },
            },
        },
    })
}

fn service(options: &Options) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"},
        },
        "spec": {
            "clusterIP": DNS_ADDRESS,
            "ipFamilyPolicy": if options.ipv6 { "PreferDualStack" } else { "SingleStack" },
            "selector": {"k8s-app": "kube-dns"},
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    })
}
