//! Ports, types of messages, and demands on requests.

use serde_json::{Value, json};

use crate::{begins, element, is, item};

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
