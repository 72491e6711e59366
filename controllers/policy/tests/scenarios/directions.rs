//! Which directions of whom are isolated, and what is let through or denied then.

use cilia_policy::Direction::{Egress, Ingress};
use cilia_policy::Verdict::{Allowed, Denied, NotAllowed};
use cilia_policy::l4::protocol::{ICMP, ICMPV6, TCP, UDP};
use cilia_policy::{Config, Mode};
use serde_json::{Value, json};

use crate::cluster::{
    CLIENT, CLIENT2, E1, ECHO, HOST, INIT, NODE, WORLD, all, cluster, cluster_with, of,
};

#[test]
fn s01_no_policy() {
    let mut c = cluster();
    assert_eq!(c.tcp(CLIENT, ECHO, 8080), (Allowed, Allowed));
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), Allowed);
    assert!(!c.map(CLIENT).egress.enforced);
}

#[test]
fn s02_an_empty_item_denies_by_default() {
    let mut c = cluster().cnp(json!({"endpointSelector": {}, "ingress": [{}]}));
    assert_eq!(c.tcp(CLIENT, ECHO, 8080), (Allowed, NotAllowed));
}

#[test]
fn s04_s05_kubernetes_default_deny() {
    let mut c = cluster().knp(json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    assert_eq!(c.tcp(CLIENT, ECHO, 8080), (Allowed, NotAllowed));
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), Allowed);
    let mut c = cluster().knp(json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    assert_eq!(c.tcp(CLIENT, ECHO, 8080), (NotAllowed, Allowed));
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), NotAllowed);
}

#[test]
fn kubernetes_policy_types() {
    let from_client = json!([{"from": [{"podSelector": {"matchLabels": {"name": "client"}}}]}]);
    let to_echo = json!([{"to": [{"podSelector": {"matchLabels": {"kind": "echo"}}}]}]);
    let both = |types: Value| {
        let mut spec = json!({"podSelector": {}, "ingress": from_client, "egress": to_echo});
        spec["policyTypes"] = types;
        cluster().knp(spec)
    };
    // Without types rules for egress make it count; with types only those named do.
    let cases = [
        (json!(null), [Allowed, NotAllowed, Allowed, NotAllowed]),
        (json!([]), [Allowed, NotAllowed, Allowed, NotAllowed]),
        (json!(["Ingress", "Egress"]), [Allowed, NotAllowed, Allowed, NotAllowed]),
        (json!(["Ingress"]), [Allowed, Allowed, Allowed, NotAllowed]),
        (json!(["Egress"]), [Allowed, NotAllowed, Allowed, Allowed]),
    ];
    for (types, want) in cases {
        let mut c = both(types.clone());
        let got = [
            c.tcp(CLIENT, ECHO, 80).0,
            c.tcp(CLIENT, CLIENT2, 80).0,
            c.tcp(CLIENT, ECHO, 80).1,
            c.tcp(CLIENT2, ECHO, 80).1,
        ];
        assert_eq!(got, want, "{types}");
    }
    // Empty lists of peers and of ports mean all; a port without a number is the protocol.
    let mut c = cluster().knp(json!({"podSelector": {}, "ingress": [{"from": [], "ports": []}]}));
    assert_eq!([WORLD, NODE].map(|peer| c.verdict(ECHO, Ingress, peer, ICMP, 8)), [Allowed; 2]);
    let mut c =
        cluster().knp(json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "UDP"}]}]}));
    let verdicts = [UDP, TCP].map(|proto| c.verdict(ECHO, Ingress, CLIENT, proto, 99));
    assert_eq!(verdicts, [Allowed, NotAllowed]);
    // Without a spec it is an empty one.
    let mut c = cluster().with("knp", "bare", json!({}));
    assert_eq!(c.tcp(CLIENT, ECHO, 80), (Allowed, NotAllowed));
}

#[test]
fn s07_s08_s10_allows() {
    let from_client2 = json!({"endpointSelector": {"matchLabels": {"name": "client"}},
        "ingress": [{"fromEndpoints": [{"matchLabels": {"other": "client"}}]}]});
    let mut c = cluster().cnp(from_client2);
    assert_eq!((c.tcp(CLIENT2, CLIENT, 80).1, c.tcp(ECHO, CLIENT, 80).1), (Allowed, NotAllowed));

    let port = |port: Value| {
        json!({"endpointSelector": of("client"),
        "egress": [{"toEndpoints": [of("echo")], "toPorts": [{"ports": [port]}]}]})
    };
    let mut c = cluster().cnp(port(json!({"port": "8080", "protocol": "TCP"})));
    assert_eq!((c.tcp(CLIENT, ECHO, 8080).0, c.tcp(CLIENT, ECHO, 8081).0), (Allowed, NotAllowed));
    let mut c = cluster().cnp(port(json!({"port": "4096", "endPort": 8191, "protocol": "TCP"})));
    let verdicts = [8080, 8192, 4095].map(|port| c.tcp(CLIENT, ECHO, port).0);
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed]);
    // 4096-8191 is one block.
    assert_eq!(c.map(CLIENT).entries().filter(|(key, _)| key.egress).count(), 1);
}

