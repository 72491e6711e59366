//! What Cilium makes of rules at their edges: lists that are empty or absent, odd ports, entities one
//! by one, narrow and broad ranges that contradict each other.

use cilia_policy::Direction::{Egress, Ingress};
use cilia_policy::Verdict::{self, Allowed, Denied, NotAllowed};
use cilia_policy::l4::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
use cilia_policy::{Config, Direction};
use serde_json::{Value, json};

use crate::cluster::{
    ABROAD, CLIENT, CLIENT2, Cluster, E1, E2, ECHO, ELSEWHERE, HOST, INIT, NODE, WORLD, all,
    cluster, cluster_with, of,
};

/// A peer, a protocol, and the port or the type.
type Packet = (u32, u8, u16);

const UNMANAGED: u32 = 3;
const HEALTH: u32 = 4;
const API_SERVER: u32 = 7;
const INGRESS: u32 = 8;

/// The verdicts for TCP port 80 between `echo` and some peers, when this is the rule's only section.
fn tcp(section: &str, items: &Value, peers: &[u32]) -> Vec<Verdict> {
    of_packets(section, items, &peers.iter().map(|peer| (*peer, TCP, 80)).collect::<Vec<_>>())
}

fn of_packets(section: &str, items: &Value, packets: &[Packet]) -> Vec<Verdict> {
    asked(cluster(), section, items, packets)
}

fn asked(c: Cluster, section: &str, items: &Value, packets: &[Packet]) -> Vec<Verdict> {
    let direction = if section.starts_with("egress") { Egress } else { Ingress };
    let mut c = c.cnp(json!({"endpointSelector": of("echo"), section: items}));
    verdicts(&mut c, direction, packets)
}

fn verdicts(c: &mut Cluster, direction: Direction, packets: &[Packet]) -> Vec<Verdict> {
    let verdict = |(peer, proto, port): &Packet| c.verdict(ECHO, direction, *peer, *proto, *port);
    packets.iter().map(verdict).collect()
}

#[test]
fn empty_and_absent_lists() {
    let port = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
    let cases = [
        ("an element without ports allows nothing", json!([{"toPorts": [{}]}]), NotAllowed),
        (
            "nor does one with none",
            json!([{"fromEndpoints": [{}], "toPorts": [{"ports": []}]}]),
            NotAllowed,
        ),
        ("no element is every port", json!([{"fromEndpoints": [{}], "toPorts": []}]), Allowed),
        ("no type is every packet", json!([{"fromEndpoints": [{}], "icmps": []}]), Allowed),
        ("an empty list of types beside ports", json!([{"icmps": [], "toPorts": port}]), Allowed),
        (
            "types without one",
            json!([{"fromEndpoints": [{}], "icmps": [{"fields": []}]}]),
            NotAllowed,
        ),
        ("nobody", json!([{"fromEndpoints": []}]), NotAllowed),
        ("nobody's port", json!([{"fromEntities": [], "toPorts": port}]), NotAllowed),
        ("no range", json!([{"fromCIDR": [], "toPorts": port}]), NotAllowed),
        ("no set of ranges", json!([{"fromCIDRSet": [], "toPorts": port}]), NotAllowed),
        ("no node", json!([{"fromNodes": [], "toPorts": port}]), NotAllowed),
        (
            "an empty list beside another",
            json!([{"fromEndpoints": [{}], "fromCIDR": []}]),
            NotAllowed,
        ),
        (
            "an empty list beside everybody",
            json!([{"fromNodes": [], "fromEntities": ["all"]}]),
            NotAllowed,
        ),
        ("everybody's port", json!([{"toPorts": port}]), Allowed),
        ("an item without anything", json!([{}]), NotAllowed),
        ("requirements alone", json!([{"fromRequires": [{}]}]), NotAllowed),
        ("the entity of nobody", json!([{"fromEntities": ["none"]}]), NotAllowed),
    ];
    for (name, items, want) in cases {
        assert_eq!(tcp("ingress", &items, &[CLIENT]), [want], "{name}");
    }
    // A deny says nothing of what it doesn't name, but closes its direction.
    let denies = [
        ("an element without ports", json!([{"fromEndpoints": [{}], "toPorts": [{}]}]), Allowed),
        ("no element", json!([{"fromEndpoints": [{}], "toPorts": []}]), Denied),
        ("an item without anything", json!([{}]), Allowed),
        ("nobody", json!([{"fromEndpoints": []}]), Allowed),
        ("nobody and somebody", json!([{"fromEndpoints": [{}], "fromEntities": []}]), Allowed),
        ("everybody's port", json!([{"toPorts": port}]), Denied),
    ];
    for (name, items, want) in denies {
        let rule = json!({"endpointSelector": of("echo"), "ingressDeny": items});
        let mut c = cluster().cnp(all()).cnp(rule);
        assert_eq!(verdicts(&mut c, Ingress, &[(CLIENT, TCP, 80)]), [want], "{name}");
        let alone = if want == Denied { Denied } else { NotAllowed };
        assert_eq!(tcp("ingressDeny", &items, &[CLIENT]), [alone], "{name}, alone");
    }
    // Somebody should be told.
    for section in ["ingress", "ingressDeny"] {
        let policy = json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "p", "namespace": "test"},
            "spec": {"endpointSelector": {}, section: [{"toPorts": [{}]}]}});
        let (_, parsed) = cilia_policy::read(&policy, &Config::default()).expect("a policy");
        let notes = parsed.expect("a valid one").notes;
        assert_eq!(notes[0].field, format!("spec.{section}[0].toPorts[0].ports"));
    }
}

