//! What demands a proxy, names, authentication or a cloud: none is there, so it is closed.

use cilia_policy::Direction::{Egress, Ingress};
use cilia_policy::Verdict::{self, Allowed, Denied, NotAllowed};
use cilia_policy::l4::protocol::{ICMP, TCP, UDP};
use serde_json::{Value, json};

use crate::cluster::{CLIENT, CLIENT2, Cluster, E1, ECHO, HOST, NODE, WORLD, all, cluster, of};

/// Port 80 with demands.
fn http(demands: &Value) -> Value {
    let mut element = json!({"ports": [{"port": "80", "protocol": "TCP"}]});
    for (name, value) in demands.as_object().into_iter().flatten() {
        element[name] = value.clone();
    }
    json!([element])
}

fn get() -> Value {
    http(&json!({"rules": {"http": [{"method": "GET", "path": "/private"}]}}))
}

#[expect(clippy::needless_pass_by_value, reason = "objects are written where they are used")]
fn ingress(items: Value) -> Value {
    json!({"endpointSelector": of("echo"), "ingress": items})
}

fn passes(c: &mut Cluster, packets: &[(u32, u8, u16)]) -> Vec<bool> {
    let verdict = |&(peer, proto, port): &_| c.verdict(ECHO, Ingress, peer, proto, port) == Allowed;
    packets.iter().map(verdict).collect()
}

#[test]
fn s25_s26_s28_s29_s31_s73_s91_what_is_not_built_is_closed() {
    let dns = |port: Value, names: Value| json!({"toEntities": ["all"], "toPorts": [{"ports": [port], "rules": {"dns": names}}]});
    let udp = || json!({"port": "53", "protocol": "UDP"});
    let listener = |priority: u8| {
        http(
            &json!({"listener": {"name": "l", "priority": priority, "envoyConfig": {"name": "e"}}}),
        )
    };
    let items = [
        json!({"toFQDNs": [{"matchPattern": "*.example.org"}]}),
        json!({"toFQDNs": [{"matchName": "example.org"}], "toPorts": [{"ports": [{"port": "80"}]}]}),
        json!({"toServices": [{"k8sService": {"serviceName": "echo"}}]}),
        json!({"toGroups": [{"aws": {"region": "x"}}]}),
        dns(udp(), json!([{"matchPattern": "*"}])),
        dns(udp(), json!([{"matchName": "x.org"}])),
        json!({"toEntities": ["all"], "toPorts": get()}),
        json!({"toEntities": ["all"], "toPorts": http(&json!({"serverNames": ["a.example"]}))}),
        json!({"toEntities": ["all"], "toPorts": listener(10)}),
        json!({"toEntities": ["all"], "toPorts": listener(20)}),
        json!({"toEntities": ["all"], "authentication": {"mode": "required"}}),
    ];
    for item in items {
        let mut c = cluster().cnp(json!({"endpointSelector": of("client"), "egress": [item]}));
        let verdicts = [(TCP, 80), (TCP, 443), (UDP, 53)]
            .map(|(proto, port)| c.outside(CLIENT, Egress, E1, proto, port));
        assert!(verdicts.iter().all(|one| *one != Allowed), "{item}: {verdicts:?}");
        assert_ne!(c.verdict(CLIENT, Egress, ECHO, TCP, 80), Allowed, "{item}");
    }
    // What can't be told from everybody is denied to everybody.
    let deny = json!({"endpointSelector": of("client"), "egressDeny": [{"toGroups": [{"aws": {"region": "x"}}]}]});
    let mut c = cluster().cnp(all()).cnp(deny);
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), Denied);
}

#[test]
fn s92_what_would_be_inspected_is_closed_to_broader_rules() {
    let client = json!([of("client")]);
    let inspected = json!({"fromEndpoints": client, "toPorts": get()});
    let packets = [(CLIENT, TCP, 80), (CLIENT, TCP, 81), (CLIENT, ICMP, 8), (ECHO, TCP, 80)];
    for (name, broad, want) in [
        ("the same peers", json!({"fromEndpoints": client}), [false, true, true, false]),
        ("more of them", json!({"fromEndpoints": [{}]}), [false, true, true, true]),
        ("everybody", json!({"fromEntities": ["all"]}), [false, true, true, true]),
        (
            "a range of ports",
            json!({"fromEndpoints": client, "toPorts": [{"ports": [{"port": "1", "endPort": 100, "protocol": "TCP"}]}]}),
            [false, true, false, false],
        ),
        ("everybody's port", json!({"toPorts": http(&json!({}))}), [false, false, false, true]),
        (
            "some of them",
            json!({"fromEndpoints": [{"matchLabels": {"name": "client"}}], "toPorts": http(&json!({}))}),
            [false; 4],
        ),
    ] {
        // In one policy and in two, whichever comes first.
        let one = || cluster().cnp(ingress(json!([inspected, broad])));
        let two = || cluster().cnp(ingress(json!([broad]))).cnp(ingress(json!([inspected])));
        let turned = || cluster().cnp(ingress(json!([inspected]))).cnp(ingress(json!([broad])));
        for mut c in [one(), two(), turned()] {
            assert_eq!(passes(&mut c, &packets), want, "{name}");
            assert_eq!(passes(&mut c, &[(HOST, TCP, 80)]), [true], "{name}: the node's probes");
        }
    }
    // What demands nothing of other ports is as it was; and without a broader rule nothing passes.
    let mut c = cluster().cnp(ingress(json!([inspected])));
    assert_eq!(passes(&mut c, &packets), [false; 4]);
    // A port that everybody's requests are inspected on.
    let mut c = cluster().cnp(ingress(json!([{"toPorts": get()}, {"fromEntities": ["all"]}])));
    let everybody = [CLIENT, ECHO, NODE, WORLD, HOST].map(|peer| (peer, TCP, 80));
    assert_eq!(passes(&mut c, &everybody), [false, false, false, false, true]);
    assert_eq!(passes(&mut c, &everybody.map(|(peer, ..)| (peer, TCP, 81))), [true; 5]);
    // And a deny is one.
    let deny = json!({"endpointSelector": of("echo"), "ingressDeny": [{"fromEntities": ["host"]}]});
    assert_eq!(passes(&mut c.cnp(deny), &everybody), [false; 5]);
}