#[test]
fn s11_s13_s14_s16_denies() {
    let deny = json!({"endpointSelector": of("client"), "egressDeny":
        [{"toEndpoints": [of("echo")], "toPorts": [{"ports": [{"port": "8080", "protocol": "TCP"}]}]}]});
    let mut c = cluster().cnp(all()).cnp(deny);
    assert_eq!((c.tcp(CLIENT, ECHO, 8080).0, c.tcp(CLIENT, CLIENT2, 8080).0), (Denied, Allowed));

    let named = json!({"endpointSelector": of("echo"), "ingressDeny": [{"fromEndpoints":
        [{"matchLabels": {"name": "client"}}], "toPorts": [{"ports": [{"port": "http-8080", "protocol": "TCP"}]}]}]});
    let mut c = cluster().cnp(all()).cnp(named);
    assert_eq!((c.tcp(CLIENT, ECHO, 8080).1, c.tcp(CLIENT2, ECHO, 8080).1), (Denied, Allowed));
    assert_eq!(c.tcp(CLIENT, ECHO, 8081).1, Allowed);

    let peer = json!({"endpointSelector": of("echo"), "ingressDeny": [{"fromEndpoints":
        [{"matchLabels": {"other": "client"}}]}]});
    let mut c = cluster().cnp(all()).cnp(peer);
    assert_eq!((c.tcp(CLIENT2, ECHO, 80).1, c.tcp(CLIENT, ECHO, 80).1), (Denied, Allowed));

    let ping = json!({"endpointSelector": {"matchLabels": {"name": "client"}}, "ingressDeny": [{"fromEndpoints":
        [{"matchLabels": {"other": "client"}}], "icmps": [{"fields": [{"type": 8}, {"type": "EchoRequest", "family": "IPv6"}]}]}]});
    let mut c = cluster().cnp(all()).cnp(ping);
    assert_eq!(c.verdict(CLIENT, Ingress, CLIENT2, ICMP, 8), Denied);
    assert_eq!(c.verdict(CLIENT, Ingress, CLIENT2, ICMPV6, 128), Denied);
    assert_eq!(c.verdict(CLIENT, Ingress, CLIENT2, ICMP, 0), Allowed);
    assert_eq!(c.tcp(CLIENT2, CLIENT, 80).1, Allowed);
}

#[test]
fn s40_s41_without_default_deny() {
    let soft = json!({"endpointSelector": of("echo"), "enableDefaultDeny": {"ingress": false},
        "ingress": [{"fromEndpoints": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(soft);
    assert_eq!(c.tcp(CLIENT2, ECHO, 80).1, Allowed);
    assert!(c.map(ECHO).ingress.enforced);
    let mut c = c.cnp(json!({"endpointSelector": of("echo"), "ingress": [{}]}));
    assert_eq!((c.tcp(CLIENT, ECHO, 80).1, c.tcp(CLIENT2, ECHO, 80).1), (Allowed, NotAllowed));
    // Only directions that have items can be closed, as with Cilium.
    for (section, item) in [("egress", json!({})), ("egressDeny", json!({"toEntities": ["world"]}))]
    {
        let wish = json!({"endpointSelector": of("echo"), "enableDefaultDeny": {"ingress": true}, section: [item]});
        let mut c = cluster().cnp(wish);
        assert_eq!(c.tcp(CLIENT, ECHO, 80).1, Allowed, "{section}");
        assert!(!c.map(ECHO).ingress.enforced);
        assert_eq!(c.tcp(ECHO, CLIENT, 80).0, NotAllowed);
    }
}

#[test]
fn s58_s59_s88_s95_hosts() {
    let mut c = cluster().cnp(json!({"endpointSelector": of("echo"), "ingress": [{}]}));
    assert_eq!(
        [HOST, NODE].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80)),
        [Allowed, NotAllowed]
    );
    let entities = json!({"endpointSelector": of("echo"), "ingress": [{"fromEntities": ["host", "remote-node"]}]});
    let mut c = cluster().cnp(entities);
    // Identity 7 is a node too.
    let verdicts = [HOST, NODE, 7, CLIENT].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80));
    assert_eq!(verdicts, [Allowed, Allowed, Allowed, NotAllowed]);
    let mut c = cluster()
        .cnp(json!({"endpointSelector": of("echo"), "ingressDeny": [{"fromEntities": ["host"]}]}));
    assert_eq!(c.verdict(ECHO, Ingress, HOST, TCP, 80), Denied);
    let mut c = cluster_with(Config { mode: Mode::Always, ..Config::default() });
    assert_eq!(c.tcp(CLIENT, ECHO, 80), (NotAllowed, NotAllowed));
    assert_eq!(c.verdict(ECHO, Ingress, HOST, TCP, 80), Allowed);
    let mut c = cluster_with(Config { mode: Mode::Never, ..Config::default() })
        .cnp(json!({"endpointSelector": {}, "ingress": [{}]}));
    assert_eq!(c.tcp(CLIENT, ECHO, 80), (Allowed, Allowed));
}

#[test]
fn s70_unknown_labels() {
    let mut c = cluster();
    assert_eq!(c.tcp(INIT, ECHO, 80).0, NotAllowed);
    let rule = json!({"endpointSelector": {"matchLabels": {"reserved:init": ""}}, "egress": [{"toEntities": ["all"]}]});
    let mut c = cluster().ccnp(rule);
    assert_eq!(c.tcp(INIT, ECHO, 80).0, Allowed);
}

#[test]
fn s86_requirements() {
    let allow =
        json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [of("client")]}]});
    let require = json!({"endpointSelector": of("echo"), "ingress": [{"fromRequires": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(allow).cnp(require);
    assert_eq!((c.tcp(CLIENT, ECHO, 80).1, c.tcp(CLIENT2, ECHO, 80).1), (Allowed, NotAllowed));
}
