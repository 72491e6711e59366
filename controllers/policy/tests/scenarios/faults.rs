//! What is refused, and how it is named.

use cilia_crds::CiliumNetworkPolicy;
use cilia_policy::Config;
use serde_json::{Value, json};

use crate::cluster::from;

#[test]
fn faults_are_named() {
    let port = |port: Value| json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [port]}]}]});
    let ports = vec![json!({"port": "80", "protocol": "TCP"}); 41];
    let cases = [
        ("S43", json!({"endpointSelector": {}, "ingress": []}), "spec: at least one of ingress"),
        (
            "S44 both",
            json!({"endpointSelector": {}, "nodeSelector": {}, "ingress": [{}]}),
            "spec: endpointSelector and nodeSelector",
        ),
        ("S44 neither", json!({"ingress": [{}]}), "spec: one of endpointSelector and nodeSelector"),
        (
            "nodes",
            json!({"nodeSelector": {}, "ingress": [{}]}),
            "spec.nodeSelector: only a CiliumClusterwide",
        ),
        (
            "S46",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": ports}]}]}),
            "spec.ingress[0].toPorts[0].ports: 41 ports",
        ),
        (
            "S47",
            json!({"endpointSelector": {}, "ingress": [{"icmps": [{"fields": [{"type": 8}]}], "toPorts": [{"ports": [{"port": "80"}]}]}]}),
            "spec.ingress[0].icmps: it can't be combined with toPorts",
        ),
        (
            "S49",
            json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}]}]}),
            "spec.egress[0].toCIDRSet[0].except[0]: 11.0.0.0/8 is not inside of 10.0.0.0/8",
        ),
        (
            "S94, an except wider than its range",
            json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidr": "10.0.0.0/24", "except": ["10.0.0.0/16"]}]}]}),
            "spec.egress[0].toCIDRSet[0].except[0]: 10.0.0.0/16 is not inside of 10.0.0.0/24",
        ),
        (
            "two peers",
            json!({"endpointSelector": {}, "egress": [{"toEndpoints": [{}], "toEntities": ["world"]}]}),
            "spec.egress[0].toEntities: it can't be combined with spec.egress[0].toEndpoints",
        ),
        (
            "prefix",
            json!({"endpointSelector": {}, "egress": [{"toCIDR": ["10.0.0.0/33"]}]}),
            "spec.egress[0].toCIDR[0]: \"10.0.0.0/33\" is neither a prefix",
        ),
        (
            "port",
            port(json!({"port": "70000"})),
            "spec.ingress[0].toPorts[0].ports[0].port: port 70000 is not between",
        ),
        (
            "port name",
            port(json!({"port": "-x"})),
            "spec.ingress[0].toPorts[0].ports[0].port: \"-x\" is neither",
        ),
        (
            "no port",
            port(json!({"protocol": "TCP"})),
            "spec.ingress[0].toPorts[0].ports[0].port: a port is required",
        ),
        (
            "dns on ingress",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "53"}], "rules": {"dns": []}}]}]}),
            "spec.ingress[0].toPorts[0].rules.dns: rules for DNS are possible for egress only",
        ),
        (
            "dns on every port",
            json!({"endpointSelector": {}, "egress": [{"toPorts": [{"ports": [{"port": "0", "protocol": "UDP"}], "rules": {"dns": [{"matchPattern": "*"}]}}]}]}),
            "spec.egress[0].toPorts[0].rules.dns: it can't be combined with port 0",
        ),
        (
            "http over any",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "80"}], "rules": {"http": [{}]}}]}]}),
            "spec.ingress[0].toPorts[0].rules.http: every port needs protocol TCP",
        ),
        (
            "operator",
            json!({"endpointSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}, "ingress": [{}]}),
            "spec.endpointSelector.matchExpressions[0].values: operators In and NotIn need",
        ),
    ];
    for (name, spec, want) in cases {
        let policy: CiliumNetworkPolicy =
            from(json!({"metadata": {"name": "p", "namespace": "test"}, "spec": spec}));
        let error = cilia_policy::cilium(&policy, &Config::default()).expect_err(name).to_string();
        assert!(error.starts_with(want), "{name}: {error}");
    }
    let empty: CiliumNetworkPolicy = from(json!({"metadata": {"name": "p", "namespace": "test"}}));
    assert!(
        cilia_policy::cilium(&empty, &Config::default())
            .expect_err("no rule")
            .to_string()
            .starts_with("spec: the policy has no rule")
    );
}
