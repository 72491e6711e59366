//! `ClusterNetworkPolicy`: tiers, priorities, passes, and address ranges that mean pods; along the
//! lines of the conformance tests of Kubernetes' network policy API. And `ipBlock` on pods.

#![expect(clippy::needless_pass_by_value, reason = "objects are written where they are used")]

use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_policy::l4::protocol::{SCTP, TCP, UDP};
use cilia_policy::{Config, Direction, NamedPorts, Repository, Verdict, read};
use serde_json::{Value, json};

use Direction::{Egress, Ingress};

const HOUSES: [(u32, &str); 4] = [
    (GRYFFINDOR, "gryffindor"),
    (HUFFLEPUFF, "hufflepuff"),
    (RAVENCLAW, "ravenclaw"),
    (SLYTHERIN, "slytherin"),
];
const GRYFFINDOR: u32 = 1001;
const HUFFLEPUFF: u32 = 1002;
const RAVENCLAW: u32 = 1003;
const SLYTHERIN: u32 = 1004;

struct School(Repository);

fn school() -> School {
    let mut repository = Repository::new(Config::default());
    for (number, house) in HOUSES {
        let mut labels = Labels::new();
        labels.insert("k8s", "io.kubernetes.pod.namespace", &format!("conformance-{house}"));
        labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
        labels.insert("k8s", "io.cilium.k8s.namespace.labels.conformance-house", house);
        labels.insert("k8s", "conformance-house", house);
        repository.set_identity(NumericIdentity(number), Arc::new(labels));
    }
    School(repository)
}

fn house(name: &str) -> Value {
    json!({"namespaces": {"matchLabels": {"conformance-house": name}}})
}

impl School {
    fn with(mut self, object: Value) -> Self {
        self.set(object);
        self
    }

    fn set(&mut self, object: Value) {
        let (id, parsed) = read(&object, &Config::default()).expect("a policy");
        self.0.set_policy(id, parsed.expect("a valid policy").rules);
    }

    /// Whether a packet passes the policy of one side; the other has this address.
    fn passes(
        &mut self,
        subject: u32,
        direction: Direction,
        peer: u32,
        address: &str,
        l4: (u8, u16),
    ) -> bool {
        let map = self.0.policy(NumericIdentity(subject), &NamedPorts::new()).expect("known");
        let block = self.0.block(address.parse().expect("an address"));
        let block = block.map(|block| block.0);
        map.decide(direction, peer, block, l4.0, l4.1).0 == Verdict::Allowed
    }

    fn tcp(&mut self, subject: u32, direction: Direction, peer: u32) -> bool {
        self.passes(subject, direction, peer, "10.0.0.1", (TCP, 80))
    }

    fn outside(&mut self, subject: u32, address: &str) -> bool {
        self.0.policy(NumericIdentity(subject), &NamedPorts::new());
        let peer = self.0.outside(address.parse().expect("an address")).0;
        self.passes(subject, Egress, peer, address, (TCP, 80))
    }
}

fn policy(name: &str, tier: &str, priority: i32, subject: &str, rules: Value) -> Value {
    let mut spec = json!({"tier": tier, "priority": priority, "subject": house(subject)});
    spec.as_object_mut().expect("an object").extend(rules.as_object().expect("rules").clone());
    json!({"kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": spec})
}

fn rule(action: &str, side: &str, peers: Value) -> Value {
    json!({"action": action, side: [peers]})
}

