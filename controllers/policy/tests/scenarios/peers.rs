//! Whom selectors, entities and prefixes mean.

use cilia_crds::CiliumNetworkPolicy;
use cilia_policy::Config;
use cilia_policy::Direction::{Egress, Ingress};
use cilia_policy::Verdict::{Allowed, Denied, NotAllowed};
use cilia_policy::l4::protocol::TCP;
use serde_json::json;

use crate::cluster::{
    ABROAD, CLIENT, CLIENT2, E1, E2, ECHO, ELSEWHERE, INIT, NODE, WORLD, all, cluster, from, of,
};

#[test]
fn s17_s20_prefixes_with_exceptions() {
    let set = |except: &str| json!([{"cidr": "192.0.2.0/24", "except": [format!("{except}/32")]}]);
    let deny = json!({"endpointSelector": of("client"), "egressDeny": [{"toCIDRSet": set(E1)}]});
    let mut c = cluster().cnp(all()).cnp(deny);
    let verdicts =
        [E2, E1, "198.51.100.1"].map(|address| c.outside(CLIENT, Egress, address, TCP, 80));
    assert_eq!(verdicts, [Denied, Allowed, Allowed]);

    let allow = json!({"endpointSelector": of("client"), "egress": [{"toCIDRSet": set(E2)}]});
    let mut c = cluster().cnp(allow.clone());
    let verdicts =
        [E1, E2, "198.51.100.1"].map(|address| c.outside(CLIENT, Egress, address, TCP, 80));
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed]);
    // Another policy's allow of the whole range allows the excepted part too.
    let mut c =
        c.cnp(json!({"endpointSelector": of("client"), "egress": [{"toCIDR": ["192.0.2.0/24"]}]}));
    assert_eq!(c.outside(CLIENT, Egress, E2, TCP, 80), Allowed);
}

#[test]
fn r63_an_exception_is_no_deny() {
    let set = |cidr: &str, except: &[&str]| json!({"endpointSelector": of("client"), "egress": [{"toCIDRSet": [{"cidr": cidr, "except": except}]}]});
    let asked = ["10.0.0.1", "10.0.1.1", "10.0.1.129", "10.2.0.1"];
    let cases = [
        ("one rule", vec![set("10.0.0.0/8", &["10.0.1.0/24"])], [true, false, false, true]),
        (
            "another without",
            vec![set("10.0.0.0/8", &["10.0.1.0/24"]), set("10.0.0.0/8", &[])],
            [true; 4],
        ),
        (
            "another with others",
            vec![
                set("10.0.0.0/8", &["10.0.1.0/24"]),
                set("10.0.0.0/8", &["10.2.0.0/16", "10.0.1.128/25"]),
            ],
            [true, true, false, true],
        ),
        (
            "a range within an exception",
            vec![set("10.0.0.0/8", &["10.0.1.0/24"]), set("10.0.1.0/24", &["10.0.1.0/25"])],
            [true, false, true, true],
        ),
        (
            "exceptions within each other",
            vec![set("10.0.0.0/8", &["10.0.0.0/16", "10.0.1.0/24"])],
            [false, false, false, true],
        ),
    ];
    for (name, rules, want) in cases {
        let mut c = rules.into_iter().fold(cluster(), crate::cluster::Cluster::cnp);
        let got = asked.map(|address| c.outside(CLIENT, Egress, address, TCP, 80) == Allowed);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn s22_s23_world() {
    let rule = |end: u16| {
        json!({"endpointSelector": of("client"), "egress": [{"toEntities": ["world"],
        "toPorts": [{"ports": [{"port": if end == 80 { "80" } else { "64" }, "endPort": end, "protocol": "TCP"}]}]}]})
    };
    for end in [80, 127] {
        let mut c = cluster().cnp(rule(end));
        let verdicts = [80, 443].map(|port| c.outside(CLIENT, Egress, E1, TCP, port));
        assert_eq!(verdicts, [Allowed, NotAllowed]);
        // The world has room for the prefixes that others name.
        let mut c =
            c.cnp(json!({"endpointSelector": of("client"), "egressDeny": [{"toCIDR": [E2]}]}));
        let verdicts = [E1, E2].map(|address| c.outside(CLIENT, Egress, address, TCP, 80));
        assert_eq!(verdicts, [Allowed, Denied]);
    }
    let mut c = cluster()
        .cnp(json!({"endpointSelector": of("client"), "egress": [{"toCIDR": ["0.0.0.0/0"]}]}));
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), Allowed);
    assert_eq!(c.verdict(CLIENT, Egress, ECHO, TCP, 80), NotAllowed);
}