#[test]
fn entities_one_by_one() {
    let everybody =
        [HOST, NODE, API_SERVER, HEALTH, INIT, INGRESS, UNMANAGED, WORLD, CLIENT, ABROAD];
    let cases: &[(&str, &[u32])] = &[
        ("all", &everybody),
        ("world", &[WORLD]),
        ("host", &[HOST]),
        ("remote-node", &[NODE, API_SERVER]),
        ("kube-apiserver", &[API_SERVER]),
        ("health", &[HEALTH]),
        ("init", &[INIT]),
        ("ingress", &[INGRESS]),
        ("unmanaged", &[UNMANAGED]),
        ("none", &[]),
        ("cluster", &[HOST, NODE, API_SERVER, HEALTH, INIT, INGRESS, UNMANAGED, CLIENT]),
    ];
    for (entity, selected) in cases {
        let got = tcp("egress", &json!([{"toEntities": [entity]}]), &everybody);
        let want = everybody.map(|one| if selected.contains(&one) { Allowed } else { NotAllowed });
        assert_eq!(got, want, "{entity}");
        // By their labels they are the same, whatever the policy's namespace.
        if !matches!(*entity, "all" | "cluster") {
            let label = json!({"matchLabels": {format!("reserved:{entity}"): ""}});
            assert_eq!(
                tcp("egress", &json!([{"toEndpoints": [label]}]), &everybody),
                want,
                "{entity}"
            );
        }
    }
}

#[test]
fn odd_ports() {
    let ports = |ports: Value| json!([{"fromEndpoints": [{}], "toPorts": [{"ports": ports}]}]);
    let tcp = |port| (CLIENT, TCP, port);
    let cases: &[(&str, Value, &[Packet], &[Packet])] = &[
        (
            "an end before the beginning is one port",
            json!([{"port": "80", "endPort": 70, "protocol": "TCP"}]),
            &[tcp(80)],
            &[tcp(70), tcp(75), tcp(81)],
        ),
        (
            "a name has no end",
            json!([{"port": "http-8080", "endPort": 9000, "protocol": "TCP"}]),
            &[tcp(8080)],
            &[tcp(8081), tcp(9000)],
        ),
        (
            "0 is every port of every protocol that has ports",
            json!([{"port": "0"}]),
            &[tcp(1), (CLIENT, UDP, 53), (CLIENT, SCTP, 9)],
            &[(CLIENT, ICMP, 8), (CLIENT2 + 4, TCP, 1)],
        ),
        (
            "0 of a protocol",
            json!([{"port": "0", "protocol": "UDP"}]),
            &[(CLIENT, UDP, 53)],
            &[tcp(53), (CLIENT, ICMP, 0)],
        ),
        (
            "0 to an end",
            json!([{"port": "0", "endPort": 10, "protocol": "TCP"}]),
            &[tcp(0), tcp(10)],
            &[tcp(11)],
        ),
        (
            "a name of another protocol",
            json!([{"port": "http-8080", "protocol": "UDP"}]),
            &[],
            &[tcp(8080), (CLIENT, UDP, 8080)],
        ),
        ("a name in capitals", json!([{"port": "HTTP-8080"}]), &[tcp(8080)], &[tcp(80)]),
        ("a name that nobody has", json!([{"port": "nothing"}]), &[], &[tcp(80), tcp(0)]),
        ("in Go's notation", json!([{"port": "0x50"}]), &[tcp(80)], &[tcp(50)]),
        (
            "the last port",
            json!([{"port": "65535", "protocol": "TCP"}]),
            &[tcp(65535)],
            &[tcp(65534), tcp(0)],
        ),
    ];
    for (name, written, pass, drop) in cases {
        let got = of_packets("ingress", &ports(written.clone()), pass);
        assert!(got.iter().all(|one| *one == Allowed), "{name}: {got:?} of {pass:?}");
        let got = of_packets("ingress", &ports(written.clone()), drop);
        assert!(got.iter().all(|one| *one == NotAllowed), "{name}: {got:?} of {drop:?}");
    }
    let types = |fields: Value| json!([{"icmps": [{"fields": fields}]}]);
    let packets = [(CLIENT, ICMP, 8), (CLIENT, ICMP, 0), (CLIENT, ICMPV6, 128), (CLIENT, TCP, 8)];
    for (fields, want) in [
        (json!([{"type": "EchoRequest"}]), [Allowed, NotAllowed, NotAllowed, NotAllowed]),
        (json!([{"type": "8", "family": "IPv4"}]), [Allowed, NotAllowed, NotAllowed, NotAllowed]),
        (
            json!([{"type": "EchoRequest", "family": "IPv6"}]),
            [NotAllowed, NotAllowed, Allowed, NotAllowed],
        ),
        (json!([{"type": 0}, {"type": "Echo"}]), [Allowed, Allowed, NotAllowed, NotAllowed]),
    ] {
        assert_eq!(of_packets("ingress", &types(fields.clone()), &packets), want, "{fields}");
    }
}