#[test]
fn the_first_rule_that_fits_counts() {
    let ports = json!([{"tcp": {"destinationPort": {"number": 80}}}, {"sctp": {"destinationPort": {"range": {"start": 9000, "end": 9003}}}}]);
    let rules = json!({"ingress": [
        {"action": "Accept", "from": [house("ravenclaw")], "protocols": ports},
        rule("Deny", "from", house("ravenclaw")),
        rule("Pass", "from", house("hufflepuff")),
        rule("Deny", "from", json!({"namespaces": {}})),
    ]});
    let mut s = school().with(policy("a", "Admin", 10, "gryffindor", rules));
    let mut ask = |peer, l4| s.passes(GRYFFINDOR, Ingress, peer, "10.0.0.1", l4);
    assert_eq!(
        [
            ask(RAVENCLAW, (TCP, 80)),
            ask(RAVENCLAW, (SCTP, 9003)),
            ask(RAVENCLAW, (SCTP, 9004)),
            ask(RAVENCLAW, (UDP, 80))
        ],
        [true, true, false, false]
    );
    assert_eq!([ask(HUFFLEPUFF, (TCP, 80)), ask(SLYTHERIN, (TCP, 80))], [true, false]);
    // The host is no pod, and other directions and subjects are left alone.
    assert_eq!([ask(1, (TCP, 80)), ask(6, (TCP, 80)), ask(2, (TCP, 80))], [true; 3]);
    assert!(s.tcp(GRYFFINDOR, Egress, SLYTHERIN) && s.tcp(RAVENCLAW, Ingress, SLYTHERIN));
}