#[test]
fn s50_s52_s53_s56_s74_s77_selectors() {
    let http = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
    let mut c = cluster().cnp(json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [], "toPorts": http}]}));
    assert_eq!(
        [CLIENT, WORLD].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80)),
        [NotAllowed; 2]
    );

    let own = json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [{}]}]});
    let mut c = cluster().cnp(own.clone());
    let peers = [CLIENT, ELSEWHERE, ABROAD, WORLD, NODE, INIT];
    let verdicts = peers.map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80));
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed, NotAllowed, NotAllowed, NotAllowed]);
    let mut c = cluster().ccnp(own);
    let verdicts = peers.map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80));
    assert_eq!(verdicts, [Allowed, Allowed, NotAllowed, NotAllowed, NotAllowed, NotAllowed]);

    let mut c = cluster()
        .cnp(json!({"endpointSelector": of("client"), "egress": [{"toEntities": ["cluster"]}]}));
    let verdicts =
        [ECHO, ELSEWHERE, ABROAD, NODE].map(|peer| c.verdict(CLIENT, Egress, peer, TCP, 80));
    assert_eq!(verdicts, [Allowed, Allowed, NotAllowed, Allowed]);
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), NotAllowed);

    let spec = json!({"podSelector": {"matchLabels": {"kind": "echo"}}, "ingress": [{"from":
        [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"name": "client"}}}]}]});
    let mut c = cluster().knp(spec);
    let verdicts =
        [CLIENT, ELSEWHERE, CLIENT2, WORLD].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80));
    assert_eq!(verdicts, [Allowed, Allowed, NotAllowed, NotAllowed]);
    let spec = json!({"podSelector": {"matchLabels": {"kind": "echo"}}, "ingress": [{"from":
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]}]});
    let mut c = cluster().knp(spec);
    assert_eq!(
        [CLIENT, ELSEWHERE].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80)),
        [NotAllowed, Allowed]
    );
}

#[test]
fn s55_another_namespace_is_overridden() {
    let rule = json!({"endpointSelector": {"matchLabels": {"k8s:io.kubernetes.pod.namespace": "other"}}, "ingress": [{}]});
    let policy: CiliumNetworkPolicy =
        from(json!({"metadata": {"name": "p", "namespace": "test"}, "spec": rule}));
    let notes = cilia_policy::cilium(&policy, &Config::default()).expect("a valid policy").notes;
    assert_eq!(notes[0].field, "spec.endpointSelector");
    let mut c = cluster().cnp(rule);
    assert_eq!((c.tcp(CLIENT, ECHO, 80).1, c.tcp(CLIENT, ELSEWHERE, 80).1), (NotAllowed, Allowed));
}

#[test]
fn s68_s85_addresses_are_not_pods() {
    let mut c = cluster()
        .cnp(json!({"endpointSelector": of("client"), "egress": [{"toCIDR": ["10.0.0.0/8"]}]}));
    assert_eq!(c.verdict(CLIENT, Egress, ECHO, TCP, 80), NotAllowed);
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.2/32"]}}]}]});
    let mut c = cluster().knp(spec);
    assert_eq!(c.tcp(CLIENT, ECHO, 80).1, NotAllowed);
    let verdicts =
        [E1, E2, "198.51.100.1"].map(|address| c.outside(ECHO, Ingress, address, TCP, 80));
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed]);
}

#[test]
fn s71_service_accounts() {
    let spec = json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints":
        [{"matchLabels": {"io.cilium.k8s.policy.serviceaccount": "sa"}}]}]});
    let mut c = cluster().cnp(spec);
    assert_eq!(
        [CLIENT, CLIENT2].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80)),
        [Allowed, NotAllowed]
    );
}