#[test]
fn denies_of_ranges_beat_allows_of_any_length() {
    let rule = |allow: Value, deny: Value| {
        json!({"endpointSelector": of("echo"),
        "egress": [{"toCIDRSet": [allow]}], "egressDeny": [{"toCIDRSet": [deny]}]})
    };
    let (narrow, broad) = (json!({"cidr": "192.0.2.1/32"}), json!({"cidr": "192.0.2.0/24"}));
    let but = json!({"cidr": "192.0.2.0/24", "except": ["192.0.2.2/32"]});
    let world = json!({"cidr": "0.0.0.0/0"});
    let cases = [
        ("broad over narrow", &narrow, &broad, [Denied, Denied]),
        ("narrow inside of broad", &broad, &narrow, [Denied, Allowed]),
        ("the same", &broad, &broad, [Denied, Denied]),
        ("all but one", &world, &but, [Denied, Allowed]),
        ("an exception is no allow", &narrow, &but, [Denied, NotAllowed]),
        ("an exception is no deny", &but, &narrow, [Denied, NotAllowed]),
        ("all of a family", &broad, &world, [Denied, Denied]),
    ];
    for (name, allow, deny, want) in cases {
        let mut c = cluster().cnp(rule(allow.clone(), deny.clone()));
        let got = [E1, E2].map(|address| c.outside(ECHO, Egress, address, TCP, 80));
        assert_eq!(got, want, "{name}");
        assert_eq!(c.verdict(ECHO, Egress, CLIENT, TCP, 80), NotAllowed, "{name}: never pods");
        assert_eq!(c.verdict(ECHO, Egress, NODE, TCP, 80), NotAllowed, "{name}: never nodes");
        assert_eq!(
            c.verdict(ECHO, Egress, HOST, TCP, 80),
            NotAllowed,
            "{name}: never the own node"
        );
    }
    // The world as an entity has every range in it.
    let deny = json!({"endpointSelector": of("echo"), "egress": [{"toCIDR": ["192.0.2.1"]}],
        "egressDeny": [{"toEntities": ["world"], "toPorts": [{"ports": [{"port": "80"}]}]}]});
    let mut c = cluster().cnp(deny);
    let got = [80, 81].map(|port| c.outside(ECHO, Egress, E1, TCP, port));
    assert_eq!(got, [Denied, Allowed]);
}