#[test]
fn tiers_and_priorities() {
    let deny = || json!({"ingress": [rule("Deny", "from", json!({"namespaces": {}}))]});
    let accept = |name: &str| json!({"ingress": [rule("Accept", "from", house(name))]});
    let pass = |name: &str| json!({"ingress": [rule("Pass", "from", house(name))]});
    let network = json!({"kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "conformance-gryffindor"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"conformance-house": "ravenclaw"}}}]}]}});
    let mut s = school().with(policy("late", "Admin", 50, "gryffindor", deny()));
    let all = |s: &mut School| {
        [HUFFLEPUFF, RAVENCLAW, SLYTHERIN].map(|peer| s.tcp(GRYFFINDOR, Ingress, peer))
    };
    assert_eq!(all(&mut s), [false; 3]);
    s.set(policy("early", "Admin", 10, "gryffindor", accept("slytherin")));
    assert_eq!(all(&mut s), [false, false, true]);
    s.set(policy("early", "Admin", 60, "gryffindor", accept("slytherin")));
    assert_eq!(all(&mut s), [false; 3], "the lowest value comes first");
    // What is passed on is judged by NetworkPolicy, then by the baseline.
    s.set(policy("early", "Admin", 10, "gryffindor", pass("ravenclaw")));
    assert_eq!(all(&mut s), [false, true, false]);
    s.set(policy("default", "Baseline", 10, "gryffindor", deny()));
    assert_eq!(all(&mut s), [false; 3]);
    s.set(network);
    assert_eq!(all(&mut s), [false, true, false], "NetworkPolicy comes before the baseline");
    s.set(policy("early", "Admin", 10, "gryffindor", pass("slytherin")));
    assert_eq!(all(&mut s), [false; 3], "NetworkPolicy isolates");
}

#[test]
fn networks_mean_pods_too() {
    let deny = rule("Deny", "to", json!({"networks": ["0.0.0.0/0", "::/0"]}));
    let accept = rule("Accept", "to", house("slytherin"));
    for tier in ["Admin", "Baseline"] {
        let mut s = school().with(policy(
            "default",
            tier,
            10,
            "gryffindor",
            json!({"egress": [accept, deny]}),
        ));
        assert_eq!(
            [HUFFLEPUFF, SLYTHERIN].map(|peer| s.tcp(GRYFFINDOR, Egress, peer)),
            [false, true]
        );
        assert!(!s.outside(GRYFFINDOR, "192.0.2.1"));
        // Single addresses of pods: others of the same identity stay cut off.
        let some = rule("Accept", "to", json!({"networks": ["10.0.0.7/32", "192.0.2.0/24"]}));
        s.set(policy("default", tier, 10, "gryffindor", json!({"egress": [some, accept, deny]})));
        let mut at = |peer, address| s.passes(GRYFFINDOR, Egress, peer, address, (TCP, 80));
        assert_eq!(
            [at(HUFFLEPUFF, "10.0.0.7"), at(HUFFLEPUFF, "10.0.0.8"), at(SLYTHERIN, "10.0.0.8")],
            [true, false, true]
        );
        assert_eq!(
            [s.outside(GRYFFINDOR, "192.0.2.1"), s.outside(GRYFFINDOR, "198.51.100.1")],
            [true, false]
        );
        // And the other way round.
        let some = rule("Deny", "to", json!({"networks": ["10.0.0.7/32"]}));
        let open = rule("Accept", "to", json!({"namespaces": {}}));
        s.set(policy("default", tier, 10, "gryffindor", json!({"egress": [some, open, deny]})));
        let mut at = |peer, address| s.passes(GRYFFINDOR, Egress, peer, address, (TCP, 80));
        assert_eq!([at(HUFFLEPUFF, "10.0.0.7"), at(HUFFLEPUFF, "10.0.0.8")], [false, true]);
    }
}

#[test]
fn whom_a_pass_exempts_is_not_asked_about_networks() {
    // What the API advises against a deny of networks that would mean pods too.
    let pass = rule("Pass", "to", json!({"namespaces": {}}));
    let deny = rule("Deny", "to", json!({"networks": ["0.0.0.0/0"]}));
    let mut s =
        school().with(policy("admin", "Admin", 10, "gryffindor", json!({"egress": [pass, deny]})));
    assert!(s.tcp(GRYFFINDOR, Egress, HUFFLEPUFF));
    assert!(!s.outside(GRYFFINDOR, "192.0.2.1"));
    // The next tier has the say, about pods by their labels as well as by their addresses.
    let accept = rule("Accept", "to", house("slytherin"));
    let close = rule("Deny", "to", json!({"namespaces": {}}));
    s.set(policy("default", "Baseline", 10, "gryffindor", json!({"egress": [accept, close]})));
    assert_eq!([HUFFLEPUFF, SLYTHERIN].map(|peer| s.tcp(GRYFFINDOR, Egress, peer)), [false, true]);
    assert!(!s.outside(GRYFFINDOR, "192.0.2.1"));
}

#[test]
fn rules_about_pods_and_networks_may_alternate() {
    let networks = |prefix: &str| json!({"networks": [prefix]});
    let rules = json!({"egress": [
        rule("Accept", "to", networks("10.0.0.16/28")),
        rule("Deny", "to", house("slytherin")),
        rule("Accept", "to", networks("10.0.0.0/24")),
        rule("Accept", "to", house("ravenclaw")),
        rule("Deny", "to", networks("0.0.0.0/0")),
    ]});
    let mut s = school().with(policy("a", "Admin", 10, "gryffindor", rules));
    let mut at = |peer| {
        ["10.0.0.17", "10.0.0.1", "10.0.1.1"]
            .map(|address| s.passes(GRYFFINDOR, Egress, peer, address, (TCP, 80)))
    };
    assert_eq!(at(SLYTHERIN), [true, false, false]);
    assert_eq!(at(HUFFLEPUFF), [true, true, false]);
    assert_eq!(at(RAVENCLAW), [true; 3]);
    let at = ["10.0.0.17", "10.0.0.1", "10.0.1.1"].map(|address| s.outside(GRYFFINDOR, address));
    assert_eq!(at, [true, true, false]);
}

#[test]
fn who_is_passed_on_is_asked_about_networks_of_later_tiers() {
    let pass = rule("Pass", "to", house("slytherin"));
    let open = rule("Accept", "to", json!({"networks": ["0.0.0.0/0"]}));
    let mut s =
        school().with(policy("a", "Admin", 10, "gryffindor", json!({"egress": [pass, open]})));
    let some = rule("Deny", "to", json!({"networks": ["10.0.0.0/24"]}));
    s.set(policy("default", "Baseline", 10, "gryffindor", json!({"egress": [some]})));
    let at = |s: &mut School, peer| {
        ["10.0.0.1", "10.0.1.1"].map(|to| s.passes(GRYFFINDOR, Egress, peer, to, (TCP, 80)))
    };
    assert_eq!(at(&mut s, HUFFLEPUFF), [true; 2], "accepted before");
    assert_eq!(at(&mut s, SLYTHERIN), [false, true]);
    let network = json!({"kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "conformance-gryffindor"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]}]}});
    s.set(network);
    assert_eq!(at(&mut s, HUFFLEPUFF), [true; 2], "accepted before");
    assert_eq!(at(&mut s, SLYTHERIN), [true, false], "the block, and nothing else");
}

#[test]
fn whom_a_pass_of_networks_means_is_asked_again_by_his_labels() {
    let rules = json!({"egress": [
        rule("Pass", "to", json!({"networks": ["10.0.0.0/29"]})),
        rule("Deny", "to", json!({"networks": ["0.0.0.0/0"]})),
    ]});
    let mut s = school().with(policy("a", "Admin", 10, "gryffindor", rules));
    let rules = json!({"egress": [
        rule("Accept", "to", house("slytherin")), rule("Deny", "to", json!({"namespaces": {}})),
    ]});
    s.set(policy("default", "Baseline", 10, "gryffindor", rules));
    let mut at =
        |peer| ["10.0.0.1", "10.0.0.9"].map(|to| s.passes(GRYFFINDOR, Egress, peer, to, (TCP, 80)));
    assert_eq!(at(SLYTHERIN), [true, false]);
    assert_eq!(at(HUFFLEPUFF), [false; 2]);
    assert_eq!(["10.0.0.1", "10.0.0.9"].map(|to| s.outside(GRYFFINDOR, to)), [true, false]);
}

#[test]
fn what_cannot_be_read_fails_closed() {
    let domain = json!({"domainNames": ["example.org"]});
    let later = json!({"ofALaterVersion": {}});
    for peer in [domain, later] {
        let accept = json!({"egress": [rule("Accept", "to", peer.clone()), rule("Deny", "to", json!({"namespaces": {}}))]});
        let mut s = school().with(policy("a", "Admin", 10, "gryffindor", accept));
        assert!(!s.tcp(GRYFFINDOR, Egress, SLYTHERIN) && s.outside(GRYFFINDOR, "192.0.2.1"));
        for action in ["Deny", "Pass"] {
            let all = json!({"egress": [rule(action, "to", peer.clone())]});
            let mut s = school().with(policy("a", "Admin", 10, "gryffindor", all));
            assert!(!s.tcp(GRYFFINDOR, Egress, SLYTHERIN) && !s.outside(GRYFFINDOR, "192.0.2.1"));
        }
    }
    // Of a later version: the whole rule accepts nobody, whatever else it says.
    let known = json!({"namespaces": {}});
    let later = [
        json!({"action": "Accept", "to": [known, {"ofALaterVersion": {}}]}),
        json!({"action": "Accept", "to": [known], "protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"icmp": {}}]}),
        json!({"action": "Accept", "to": [known], "protocols": [{"tcp": {"flags": "syn"}}]}),
        json!({"action": "Accept", "to": [known], "protocols": [{"tcp": {"destinationPort": {"set": "x"}}}]}),
    ];
    for mut rule in later {
        let rules = json!({"egress": [rule, {"action": "Deny", "to": [known]}]});
        let mut s = school().with(policy("a", "Admin", 10, "gryffindor", rules));
        assert!(!s.tcp(GRYFFINDOR, Egress, SLYTHERIN), "{rule}");
        rule["action"] = "Pass".into();
        let rules = json!({"egress": [rule]});
        let mut s = school().with(policy("a", "Admin", 10, "gryffindor", rules));
        assert!(!s.tcp(GRYFFINDOR, Egress, SLYTHERIN) && !s.outside(GRYFFINDOR, "192.0.2.1"));
    }
    let faults = [
        (json!({"tier": "Middle"}), "spec.tier: \"Middle\" is not one of Admin, Baseline"),
        (json!({"priority": 1001}), "spec.priority: 1001 is not between 0 and 1000"),
        (json!({"subject": {}}), "spec.subject: exactly one of namespaces and pods is required"),
        (
            json!({"ingress": [{"action": "Allow", "from": [house("x")]}]}),
            "spec.ingress[0].action: \"Allow\" is not one of",
        ),
        (
            json!({"ingress": [{"action": "Deny", "from": []}]}),
            "spec.ingress[0].from: 0 peers are given",
        ),
        (
            json!({"egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/40"]}]}]}),
            "spec.egress[0].to[0].networks[0]: \"10.0.0.0/40\"",
        ),
        (
            json!({"egress": [{"action": "Deny", "to": [house("x")], "protocols": [{"tcp": {"destinationPort": {"range": {"start": 9, "end": 9}}}}]}]}),
            "spec.egress[0].protocols[0].tcp.destinationPort.range: 9 is not less than 9",
        ),
        (
            json!({"egress": [{"action": "Deny", "to": [house("x"), {"networks": ["10.0.0.0/8"]}], "protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"destinationNamedPort": "http"}]}]}),
            "spec.egress[0].protocols[1].destinationNamedPort: it can't be combined with networks",
        ),
    ];
    for (change, want) in faults {
        let mut object = policy("a", "Admin", 10, "gryffindor", json!({}));
        object["spec"]
            .as_object_mut()
            .expect("an object")
            .extend(change.as_object().expect("one").clone());
        let fault = read(&object, &Config::default()).expect("a policy").1.expect_err(want);
        assert!(fault.starts_with(want), "{fault}");
    }
}

#[test]
fn an_ip_block_means_pods_with_such_addresses() {
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let network = |name: &str, peers: Value| {
        json!({"kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "conformance-gryffindor"},
            "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": peers}]}})
    };
    let mut s = school().with(network("one", json!([block("10.0.0.0/24", &["10.0.0.8/29"])])));
    let at =
        |s: &mut School, address: &str| s.passes(GRYFFINDOR, Egress, RAVENCLAW, address, (TCP, 80));
    assert_eq!(
        ["10.0.0.1", "10.0.0.9", "10.0.1.1"].map(|one| at(&mut s, one)),
        [true, false, false]
    );
    // Peers of one rule may overlap.
    s.set(network(
        "one",
        json!([block("10.0.0.0/24", &["10.0.0.8/29"]), block("10.0.0.8/30", &["10.0.0.9/32"])]),
    ));
    let verdicts = ["10.0.0.1", "10.0.0.8", "10.0.0.9", "10.0.0.12"].map(|one| at(&mut s, one));
    assert_eq!(verdicts, [true, true, false, false]);
    // Outside they mean the same.
    let outside = ["10.0.0.1", "10.0.0.8", "10.0.0.9"].map(|one| s.outside(GRYFFINDOR, one));
    assert_eq!(outside, [true, true, false]);
    // All of a family that the cluster doesn't have is nobody.
    let mut v6 = school().with(network("one", json!([block("::/0", &[])])));
    assert!(!at(&mut v6, "10.0.0.1") && !v6.outside(GRYFFINDOR, "192.0.2.1"));
    // CIDR rules of Cilium never mean pods, and a deny of Cilium's beats the block.
    let cilium = json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "c", "namespace": "conformance-gryffindor"}, "spec": {
        "endpointSelector": {}, "egress": [{"toCIDR": ["10.0.1.0/24"]}],
        "egressDeny": [{"toEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": "conformance-ravenclaw"}}], "toPorts": [{"ports": [{"port": "81", "protocol": "TCP"}]}]}]}});
    s.set(cilium);
    assert_eq!(["10.0.0.1", "10.0.1.1"].map(|one| at(&mut s, one)), [true, false]);
    assert!(!s.passes(GRYFFINDOR, Egress, RAVENCLAW, "10.0.0.1", (TCP, 81)));
}
