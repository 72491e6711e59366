//! Bad policies of every kind, and what their authors are told: the field, the fault, what would be right.

use cilia_policy::{CidrGroup, Config, read};
use serde_json::{Value, json};

/// What is said of an object, as the condition `Valid` has it: its fault, else `Ok` with its notes.
fn told(kind: &str, mut object: Value) -> Result<Vec<String>, String> {
    object["kind"] = json!(kind);
    if object["metadata"].is_null() {
        object["metadata"] = json!({"name": "p", "namespace": "test"});
    }
    let (_, parsed) = read(&object, &Config::default()).expect("a policy");
    parsed.map(|parsed| parsed.notes.iter().map(ToString::to_string).collect())
}

/// A rule for all endpoints with one item in a section, in a `CiliumNetworkPolicy`.
fn item(section: &str, item: &Value) -> Result<Vec<String>, String> {
    told("CiliumNetworkPolicy", json!({"spec": {"endpointSelector": {}, section: [item]}}))
}

/// The same with these ports as the only element of `toPorts`.
fn element(section: &str, element: &Value) -> Result<Vec<String>, String> {
    item(section, &json!({"toPorts": [element]}))
}

fn is(name: &str, got: Result<Vec<String>, String>, want: &str) {
    assert_eq!(got.expect_err(name), want, "{name}");
}

/// Whether a fault, or the only note, begins so.
fn begins(name: &str, got: Result<Vec<String>, String>, want: &str) {
    let got = match got {
        Ok(notes) => {
            assert_eq!(notes.len(), 1, "{name}: {notes:?}");
            notes[0].clone()
        }
        Err(fault) => fault,
    };
    assert!(got.starts_with(want), "{name}: {got}");
}