#[test]
fn s32_a_rule_for_the_same_without_a_look_lets_all_requests_pass() {
    let client = json!([of("client")]);
    let inspected = json!({"fromEndpoints": client, "toPorts": get()});
    let plain = json!({"fromEndpoints": client, "toPorts": http(&json!({}))});
    let mut c = cluster().cnp(ingress(json!([inspected]))).cnp(ingress(json!([plain])));
    let packets = [(CLIENT, TCP, 80), (CLIENT2, TCP, 80), (CLIENT, TCP, 81), (ECHO, TCP, 80)];
    assert_eq!(passes(&mut c, &packets), [true, true, false, false]);
    // Not so if the peer has to prove who it is.
    let proven = json!({"fromEndpoints": client, "toPorts": http(&json!({})), "authentication": {"mode": "required"}});
    let mut c = c.cnp(ingress(json!([proven])));
    assert_eq!(passes(&mut c, &packets), [false; 4]);
    let waived = json!({"fromEndpoints": client, "toPorts": http(&json!({})), "authentication": {"mode": "disabled"}});
    let mut c = cluster().cnp(ingress(json!([waived])));
    assert_eq!(passes(&mut c, &packets), [true, true, false, false]);
}

#[test]
fn s89_where_nothing_is_closed_other_requests_pass() {
    let soft = |demands: &Value| {
        json!({"endpointSelector": of("echo"), "enableDefaultDeny": {"ingress": false},
            "ingress": [{"fromEndpoints": [of("client")], "toPorts": http(demands)}]})
    };
    let rules = json!({"rules": {"http": [{"method": "GET", "path": "/"}]}});
    let mut c = cluster().cnp(soft(&rules));
    assert_eq!(
        passes(&mut c, &[(CLIENT, TCP, 80), (CLIENT, TCP, 81), (WORLD, TCP, 80)]),
        [true; 3]
    );
    let mut c = c.cnp(ingress(json!([{"fromEndpoints": [of("client")]}])));
    assert_eq!(passes(&mut c, &[(CLIENT, TCP, 80), (WORLD, TCP, 80)]), [true, false]);
}

#[test]
fn it_is_told_why() {
    let spec = ingress(
        json!([{"fromEndpoints": [of("client")], "toPorts": get()}, {"fromEntities": ["all"]}]),
    );
    let mut c = cluster().cnp(spec);
    let party = |identity| cilia_policy::Party {
        identity: Some(cilia_crds::NumericIdentity(identity)),
        ..cilia_policy::Party::default()
    };
    let flow = cilia_policy::Flow { from: party(CLIENT), to: party(ECHO), proto: TCP, port: 80 };
    let told = cilia_policy::explain(&mut c.repository, &flow);
    assert_eq!((told.allowed, told.ingress.verdict), (false, Verdict::Denied), "{told}");
    let text = told.to_string();
    for part in [
        "by CiliumNetworkPolicy test/p0 spec.ingress[0], which would inspect requests (not enforced yet: closed) of",
        "not by CiliumNetworkPolicy test/p0 spec.ingress[1]",
        "narrow or remove CiliumNetworkPolicy test/p0 spec.ingress[0]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let other = cilia_policy::Flow { from: party(WORLD), ..flow };
    assert!(cilia_policy::explain(&mut c.repository, &other).allowed);
    assert_eq!(c.verdict(ECHO, Ingress, CLIENT2, UDP, 80), Allowed);
    assert_eq!(c.verdict(ECHO, Ingress, CLIENT2, TCP, 80), Denied);
    let mut c =
        cluster().cnp(ingress(json!([{"fromEndpoints": [of("client")], "toPorts": get()}])));
    assert_eq!(c.verdict(ECHO, Ingress, WORLD, TCP, 80), NotAllowed);
}
