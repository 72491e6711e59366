//! Rules as a whole, what is valid though it looks odd, and kinds of Kubernetes.

use serde_json::{Value, json};

use crate::{begins, is, item, told};

#[test]
fn rules() {
    let cnp = |object| told("CiliumNetworkPolicy", object);
    let clusterwide = |object| told("CiliumClusterwideNetworkPolicy", object);
    is(
        "no rule",
        cnp(json!({})),
        "spec: the policy has no rule: give one in spec, or several in specs",
    );
    is(
        "no rules",
        cnp(json!({"specs": []})),
        "spec: the policy has no rule: give one in spec, or several in specs",
    );
    let no_section = "at least one of ingress, ingressDeny, egress and egressDeny must have an item; \
                      an empty one, as in ingress: [{}], closes its direction";
    is(
        "no section",
        cnp(json!({"spec": {"endpointSelector": {}}})),
        &format!("spec: {no_section}"),
    );
    is(
        "empty sections",
        cnp(json!({"specs": [{"endpointSelector": {}, "ingress": [{}]},
            {"endpointSelector": {}, "ingress": [], "egressDeny": [], "enableDefaultDeny": {"ingress": true}}]})),
        &format!("specs[1]: {no_section}"),
    );
    is(
        "no subject",
        cnp(json!({"spec": {"ingress": [{}]}})),
        "spec: one of endpointSelector and nodeSelector is required; endpointSelector: {} is everybody",
    );
    for tell in [cnp as fn(Value) -> _, clusterwide] {
        is(
            "two subjects",
            tell(json!({"spec": {"endpointSelector": {}, "nodeSelector": {}, "ingress": [{}]}})),
            "spec: endpointSelector and nodeSelector exclude each other: write a rule for each in specs",
        );
    }
    is(
        "nodes of a namespace",
        cnp(json!({"spec": {"nodeSelector": {}, "ingress": [{}]}})),
        "spec.nodeSelector: only a CiliumClusterwideNetworkPolicy may select nodes",
    );
    is(
        "a long log",
        cnp(
            json!({"spec": {"endpointSelector": {}, "ingress": [{}], "log": {"value": "x".repeat(33)}}}),
        ),
        &format!(
            "spec.log.value: \"{}\" is too long or not printable: at most 32 printable characters are possible",
            "x".repeat(33)
        ),
    );
    is(
        "nodes and requests",
        clusterwide(json!({"spec": {"nodeSelector": {}, "ingress": [{"toPorts": [
            {"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{}]}}]}]}})),
        "spec.ingress[0].toPorts[0].rules.http: rules for nodes can look into DNS requests only, and for egress only",
    );
    begins(
        "a sentence instead of a rule",
        cnp(json!({"spec": "deny all"})),
        "spec: invalid type: string \"deny all\"",
    );
    begins(
        "a rule instead of rules",
        cnp(json!({"spec": {"endpointSelector": {}, "ingress": {}}})),
        "spec.ingress: invalid type: map, expected a sequence",
    );
}

#[test]
fn what_is_valid_though_it_looks_odd() {
    for (name, section, written) in [
        (
            "services and ports",
            "egress",
            json!({"toServices": [{"k8sService": {"serviceName": "a"}}], "toPorts": [{"ports": [{"port": "80"}]}]}),
        ),
        ("requirements", "ingress", json!({"fromRequires": [{"matchLabels": {"a": "b"}}]})),
        ("nobody", "ingress", json!({"fromEndpoints": []})),
        ("nobody twice", "egress", json!({"toEndpoints": [], "toCIDR": []})),
        ("one and nobody", "egress", json!({"toEndpoints": [{}], "toCIDR": []})),
        ("nothing at all", "egressDeny", json!({})),
        ("bits of hosts", "egress", json!({"toCIDR": ["10.1.2.3/8"]})),
    ] {
        assert_eq!(item(section, &written), Ok(vec![]), "{name}");
    }
    let wants = json!({"spec": {"endpointSelector": {}, "egress": [{}], "enableDefaultDeny": {"ingress": true}}});
    begins(
        "a wish without rules",
        told("CiliumNetworkPolicy", wants),
        "spec.enableDefaultDeny.ingress: it has no effect without ingress and ingressDeny: write ingress: [{}]",
    );
    let elsewhere = json!({"spec": {"endpointSelector": {"matchLabels": {"k8s:io.kubernetes.pod.namespace": "other"}}, "ingress": [{}]}});
    begins(
        "another namespace",
        told("CiliumNetworkPolicy", elsewhere),
        "spec.endpointSelector: a CiliumNetworkPolicy concerns its own namespace only: the other one is ignored",
    );
}

#[test]
fn kinds_of_kubernetes() {
    let block = |block: Value| {
        told(
            "NetworkPolicy",
            json!({"spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": block}]}]}}),
        )
    };
    is(
        "ipBlock",
        block(json!({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]})),
        "spec.egress[0].to[0].ipBlock.except[0]: 11.0.0.0/8 is not inside of 10.0.0.0/8",
    );
    begins(
        "cidr",
        block(json!({"cidr": "10.0.0"})),
        "spec.egress[0].to[0].ipBlock.cidr: \"10.0.0\" is neither a prefix",
    );
    let port = |port: Value| {
        told("NetworkPolicy", json!({"spec": {"podSelector": {}, "ingress": [{"ports": [port]}]}}))
    };
    is(
        "number",
        port(json!({"port": 70000})),
        "spec.ingress[0].ports[0].port: 70000 is not between 0 and 65535",
    );
    is(
        "protocol",
        port(json!({"port": 80, "protocol": "ICMP"})),
        "spec.ingress[0].ports[0].protocol: \"ICMP\" is not one of TCP, UDP, SCTP",
    );
    let cluster = |tier: &str, priority: i32, rule: Value| {
        told(
            "ClusterNetworkPolicy",
            json!({"spec": {"tier": tier,
        "priority": priority, "subject": {"namespaces": {}}, "ingress": [rule]}}),
        )
    };
    let from = json!([{"namespaces": {}}]);
    is(
        "tier",
        cluster("admin", 0, json!({"action": "Deny", "from": from})),
        "spec.tier: \"admin\" is not one of Admin, Baseline",
    );
    is(
        "priority",
        cluster("Admin", 1001, json!({"action": "Deny", "from": from})),
        "spec.priority: 1001 is not between 0 and 1000",
    );
    is(
        "action",
        cluster("Admin", 1, json!({"action": "Allow", "from": from})),
        "spec.ingress[0].action: \"Allow\" is not one of Accept, Deny, Pass",
    );
    is(
        "nobody",
        cluster("Admin", 1, json!({"action": "Deny"})),
        "spec.ingress[0].from: 0 peers are given, 1 to 25 are possible",
    );
}
