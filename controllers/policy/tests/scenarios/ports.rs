//! Which packets ports, their names and types of ICMP mean, and with which entries.

use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_policy::Direction::{Egress, Ingress};
use cilia_policy::Verdict::{Allowed, Denied, NotAllowed};
use cilia_policy::l4::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
use serde_json::{Value, json};

use crate::cluster::{CLIENT, CLIENT2, Cluster, ECHO, HOST, WORLD, all, cluster, of};

#[test]
fn s34_s35_s37_s38_maps() {
    let peers = |names: &[&str]| {
        json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints":
        names.iter().map(|name| json!({"matchLabels": {*name: "client"}})).collect::<Vec<_>>()}]})
    };
    let mut c = cluster().cnp(peers(&["name", "other"]));
    let mut keys: Vec<_> =
        c.map(ECHO).entries().filter(|(key, _)| !key.egress).map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(
        keys.iter().map(|key| (key.identity, key.proto, key.port_prefix)).collect::<Vec<_>>(),
        [(HOST, 0, 0), (CLIENT, 0, 0), (CLIENT2, 0, 0)]
    );

    let http = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
    let both = json!({"endpointSelector": of("echo"), "ingress": [
        {"fromEndpoints": [{"matchLabels": {"name": "client"}}], "toPorts": http}, {"toPorts": http}]});
    let mut c = cluster().cnp(both);
    assert_eq!(
        [CLIENT, CLIENT2, WORLD].map(|peer| c.verdict(ECHO, Ingress, peer, TCP, 80)),
        [Allowed; 3]
    );
    assert_eq!(
        c.map(ECHO).entries().filter(|(key, _)| !key.egress && key.identity != HOST).count(),
        1
    );

    let mixed = json!({"endpointSelector": of("echo"), "ingressDeny": [{"toPorts": http}],
        "ingress": [{"fromEndpoints": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(mixed);
    let verdicts = [(CLIENT, 80), (CLIENT, 81), (CLIENT2, 81)]
        .map(|(peer, port)| c.verdict(ECHO, Ingress, peer, TCP, port));
    assert_eq!(verdicts, [Denied, Allowed, NotAllowed]);

    let deny = json!({"endpointSelector": of("echo"), "ingressDeny": [
        {"fromEndpoints": [{"matchLabels": {"name": "client"}}], "toPorts": http}]});
    let mut c = cluster().cnp(all()).cnp(deny);
    let verdicts = [(CLIENT, 80), (CLIENT, 81), (CLIENT2, 80)]
        .map(|(peer, port)| c.verdict(ECHO, Ingress, peer, TCP, port));
    assert_eq!(verdicts, [Denied, Allowed, Allowed]);
}

#[test]
fn s79_s82_any_protocol_and_ranges() {
    let rule = |port: Value| json!({"endpointSelector": of("echo"), "ingress": [{"toPorts": [{"ports": [port]}]}]});
    let mut c = cluster().cnp(rule(json!({"port": "53", "protocol": "ANY"})));
    let verdicts = [(UDP, 53), (TCP, 53), (SCTP, 53), (ICMP, 53)]
        .map(|(proto, port)| c.verdict(ECHO, Ingress, CLIENT, proto, port));
    assert_eq!(verdicts, [Allowed, Allowed, Allowed, NotAllowed]);
    let entries = |c: &mut Cluster| {
        c.map(ECHO).entries().filter(|(key, _)| !key.egress && key.identity != HOST).count()
    };
    let mut range = cluster().cnp(rule(json!({"port": "1", "endPort": 65535, "protocol": "TCP"})));
    let mut zero = cluster().cnp(rule(json!({"port": "0", "protocol": "TCP"})));
    for port in [1, 80, 65535] {
        assert_eq!(range.verdict(ECHO, Ingress, CLIENT, TCP, port), Allowed);
        assert_eq!(zero.verdict(ECHO, Ingress, CLIENT, TCP, port), Allowed);
    }
    assert_eq!((entries(&mut range), entries(&mut zero)), (16, 1));
}

#[test]
fn s83_a_gone_identity_takes_its_keys() {
    let mut c = cluster()
        .cnp(json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [of("client")]},
        {"toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]}]}));
    assert_eq!(c.tcp(CLIENT, ECHO, 81).1, Allowed);
    let before = c.map(ECHO);
    c.repository.remove_identity(NumericIdentity(CLIENT));
    let after = c.map(ECHO);
    let difference = after.difference(&before);
    assert_eq!(difference.remove.iter().map(|key| key.identity).collect::<Vec<_>>(), [CLIENT]);
    assert!(difference.write.is_empty());
    assert_eq!(after.verdict(Ingress, CLIENT, TCP, 80), Allowed);
}

#[test]
fn a_type_of_icmp_is_that_type_alone() {
    // Type 0 is the echo reply, and not any.
    let ping = json!({"endpointSelector": of("echo"), "ingress": [{"icmps": [{"fields": [{"type": 0}, {"type": "EchoReply", "family": "IPv6"}]}]}]});
    let mut c = cluster().cnp(ping);
    let verdicts = [(ICMP, 0), (ICMP, 8), (ICMP, 13), (ICMPV6, 129), (ICMPV6, 0)]
        .map(|(proto, kind)| c.verdict(ECHO, Ingress, CLIENT, proto, kind));
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed, Allowed, NotAllowed]);
    // A rule about ports lets no ping pass, one about peers alone does.
    let tcp = json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [of("client")], "toPorts": [{"ports": [{"port": "0", "protocol": "TCP"}]}]}]});
    let mut c = cluster().cnp(tcp);
    assert_eq!(c.verdict(ECHO, Ingress, CLIENT, ICMP, 8), NotAllowed);
    let all =
        json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [of("client")]}]});
    let mut c = cluster().cnp(all);
    assert_eq!(c.verdict(ECHO, Ingress, CLIENT, ICMP, 8), Allowed);
}

