//! What the chart says to values: to Cilium's, to wrong ones, to those that have no effect yet.

use cilia_chart::{helm, kustomize, values};

/// Our defaults that differ from Cilium's, with the reason.
const DEVIATIONS: &[(&str, &str)] = &[
    ("image.repository", "images are built here"),
    ("image.tag", "images are built here"),
    ("image.pullPolicy", "a tag names one image"),
    ("operator.image.repository", "images are built here"),
    ("operator.image.tag", "images are built here"),
    ("operator.image.pullPolicy", "a tag names one image"),
    ("operator.image.suffix", "there is one operator"),
    ("securityContext.capabilities.ciliumAgent", "fewer are needed"),
    ("securityContext.capabilities.cleanCiliumState", "none is needed"),
];

fn refused(set: &str) -> String {
    match helm::template(&["--set", set]) {
        Err(cilia_chart::Error::Rejected(complaint)) => complaint,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{set} was accepted"),
    }
}

#[test]
fn defaults_are_those_of_cilium() {
    let known = values::cilium().expect("tables");
    for (path, ours) in values::ours(&known).expect("values.yaml") {
        // Only what the table of values has says a default; a map's keys are free.
        let Some(theirs) =
            known.get(&path).filter(|known| !known.kind.is_empty() && known.kind != "map")
        else {
            continue;
        };
        let deviates = DEVIATIONS.iter().any(|(deviating, _)| *deviating == path);
        assert_eq!(
            ours != theirs.default,
            deviates,
            "{path}: {ours}, with Cilium {}",
            theirs.default
        );
    }
}

#[test]
fn a_wrong_value_is_an_error_that_names_it() {
    let cases: &[(&str, &[&str])] = &[
        ("ipmam.mode=cluster-pool", &["ipmam"]),
        ("ipv4.enabld=true", &["/ipv4", "enabld"]),
        (
            "ipam.operator.clusterPoolIPv4PodCIDRList={10.0.0.0/40}",
            &["clusterPoolIPv4PodCIDRList", "10.0.0.0/40"],
        ),
        ("ipam.operator.clusterPoolIPv4PodCIDRList={10.0.0/8}", &["clusterPoolIPv4PodCIDRList"]),
        ("ipam.operator.clusterPoolIPv6PodCIDRList={fd00::/129}", &["clusterPoolIPv6PodCIDRList"]),
        ("ipam.operator.clusterPoolIPv4MaskSize=33", &["clusterPoolIPv4MaskSize"]),
        ("ipv4NativeRoutingCIDR=10.0.0.0", &["ipv4NativeRoutingCIDR"]),
        ("cluster.name=Main_Cluster", &["/cluster/name"]),
        ("cluster.id=3", &["cluster.name"]),
        ("operator.endpointGCInterval=5 minutes", &["endpointGCInterval"]),
        ("policyEnforcementMode=sometimes", &["policyEnforcementMode"]),
        ("healthPort=70000", &["healthPort"]),
        ("ipv4.enabled=yes", &["/ipv4/enabled"]),
        ("ipv4.enabled=false", &["ipv4.enabled", "ipv6.enabled"]),
        ("ciliumEndpointSlice.rateLimits[0].limit=0", &["rateLimits"]),
        ("securityContext.privileged=true", &["privileged"]),
        ("ipam.mode=eni", &["ipam.mode", "allowed: cluster-pool, multi-pool, kubernetes, crd"]),
        ("tunnelProtocol=geneve", &["tunnelProtocol", "allowed: vxlan"]),
        ("identityManagementMode=nobody", &["identityManagementMode", "agent, operator, both"]),
        ("routingMode=native", &["routingMode", "allowed: tunnel"]),
        ("encryption.enabled=true", &["encryption.enabled"]),
        ("kubeProxyReplacement=true", &["kubeProxyReplacement"]),
        ("k8sServiceHost=auto", &["k8sServiceHost", "kube-public/cluster-info"]),
        ("cni.chainingMode=aws-cni", &["cni.chainingMode"]),
        ("ciliumEndpointSlice.enabled=true,disableEndpointCRD=true", &["disableEndpointCRD"]),
        (
            "prometheus.enabled=true,prometheus.serviceMonitor.enabled=true",
            &["prometheus.serviceMonitor.enabled"],
        ),
    ];
    for (set, words) in cases {
        let complaint = refused(set);
        for word in *words {
            assert!(complaint.contains(word), "{set}: {complaint}");
        }
    }
}

#[test]
fn cilium_values_that_are_not_built_are_accepted_and_named() {
    let set = "hubble.relay.enabled=true,hubble.enabled=true,envoy.enabled=false,bandwidthManager.bbr=true";
    let documents = helm::template(&["--set", set]).expect("accepted");
    let map =
        documents.iter().find(|document| document.name() == "cilium-config").expect("ConfigMap");
    let named = map.value["metadata"]["annotations"]["cilia.io/values-without-effect"].as_str();
    assert_eq!(named, Some("bandwidthManager.bbr envoy.enabled hubble.relay.enabled"));
    let documents = helm::template(&[]).expect("accepted");
    let map =
        documents.iter().find(|document| document.name() == "cilium-config").expect("ConfigMap");
    assert!(map.value["metadata"]["annotations"].is_null());
}

#[test]
fn values_are_taken_in_the_types_people_write() {
    for set in [
        "kubeProxyReplacement=false",
        "k8sServicePort=6443",
        "bpf.ctTcpMax=null",
        "tolerations=null",
    ] {
        helm::template(&["--set", set]).unwrap_or_else(|error| panic!("{set}: {error}"));
    }
}

#[test]
fn lint_finds_nothing() {
    let chart = cilia_chart::chart();
    helm::run(
        "helm",
        "HELM",
        &["lint", "--strict", "--kube-version", helm::KUBE_VERSION, &chart.to_string_lossy()],
    )
    .expect("helm lint");
}

#[test]
fn kustomize_builds_what_the_chart_renders() {
    let root = cilia_chart::repository().join("config/default");
    let built = helm::run("kubectl", "KUBECTL", &["kustomize", &root.to_string_lossy()])
        .expect("kubectl kustomize");
    let mut built = helm::documents(&built).expect("kustomize's output");
    built.retain(|document| document.kind() != "CustomResourceDefinition");
    let mut rendered = helm::template(&[]).expect("helm template");
    let order =
        |document: &helm::Document| (document.kind().to_owned(), document.name().to_owned());
    built.sort_by_key(order);
    rendered.sort_by_key(order);
    let values = |documents: Vec<helm::Document>| {
        documents.into_iter().map(|document| document.value).collect::<Vec<_>>()
    };
    assert_eq!(values(built), values(rendered));
}

#[test]
fn generated_bases_are_complete() {
    let files = kustomize::generate().expect("bases");
    for path in [
        "default/kustomization.yaml",
        "rbac/agent.yaml",
        "operator/deployment.yaml",
        "prometheus/operator.yaml",
    ] {
        assert!(files.contains_key(path), "{path}");
    }
}
