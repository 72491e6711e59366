//! The keys of `cilium-config`, and which values reach them.

use cilia_chart::values;
use serde_json::Value;

use super::config;

#[test]
fn config_keys_are_those_of_cilium() {
    let table = values::config_keys();
    for (key, value) in config(&[]) {
        let lines: Vec<_> = table.iter().filter(|line| line.key == key).collect();
        assert!(!lines.is_empty(), "{key} is no key of Cilium's ConfigMap");
        let defaults: Vec<_> = lines.iter().map(|line| line.default.as_deref()).collect();
        assert!(defaults.contains(&value.as_str()), "{key}: {value}, with Cilium {defaults:?}");
    }
}

#[test]
fn every_config_value_is_a_string() {
    let set = "--set=bpf.ctTcpMax=1000000,tunnelPort=8473,ciliumEndpointSlice.enabled=true";
    let config = config(&[set, "--set-json=k8sClientRateLimit.qps=7.5"]);
    for (key, value) in &config {
        assert!(value.is_string(), "{key}: {value}");
    }
    assert_eq!(config["bpf-ct-global-tcp-max"], "1000000");
    assert_eq!(config["k8s-client-qps"], "7.5");
    assert_eq!(config["tunnel-port"], "8473");
    assert_eq!(
        config["ces-rate-limits"],
        r#"[{"burst":20,"limit":10,"nodes":0},{"burst":100,"limit":50,"nodes":100}]"#
    );
}

#[test]
fn extra_config_wins_over_the_charts_keys() {
    let config = config(&["--set=extraConfig.mtu=1400,extraConfig.enable-ipv4=false,MTU=1500"]);
    assert_eq!(config["mtu"], "1400");
    assert_eq!(config["enable-ipv4"], "false");
}

#[test]
fn values_reach_their_keys() {
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("ipv6.enabled=true", "cluster-pool-ipv6-cidr", Some("fd00::/104")),
        ("ipv6.enabled=true", "cluster-pool-ipv6-mask-size", Some("120")),
        ("ipv6.enabled=false", "cluster-pool-ipv6-cidr", None),
        (
            "ipam.operator.clusterPoolIPv4PodCIDRList={10.1.0.0/16,10.2.0.0/16}",
            "cluster-pool-ipv4-cidr",
            Some("10.1.0.0/16 10.2.0.0/16"),
        ),
        ("ipam.mode=multi-pool", "cluster-pool-ipv4-cidr", None),
        (
            "ipam.mode=multi-pool,ipam.multiPoolPreAllocation=red=4",
            "ipam-multi-pool-pre-allocation",
            Some("red=4"),
        ),
        (
            "ipam.mode=multi-pool,ipam.operator.autoCreateCiliumPodIPPools.a.ipv4.cidrs={10.1.0.0/16,10.2.0.0/16},ipam.operator.autoCreateCiliumPodIPPools.a.ipv4.maskSize=24,ipam.operator.autoCreateCiliumPodIPPools.b.ipv6.cidrs={fd00::/104},ipam.operator.autoCreateCiliumPodIPPools.b.ipv6.maskSize=120",
            "auto-create-cilium-pod-ip-pools",
            Some(
                "a=ipv4-cidrs:10.1.0.0/16,10.2.0.0/16;ipv4-mask-size:24,b=ipv6-cidrs:fd00::/104;ipv6-mask-size:120",
            ),
        ),
        ("ipv4.enabled=false,ipv6.enabled=true", "operator-api-serve-addr", Some("[::1]:9234")),
        ("healthPort=9999", "agent-health-port", Some("9999")),
        ("healthPort=9879", "agent-health-port", None),
        ("prometheus.enabled=true,prometheus.port=9000", "prometheus-serve-addr", Some(":9000")),
        ("operator.prometheus.enabled=false", "operator-prometheus-serve-addr", None),
        ("operator.unmanagedPodWatcher.restart=true", "unmanaged-pod-watcher-interval", Some("15")),
        ("operator.unmanagedPodWatcher.restart=true", "pod-restart-selector", None),
        ("operator.unmanagedPodWatcher.restart=false", "unmanaged-pod-watcher-interval", Some("0")),
        ("operator.unmanagedPodWatcher.selector=app=dns", "pod-restart-selector", Some("app=dns")),
        ("clustermesh.maxConnectedClusters=511", "max-connected-clusters", Some("511")),
        ("operator.setNodeTaints=false", "set-cilium-node-taints", None),
        ("operator.removeNodeTaints=false", "set-cilium-node-taints", None),
        ("ciliumEndpointSlice.enabled=true", "enable-cilium-endpoint-slice", Some("true")),
        ("ciliumEndpointSlice.enabled=true", "ces-adaptive-rate", Some("true")),
        ("ciliumEndpointSlice.enabled=false", "ces-adaptive-rate", None),
        (
            "ciliumEndpointSlice.enabled=true,ciliumEndpointSlice.adaptiveRate=false",
            "ces-adaptive-rate",
            Some("false"),
        ),
        ("cni.install=false", "write-cni-conf-when-ready", None),
        ("cni.customConf=true", "write-cni-conf-when-ready", None),
        ("policyEnforcementMode=always", "enable-policy", Some("always")),
        ("policyAuditMode=true", "policy-audit-mode", Some("true")),
        ("enableIPv4Masquerade=false", "enable-ipv4-masquerade", Some("false")),
        ("debug.enabled=true", "debug", Some("true")),
    ];
    for (set, key, wanted) in cases {
        let config = config(&["--set", set]);
        assert_eq!(config.get(*key).and_then(Value::as_str), *wanted, "{key} with {set}");
    }
}