#[test]
fn rules() {
    let cnp = |object| told("CiliumNetworkPolicy", object);
    let ccnp = |object| told("CiliumClusterwideNetworkPolicy", object);
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
    for tell in [cnp as fn(Value) -> _, ccnp] {
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
        ccnp(json!({"spec": {"nodeSelector": {}, "ingress": [{"toPorts": [
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
fn selectors() {
    let subject = |selector: Value| {
        told(
            "CiliumNetworkPolicy",
            json!({"spec": {"endpointSelector": selector, "ingress": [{}]}}),
        )
    };
    let key = "at most 63 letters, digits, dashes, underscores and dots, the first and the last a letter or \
               digit; a DNS name and a slash may come before them";
    let value = "at most 63 letters, digits, dashes, underscores and dots, the first and the last a letter or digit";
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    for (selector, want) in [
        (
            json!({"matchLabels": {"bad key!": "x"}}),
            format!("matchLabels[\"bad key!\"]: \"bad key!\" is not a label's key: {key}"),
        ),
        (json!({"matchLabels": {"k8s:": "x"}}), "matchLabels[\"k8s:\"]: the key is empty".into()),
        (
            json!({"matchLabels": {"a/b/c": "x"}}),
            format!("matchLabels[\"a/b/c\"]: \"a/b/c\" is not a label's key: {key}"),
        ),
        (
            json!({"matchLabels": {"app": "not this"}}),
            format!("matchLabels[\"app\"]: \"not this\" is not a label's value: {value}"),
        ),
        (
            expression("-x", "Exists", &[]),
            format!("matchExpressions[0].key: \"-x\" is not a label's key: {key}"),
        ),
        (
            expression("a", "In", &["b", "c/d"]),
            format!("matchExpressions[0].values[1]: \"c/d\" is not a label's value: {value}"),
        ),
        (
            expression("a", "In", &[]),
            "matchExpressions[0].values: operators In and NotIn need at least one value".into(),
        ),
        (
            expression("a", "Exists", &["b"]),
            "matchExpressions[0].values: operators Exists and DoesNotExist take no values".into(),
        ),
    ] {
        is(
            &selector.to_string(),
            subject(selector.clone()),
            &format!("spec.endpointSelector.{want}"),
        );
        // Wherever a selector may stand.
        for (section, member) in
            [("ingress", "fromEndpoints"), ("egress", "toRequires"), ("egressDeny", "toEndpoints")]
        {
            let got = item(section, &json!({member: [{}, selector]}));
            is(member, got, &format!("spec.{section}[0].{member}[1].{want}"));
        }
        let services = json!({"toServices": [{"k8sServiceSelector": {"selector": selector}}]});
        let field = "spec.egress[0].toServices[0].k8sServiceSelector.selector";
        is("services", item("egress", &services), &format!("{field}.{want}"));
        let groups = json!({"fromCIDRSet": [{"cidrGroupSelector": selector}]});
        let field = "spec.ingress[0].fromCIDRSet[0].cidrGroupSelector";
        is("groups", item("ingress", &groups), &format!("{field}.{want}"));
    }
    begins(
        "operator",
        subject(expression("a", "Like", &["b"])),
        "spec.endpointSelector.matchExpressions[0].operator: unknown variant `Like`, expected one of `In`",
    );
    // Keys of every source are possible.
    for key in [
        "reserved:init",
        "k8s:io.kubernetes.pod.namespace",
        "any:app",
        "cidr:10.0.0.0/8",
        "app.kubernetes.io/name",
    ] {
        assert_eq!(
            item("ingress", &json!({"fromEndpoints": [{"matchLabels": {key: ""}}]})),
            Ok(vec![]),
            "{key}"
        );
    }
    let network =
        told("NetworkPolicy", json!({"spec": {"podSelector": {"matchLabels": {"a b": "c"}}}}));
    begins(
        "Kubernetes' own",
        network,
        "spec.podSelector.matchLabels[\"a b\"]: \"a b\" is not a label's key",
    );
}

#[test]
fn peers() {
    for (name, section, written, want) in [
        (
            "a long prefix",
            "egress",
            json!({"toCIDR": ["10.0.0.0/33"]}),
            "toCIDR[0]: \"10.0.0.0/33\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "a name",
            "ingress",
            json!({"fromCIDR": ["::/0", "example.org"]}),
            "fromCIDR[1]: \"example.org\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "nothing",
            "ingressDeny",
            json!({"fromCIDR": [""]}),
            "fromCIDR[0]: \"\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address",
        ),
        (
            "an address in a set",
            "egress",
            json!({"toCIDRSet": [{"cidr": "192.0.2.1"}]}),
            "toCIDRSet[0].cidr: \"192.0.2.1\" is not a prefix: write 192.0.2.1/32",
        ),
        (
            "an address as exception",
            "egress",
            json!({"toCIDRSet": [{"cidr": "fd00::/8", "except": ["fd00::1"]}]}),
            "toCIDRSet[0].except[0]: \"fd00::1\" is not a prefix: write fd00::1/128",
        ),
        (
            "an exception outside",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/8"]}]}),
            "toCIDRSet[0].except[1]: 11.0.0.0/8 is not inside of 10.0.0.0/8",
        ),
        (
            "an exception that is wider",
            "ingress",
            json!({"fromCIDRSet": [{"cidr": "10.0.0.0/16", "except": ["10.0.0.0/8"]}]}),
            "fromCIDRSet[0].except[0]: 10.0.0.0/8 is not inside of 10.0.0.0/16",
        ),
        (
            "an exception of another family",
            "egressDeny",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["fd00::/16"]}]}),
            "toCIDRSet[0].except[0]: fd00::/16 is not inside of 10.0.0.0/8",
        ),
        (
            "no range",
            "egress",
            json!({"toCIDRSet": [{"except": ["10.0.0.0/8"]}]}),
            "toCIDRSet[0]: exactly one of cidr, cidrGroupRef and cidrGroupSelector is required",
        ),
        (
            "a range and a group",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "cidrGroupRef": "net"}]}),
            "toCIDRSet[0]: exactly one of cidr, cidrGroupRef and cidrGroupSelector is required",
        ),
        (
            "two kinds",
            "egress",
            json!({"toEndpoints": [{}], "toEntities": ["world"]}),
            "toEntities: it can't be combined with spec.egress[0].toEndpoints: write two items instead",
        ),
        (
            "services and ranges",
            "egress",
            json!({"toServices": [{"k8sService": {"serviceName": "a"}}], "toCIDR": ["::/0"]}),
            "toServices: it can't be combined with spec.egress[0].toCIDR: write two items instead",
        ),
        (
            "nodes",
            "ingress",
            json!({"fromNodes": [{}]}),
            "fromNodes: it needs enable-node-selector-labels, which is off",
        ),
        (
            "two ways to name a name",
            "egress",
            json!({"toFQDNs": [{"matchName": "a.org", "matchPattern": "*.org"}]}),
            "toFQDNs[0]: matchName and matchPattern exclude each other",
        ),
        (
            "no name",
            "egress",
            json!({"toFQDNs": [{}]}),
            "toFQDNs[0]: one of matchName and matchPattern is required",
        ),
        (
            "no DNS name",
            "egress",
            json!({"toFQDNs": [{"matchName": "https://a.org"}]}),
            "toFQDNs[0].matchName: \"https://a.org\" is not a name: letters, digits, dashes, underscores and dots are possible",
        ),
        (
            "no pattern",
            "egress",
            json!({"toFQDNs": [{"matchPattern": "*.a.org/x"}]}),
            "toFQDNs[0].matchPattern: \"*.a.org/x\" is not a pattern: at most 255 letters, digits, dashes, underscores, dots and stars",
        ),
    ] {
        is(name, item(section, &written), &format!("spec.{section}[0].{want}"));
    }
    for (name, section, written, want) in [
        (
            "an unknown entity",
            "ingress",
            json!({"fromEntities": ["host", "moon"]}),
            "fromEntities[1]: unknown variant `moon`, expected one of `all`, `world`",
        ),
        (
            "an entity in capitals",
            "egress",
            json!({"toEntities": ["World"]}),
            "toEntities[0]: unknown variant `World`",
        ),
        (
            "a selector instead of selectors",
            "ingress",
            json!({"fromEndpoints": {"matchLabels": {"a": "b"}}}),
            "fromEndpoints: invalid type: map, expected a sequence",
        ),
        (
            "an unknown mode",
            "ingress",
            json!({"authentication": {"mode": "perhaps"}}),
            "authentication.mode: unknown variant `perhaps`, expected one of `disabled`",
        ),
        // Valid, but hardly meant so.
        (
            "an exception that is all",
            "egress",
            json!({"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]}),
            "toCIDRSet[0].except[0]: 10.0.0.0/8 leaves nothing of 10.0.0.0/8",
        ),
        (
            "a service without a name",
            "egress",
            json!({"toServices": [{"k8sService": {"namespace": "a"}}]}),
            "toServices[0].k8sService.serviceName: without a name no service is meant",
        ),
        (
            "a name of a member that is wrong",
            "ingress",
            json!({"fromEndpoint": [{}]}),
            "fromEndpoint: there is no such field: it is ignored",
        ),
    ] {
        begins(name, item(section, &written), &format!("spec.{section}[0].{want}"));
    }
    let group = |ranges: Value| {
        CidrGroup::fault(&json!({"metadata": {"name": "g"}, "spec": {"externalCIDRs": ranges}}))
    };
    assert_eq!(group(json!(["10.0.0.0/8", "192.0.2.1"])), None);
    assert_eq!(
        group(json!(["10.0.0.0/8", "10.0.0.0/8/8"])).as_deref(),
        Some(
            "spec.externalCIDRs[1]: \"10.0.0.0/8/8\" is neither a prefix such as 10.0.0.0/8 or fd00::/8 nor an address"
        )
    );
    let fault = group(json!("10.0.0.0/8")).expect("no list");
    assert!(fault.starts_with("spec.externalCIDRs: invalid type: string"), "{fault}");
}

#[test]
fn ports() {
    let port = |port: Value| element("ingress", &json!({"ports": [{"port": "443"}, port]}));
    let name =
        "neither a port number nor a service name (at most 15 letters, digits and single dashes)";
    for (written, want) in [
        (json!({"port": "70000"}), "port: port 70000 is not between 0 and 65535".into()),
        (json!({"port": "0x10000"}), "port: port 0x10000 is not between 0 and 65535".into()),
        (json!({"port": "-1"}), format!("port: \"-1\" is {name}")),
        (json!({"port": "http_alt"}), format!("port: \"http_alt\" is {name}")),
        (json!({"port": "a-very-long-name"}), format!("port: \"a-very-long-name\" is {name}")),
        (json!({"port": "80-90"}), format!("port: \"80-90\" is {name}")),
        (
            json!({"protocol": "TCP"}),
            "port: a port is required (enable-extended-ip-protocols is off)".into(),
        ),
        (
            json!({"port": "80", "endPort": 70000}),
            "endPort: 70000 is not between 0 and 65535".into(),
        ),
        (json!({"port": "80", "endPort": -1}), "endPort: -1 is not between 0 and 65535".into()),
        (
            json!({"port": "0", "protocol": "VRRP"}),
            "protocol: VRRP and IGMP need enable-extended-ip-protocols, which is off".into(),
        ),
    ] {
        is(
            &written.to_string(),
            port(written.clone()),
            &format!("spec.ingress[0].toPorts[0].ports[1].{want}"),
        );
    }
    for (written, want) in [
        (json!({"port": 80}), "port: invalid type: integer `80`, expected a string"),
        (
            json!({"port": "80", "protocol": "HTTP"}),
            "protocol: unknown variant `HTTP`, expected one of `TCP`, `UDP`",
        ),
        // Valid, but hardly meant so.
        (json!({"port": "80", "endPort": 70}), "endPort: 70 comes before 80: it is port 80 alone"),
        (json!({"port": "http", "endPort": 90}), "endPort: a name has no end: it is http alone"),
    ] {
        let got = port(written.clone());
        begins(&written.to_string(), got, &format!("spec.ingress[0].toPorts[0].ports[1].{want}"));
    }
    let many = vec![json!({"port": "80", "protocol": "TCP"}); 41];
    is(
        "many ports",
        element("egressDeny", &json!({"ports": many})),
        "spec.egressDeny[0].toPorts[0].ports: 41 ports are given, at most 40 are possible",
    );
    begins(
        "no port",
        element("ingress", &json!({})),
        "spec.ingress[0].toPorts[0].ports: no port is given: nothing is allowed by this element",
    );
    let message =
        |message: Value| item("ingress", &json!({"icmps": [{"fields": [{"type": 8}, message]}]}));
    let of = "a number from 0 to 255 or a name such as EchoRequest";
    for (written, want) in [
        (json!({"type": 300}), format!("300 is not a type of ICMP: {of}")),
        (json!({"type": -1}), format!("-1 is not a type of ICMP: {of}")),
        (
            json!({"type": "256", "family": "IPv6"}),
            format!("\"256\" is not a type of ICMPv6: {of}"),
        ),
        (json!({"type": "Ping"}), format!("\"Ping\" is not a type of ICMP: {of}")),
        (json!({"type": "PacketTooBig"}), format!("\"PacketTooBig\" is not a type of ICMP: {of}")),
    ] {
        is(
            &written.to_string(),
            message(written.clone()),
            &format!("spec.ingress[0].icmps[0].fields[1].type: {want}"),
        );
    }
    begins(
        "a family",
        message(json!({"type": 8, "family": "IPX"})),
        "spec.ingress[0].icmps[0].fields[1].family: unknown variant `IPX`, expected `IPv4` or `IPv6`",
    );
    let many = vec![json!({"type": 8}); 41];
    is(
        "many messages",
        item("ingress", &json!({"icmps": [{"fields": many}]})),
        "spec.ingress[0].icmps[0].fields: 41 messages are given, at most 40 are possible",
    );
    is(
        "ports and messages",
        item(
            "egress",
            &json!({"icmps": [{"fields": [{"type": 8}]}], "toPorts": [{"ports": [{"port": "80"}]}]}),
        ),
        "spec.egress[0].icmps: it can't be combined with toPorts: write two items",
    );
}

#[test]
fn requests() {
    let http = |ports: Value, rules: Value| json!({"ports": [ports], "rules": rules});
    let tcp = || json!({"port": "80", "protocol": "TCP"});
    for (section, written, want) in [
        (
            "ingress",
            http(tcp(), json!({"http": [{}], "dns": [{"matchPattern": "*"}]})),
            "rules: only one kind of rules is possible, not http and dns",
        ),
        ("egress", http(tcp(), json!({"l7": [{"a": "b"}]})), "rules.l7: it needs l7proto"),
        (
            "ingress",
            http(json!({"port": "80"}), json!({"http": [{}]})),
            "rules.http: every port needs protocol TCP",
        ),
        (
            "ingress",
            http(json!({"port": "0", "protocol": "TCP"}), json!({"http": [{}]})),
            "rules.http: it can't be combined with port 0",
        ),
        (
            "ingress",
            http(json!({"port": "53", "protocol": "UDP"}), json!({"dns": [{"matchPattern": "*"}]})),
            "rules.dns: rules for DNS are possible for egress only",
        ),
        (
            "egress",
            json!({"rules": {"dns": [{"matchPattern": "*"}]}}),
            "rules.dns: rules for DNS need ports",
        ),
        (
            "egress",
            http(json!({"port": "53", "endPort": 54}), json!({"dns": [{"matchPattern": "*"}]})),
            "rules.dns: rules for DNS can't be combined with endPort",
        ),
        (
            "egress",
            json!({"ports": [tcp()], "serverNames": [""]}),
            "serverNames[0]: the name is empty",
        ),
        (
            "egress",
            json!({"ports": [tcp()], "serverNames": ["a.org"], "rules": {"http": [{}]}}),
            "serverNames: with rules for requests it needs terminatingTLS",
        ),
        (
            "ingress",
            json!({"ports": [tcp()], "listener": {"name": "l", "envoyConfig": {"name": "e"}}}),
            "listener: listeners are possible for egress only",
        ),
        (
            "egress",
            json!({"ports": [tcp()], "listener": {"name": "l", "priority": 101, "envoyConfig": {"name": "e"}}}),
            "listener: the priority must be from 1 to 100",
        ),
    ] {
        let got = element(section, &written);
        is(&written.to_string(), got, &format!("spec.{section}[0].toPorts[0].{want}"));
    }
    // What denies has no such rules: there is no such field.
    begins(
        "a deny",
        element("ingressDeny", &http(tcp(), json!({"http": [{}]}))),
        "spec.ingressDeny[0].toPorts[0].rules: there is no such field: it is ignored",
    );
    begins(
        "a deny by name",
        item("egressDeny", &json!({"toEntities": ["world"], "toFQDNs": [{"matchName": "a.org"}]})),
        "spec.egressDeny[0].toFQDNs: there is no such field: it is ignored",
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