#[test]
fn namespaces_of_peers_and_subjects() {
    let labels = "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";
    let by = |key: &str, operator: &str, values: Value| {
        json!([{"fromEndpoints": [{"matchExpressions": [
        {"key": key, "operator": operator, "values": values}]}]}])
    };
    let of_label =
        |key: &str, value: &str| json!([{"fromEndpoints": [{"matchLabels": {key: value}}]}]);
    let name = "io.kubernetes.pod.namespace";
    let cases = [
        (
            "its own without a word",
            json!([{"fromEndpoints": [{}]}]),
            [Allowed, NotAllowed, NotAllowed],
        ),
        ("another by name", of_label(name, "other"), [NotAllowed, Allowed, NotAllowed]),
        (
            "another by name and source",
            of_label(&format!("k8s:{name}"), "other"),
            [NotAllowed, Allowed, NotAllowed],
        ),
        ("another by its labels", of_label(labels, "other"), [NotAllowed, Allowed, NotAllowed]),
        ("any", by(name, "Exists", json!([])), [Allowed, Allowed, NotAllowed]),
        ("all but one", by(name, "NotIn", json!(["test"])), [NotAllowed, Allowed, NotAllowed]),
        (
            "some",
            by(&format!("any:{name}"), "In", json!(["test", "other"])),
            [Allowed, Allowed, NotAllowed],
        ),
        ("any source", of_label("any:kind", "client"), [Allowed, NotAllowed, NotAllowed]),
        ("another source", of_label("container:kind", "client"), [NotAllowed; 3]),
        (
            "another cluster",
            json!([{"fromEndpoints": [{"matchLabels": {"io.cilium.k8s.policy.cluster": "away"}}]}]),
            [NotAllowed, NotAllowed, Allowed],
        ),
    ];
    for (name, items, want) in cases {
        assert_eq!(tcp("ingress", &items, &[CLIENT, ELSEWHERE, ABROAD]), want, "{name}");
    }
    // Cluster-wide policies concern whom their labels say, in every namespace.
    let subject = json!({"matchLabels": {format!("k8s:{labels}"): "other"}});
    let mut c =
        cluster().ccnp(json!({"endpointSelector": subject, "ingress": [{}], "egress": [{}]}));
    let of = [ELSEWHERE, CLIENT].map(|one| c.verdict(one, Ingress, ECHO, TCP, 80));
    assert_eq!(of, [NotAllowed, Allowed]);
    let mut c = cluster().ccnp(json!({"endpointSelector": {}, "ingress": [{"fromEndpoints": [
        {"matchLabels": {"kind": "client"}}]}]}));
    assert_eq!(
        verdicts(&mut c, Ingress, &[(CLIENT, TCP, 1), (ELSEWHERE, TCP, 1), (ECHO, TCP, 1)]),
        [Allowed, Allowed, NotAllowed]
    );
}

#[test]
fn several_rules_in_one_policy() {
    let item = |kind: &str, port: &str| {
        json!({"endpointSelector": of("echo"), "ingress": [
        {"fromEndpoints": [of(kind)], "toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}]}]})
    };
    let object =
        json!({"spec": item("client", "80"), "specs": [item("client", "81"), item("echo", "82")]});
    let mut c = cluster().with("cnp", "p", object);
    let packets = [(CLIENT, TCP, 80), (CLIENT, TCP, 81), (CLIENT, TCP, 82), (ECHO, TCP, 82)];
    assert_eq!(verdicts(&mut c, Ingress, &packets), [Allowed, Allowed, NotAllowed, Allowed]);
    // Without policies that let the rest pass, every direction with items is closed.
    let open = json!({"endpointSelector": of("echo"), "enableDefaultDeny": {"ingress": false, "egress": true},
        "ingress": [{"fromEndpoints": [of("client")]}]});
    for (non_default_deny, want) in [(true, Allowed), (false, NotAllowed)] {
        let config = Config { non_default_deny, ..Config::default() };
        let mut c = cluster_with(config).cnp(open.clone());
        let got = [Ingress, Egress].map(|direction| c.verdict(ECHO, direction, ECHO, TCP, 80));
        assert_eq!(got, [want, Allowed]);
    }
}

#[test]
fn kubernetes_lists() {
    let echo = || json!({"matchLabels": {"kind": "echo"}});
    let cases = [
        ("an empty rule is everybody", json!([{}]), [Allowed, Allowed, Allowed]),
        ("no peer is everybody", json!([{"from": []}]), [Allowed, Allowed, Allowed]),
        (
            "no port is every port",
            json!([{"from": [{"podSelector": {}}], "ports": []}]),
            [Allowed, NotAllowed, NotAllowed],
        ),
        (
            "all pods",
            json!([{"from": [{"namespaceSelector": {}}]}]),
            [Allowed, Allowed, NotAllowed],
        ),
        (
            "both selectors",
            json!([{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}, "podSelector": {"matchLabels": {"kind": "client"}}}]}]),
            [NotAllowed, Allowed, NotAllowed],
        ),
        ("a protocol without a port", json!([{"ports": [{"protocol": "UDP"}]}]), [NotAllowed; 3]),
        ("TCP without a word", json!([{"ports": [{"port": 80}]}]), [Allowed; 3]),
        ("no rule", json!([]), [NotAllowed; 3]),
    ];
    for (name, ingress, want) in cases {
        let mut c = cluster().knp(json!({"podSelector": echo(), "ingress": ingress}));
        let got =
            verdicts(&mut c, Ingress, &[(CLIENT, TCP, 80), (ELSEWHERE, TCP, 80), (WORLD, TCP, 80)]);
        assert_eq!(got, want, "{name}");
        assert_eq!(
            c.verdict(ECHO, Egress, CLIENT, TCP, 80),
            Allowed,
            "{name}: the other direction"
        );
    }
}