#[test]
fn a_name_means_what_the_receiver_says() {
    let mut ports = cilia_policy::ClusterPorts::default();
    for (identity, port) in [(CLIENT, 8000), (CLIENT2, 8080), (CLIENT2, 8081)] {
        ports.insert(NumericIdentity(identity), ("http".into(), TCP), port);
    }
    let ports = Arc::new(ports);
    let to = json!([{"ports": [{"port": "http", "protocol": "TCP"}]}]);
    let with_peers =
        json!({"endpointSelector": of("echo"), "egress": [{"toEndpoints": [{}], "toPorts": to}]});
    let without = json!({"endpointSelector": of("echo"), "egress": [{"toPorts": to}]});
    for spec in [with_peers, without] {
        let mut c = cluster().cnp(spec);
        c.repository.set_named_ports(ports.clone());
        let to = |c: &mut Cluster, peer| {
            [8000, 8080, 8081].map(|port| c.verdict(ECHO, Egress, peer, TCP, port) == Allowed)
        };
        assert_eq!(to(&mut c, CLIENT), [true, false, false]);
        assert_eq!(to(&mut c, CLIENT2), [false, true, true], "two pods of one identity");
        assert_eq!(to(&mut c, ECHO), [false; 3], "who has no such name");
        // Lists of ports change, and identities come and go.
        c.repository.remove_identity(NumericIdentity(CLIENT));
        assert_eq!(to(&mut c, CLIENT), [false; 3]);
        c.repository.set_named_ports(Arc::default());
        assert_eq!(to(&mut c, CLIENT2), [false; 3]);
    }
}

#[test]
fn entries_know_their_rules() {
    let spec = json!({"endpointSelector": of("echo"), "log": {"value": "shop-in"}, "ingress": [
        {"fromEndpoints": [of("client")]}, {"fromEndpoints": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(spec);
    let map = c.map(ECHO);
    let (_, cookie) = map.decide(Ingress, CLIENT, None, TCP, 80);
    let origins = c.repository.origins(cookie.expect("an entry")).to_vec();
    let shown: Vec<String> =
        origins.iter().map(|one| format!("{} {} {:?}", one.policy, one.field, one.log)).collect();
    assert_eq!(
        shown,
        [
            "CiliumNetworkPolicy test/p0 spec.ingress[0] Some(\"shop-in\")",
            "CiliumNetworkPolicy test/p0 spec.ingress[1] Some(\"shop-in\")"
        ]
    );
    let (_, cookie) = map.decide(Ingress, CLIENT2, None, TCP, 80);
    assert_eq!(c.repository.origins(cookie.expect("an entry")).len(), 1);
    // What no rule says has no origin.
    assert_eq!(map.decide(Ingress, HOST, None, TCP, 80), (Allowed, Some(0)));
    assert_eq!(map.decide(Ingress, WORLD, None, TCP, 80), (NotAllowed, None));
}
