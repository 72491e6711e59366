//! Rules that refer to other objects: groups of prefixes, services, nodes; and rules for nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{CiliumCidrGroup, Labels, NumericIdentity};
use cilia_policy::l4::protocol::TCP;
use cilia_policy::{
    CidrGroup, Config, Direction, NamedPorts, Node, Repository, Service, Verdict, read,
};
use serde_json::{Value, json};

use Direction::{Egress, Ingress};
use Verdict::{Allowed, Denied, NotAllowed};

const CLIENT: u32 = 1001;
const ECHO: u32 = 1003;
const HOST: u32 = 1;

fn pod(namespace: &str, kind: &str) -> Arc<Labels> {
    let mut labels = Labels::new();
    labels.insert("k8s", "io.kubernetes.pod.namespace", namespace);
    labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
    labels.insert("k8s", "kind", kind);
    Arc::new(labels)
}

struct Cluster(Repository);

impl Cluster {
    fn new(config: Config) -> Self {
        let mut repository = Repository::new(config);
        repository.set_identity(NumericIdentity(CLIENT), pod("test", "client"));
        repository.set_identity(NumericIdentity(ECHO), pod("test", "echo"));
        Self(repository)
    }

    fn with(mut self, config: &Config, kind: &str, spec: &Value) -> Self {
        let name = format!("p{}", self.0.policies().len());
        let object =
            json!({"kind": kind, "metadata": {"name": name, "namespace": "test"}, "spec": spec});
        let (id, parsed) = read(&object, config).expect("a policy");
        self.0.set_policy(id, parsed.expect("a valid policy").rules);
        self
    }

    fn cnp(self, spec: &Value) -> Self {
        self.with(&Config::default(), "CiliumNetworkPolicy", spec)
    }

    fn verdict(&mut self, subject: u32, direction: Direction, peer: u32, port: u16) -> Verdict {
        let map = self.0.policy(NumericIdentity(subject), &NamedPorts::new()).expect("known");
        map.verdict(direction, peer, TCP, port)
    }

    /// What becomes of a connection from the client to an address outside.
    fn outside(&mut self, address: &str) -> Verdict {
        let map = self.0.policy(NumericIdentity(CLIENT), &NamedPorts::new()).expect("known");
        let identity = self.0.outside(address.parse().expect("an address"));
        map.verdict(Egress, identity.0, TCP, 80)
    }

    fn group(&mut self, name: &str, team: &str, prefixes: &[&str]) {
        let object = json!({"metadata": {"name": name, "labels": {"team": team}}, "spec": {"externalCIDRs": prefixes}});
        let group: CiliumCidrGroup = serde_json::from_value(object).expect("a group");
        let (group, faults) = CidrGroup::read(&group);
        assert_eq!(faults.len(), prefixes.iter().filter(|text| text.contains("odd")).count());
        self.0.set_group(&name.into(), Some(group));
    }
}

const E1: &str = "192.0.2.1";
const E2: &str = "192.0.2.2";

#[test]
fn s19_groups_by_name_and_by_label() {
    let all = json!({"endpointSelector": {}, "egress": [{"toEntities": ["all"]}]});
    let by_name = json!({"cidrGroupRef": "net", "except": [format!("{E1}/32")]});
    let by_label = json!({"cidrGroupSelector": {"matchLabels": {"team": "edge"}}, "except": [format!("{E1}/32")]});
    for set in [by_name, by_label] {
        let deny = json!({"endpointSelector": {}, "egressDeny": [{"toCIDRSet": [set]}]});
        let mut c = Cluster::new(Config::default()).cnp(&all).cnp(&deny);
        assert!(c.0.refers_to().groups && !c.0.refers_to().services);
        assert_eq!([c.outside(E1), c.outside(E2)], [Allowed; 2], "no group yet");
        c.group("net", "edge", &["192.0.2.0/24", "odd"]);
        assert_eq!(
            [c.outside(E1), c.outside(E2), c.outside("198.51.100.1")],
            [Allowed, Denied, Allowed]
        );
        // What the group holds may change, and its labels.
        c.group("net", "edge", &["198.51.100.1"]);
        assert_eq!([c.outside(E2), c.outside("198.51.100.1")], [Allowed, Denied]);
        c.group("net", "core", &["198.51.100.1"]);
        let named = deny["egressDeny"][0]["toCIDRSet"][0]["cidrGroupRef"].is_string();
        let want = if named { Denied } else { Allowed };
        assert_eq!(c.outside("198.51.100.1"), want);
        c.0.set_group(&"net".into(), None);
        assert_eq!(c.outside("198.51.100.1"), Allowed);
    }
}

#[test]
fn a_changed_group_touches_what_changed() {
    let spec =
        json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidrGroupRef": "net"}]}]});
    let mut c = Cluster::new(Config::default()).cnp(&spec);
    let many: Vec<String> = (0..200).map(|n| format!("198.51.100.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    c.group("net", "edge", &many);
    let before = c.0.policy(NumericIdentity(CLIENT), &NamedPorts::new()).expect("known");
    c.group("net", "edge", &[&many[1..], &["192.0.2.0/24"]].concat());
    let after = c.0.policy(NumericIdentity(CLIENT), &NamedPorts::new()).expect("known");
    let difference = after.difference(&before);
    assert_eq!((difference.write.len(), difference.remove.len()), (1, 1));
    // A group that nobody refers to touches nothing.
    assert!(!c.0.set_group(&"other".into(), Some(CidrGroup::default())));
    let same = c.0.policy(NumericIdentity(CLIENT), &NamedPorts::new()).expect("known");
    assert!(Arc::ptr_eq(&after, &same));
}

fn service(selector: &[(&str, &str)], addresses: &[&str]) -> Service {
    Service {
        labels: BTreeMap::from([("tier".to_owned(), "front".to_owned())]),
        selector: selector
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
    }
}

#[test]
fn s64_s65_services_are_their_backends() {
    let by_name = json!({"k8sService": {"serviceName": "echo", "namespace": "test"}});
    let anywhere = json!({"k8sService": {"serviceName": "echo"}});
    let by_label = json!({"k8sServiceSelector": {"selector": {"matchLabels": {"tier": "front"}}, "namespace": "test"}});
    for which in [by_name, anywhere, by_label] {
        let spec = json!({"endpointSelector": {}, "egress": [{"toServices": [which],
            "toPorts": [{"ports": [{"port": "8080", "protocol": "TCP"}]}]}]});
        let mut c = Cluster::new(Config::default()).cnp(&spec);
        let id = ("test".into(), "echo".into());
        assert_eq!(c.verdict(CLIENT, Egress, ECHO, 8080), NotAllowed, "no service yet");
        c.0.set_service(&id, Some(service(&[("kind", "echo")], &["192.0.2.9"])));
        // Policy sees the backend's port.
        let verdicts = [8080, 80].map(|port| c.verdict(CLIENT, Egress, ECHO, port));
        assert_eq!(verdicts, [Allowed, NotAllowed]);
        assert_eq!(c.verdict(CLIENT, Egress, CLIENT, 8080), NotAllowed);
        assert_eq!(c.outside("192.0.2.9"), NotAllowed, "its endpoints are pods");
        // Without a selector the addresses of its endpoints count, headless or not.
        let spec = json!({"endpointSelector": {}, "egress": [{"toServices": [which]}]});
        let mut c = c.cnp(&spec);
        c.0.set_service(&id, Some(service(&[], &["192.0.2.9"])));
        assert_eq!([c.outside("192.0.2.9"), c.outside("192.0.2.8")], [Allowed, NotAllowed]);
        assert_eq!(c.verdict(CLIENT, Egress, ECHO, 8080), NotAllowed);
        c.0.set_service(&id, Some(service(&[], &["192.0.2.8"])));
        assert_eq!([c.outside("192.0.2.9"), c.outside("192.0.2.8")], [NotAllowed, Allowed]);
        c.0.set_service(&("other".into(), "echo".into()), None);
        c.0.set_service(&id, None);
        assert_eq!(c.outside("192.0.2.8"), NotAllowed);
    }
}

fn node(own: bool, zone: &str, address: &str) -> Node {
    Node {
        own,
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        addresses: BTreeSet::from([address.parse().expect("an address")]),
        ..Node::default()
    }
}

#[test]
fn nodes_by_label_and_by_address() {
    let config = Config { node_selectors: true, ..Config::default() };
    let spec = json!({"endpointSelector": {}, "ingress": [{"fromNodes": [{"matchLabels": {"zone": "a"}}]}],
        "egress": [{"toNodes": [{}]}]});
    let mut c = Cluster::new(config.clone()).with(&config, "CiliumNetworkPolicy", &spec);
    c.0.set_node("n1", Some(node(true, "a", "172.16.0.1")));
    c.0.set_node("n2", Some(node(false, "a", "172.16.0.2")));
    c.0.set_node("n3", Some(node(false, "b", "172.16.0.3")));
    let numbers: BTreeMap<IpAddr, u32> =
        c.0.node_identities().into_iter().map(|(address, number)| (address, number.0)).collect();
    let of = |address: &str| numbers[&address.parse::<IpAddr>().expect("an address")];
    let (n2, n3) = (of("172.16.0.2"), of("172.16.0.3"));
    assert_eq!((numbers.len(), n2 >> 24), (2, 2));
    let verdicts = [n2, n3, CLIENT].map(|peer| c.verdict(ECHO, Ingress, peer, 80));
    assert_eq!(verdicts, [Allowed, NotAllowed, NotAllowed]);
    let verdicts = [n2, n3, HOST, CLIENT].map(|peer| c.verdict(ECHO, Egress, peer, 80));
    assert_eq!(verdicts, [Allowed, Allowed, NotAllowed, NotAllowed], "never the own node");
    c.0.set_node("n3", Some(node(false, "a", "172.16.0.3")));
    assert_eq!(c.verdict(ECHO, Ingress, n3, 80), Allowed);
    c.0.set_node("n3", None);
    assert_eq!(c.verdict(ECHO, Ingress, n3, 80), NotAllowed);

    // A restart keeps the numbers, in whatever order nodes come, and gives none twice.
    let spec = json!({"endpointSelector": {}, "egress": [{"toNodes": [{}]}]});
    let mut again = Cluster::new(config.clone()).with(&config, "CiliumNetworkPolicy", &spec);
    for (address, number) in
        [("172.16.0.2", n2), ("172.16.0.9", n3), ("172.16.0.3", n2), ("10.0.0.1", 6)]
    {
        again.0.restore_node(address.parse().expect("an address"), NumericIdentity(number));
    }
    assert_eq!(again.0.node_identities(), [], "no node has them yet");
    again.0.set_node("n0", Some(node(false, "a", "172.16.0.4")));
    again.0.set_node("n2", Some(node(false, "a", "172.16.0.2")));
    let kept: Vec<u32> =
        again.0.node_identities().into_iter().map(|(_, number)| number.0).collect();
    assert_eq!(kept, [n2, n2.max(n3) + 1], "in the order of their addresses");

    // S67: address ranges mean nodes where the configuration says so.
    let spec = json!({"endpointSelector": {}, "egress": [{"toCIDR": ["172.16.0.0/24"]}]});
    for cidrs_match_nodes in [true, false] {
        let config = Config { cidrs_match_nodes, ..Config::default() };
        let mut c = Cluster::new(config.clone()).with(&config, "CiliumNetworkPolicy", &spec);
        c.0.set_node("n1", Some(node(true, "a", "172.16.0.1")));
        c.0.set_node("n2", Some(node(false, "a", "172.16.0.2")));
        c.0.set_node("n3", Some(node(false, "a", "172.17.0.2")));
        let numbers: Vec<u32> =
            c.0.node_identities().into_iter().map(|(_, number)| number.0).collect();
        let mut verdicts: Vec<Verdict> =
            numbers.iter().map(|number| c.verdict(ECHO, Egress, *number, 80)).collect();
        verdicts.push(c.verdict(ECHO, Egress, HOST, 80));
        let want: &[Verdict] =
            if cidrs_match_nodes { &[Allowed, NotAllowed, Allowed] } else { &[NotAllowed] };
        assert_eq!(verdicts, want);
    }
}

#[test]
fn s61_s62_the_node_has_policy() {
    let config = Config { host_firewall: true, ..Config::default() };
    let of = |section: &str, side: &str, kind: &str| {
        let peer = json!({"matchLabels": {"kind": kind}});
        json!({"nodeSelector": {"matchLabels": {"zone": "a"}}, "enableDefaultDeny": {"ingress": false, "egress": false},
            section: [{side: [peer]}]})
    };
    let mut c = Cluster::new(config.clone())
        .with(
            &config,
            "CiliumClusterwideNetworkPolicy",
            &of("ingressDeny", "fromEndpoints", "client"),
        )
        .with(&config, "CiliumClusterwideNetworkPolicy", &of("egressDeny", "toEndpoints", "echo"));
    assert_eq!(c.verdict(HOST, Ingress, CLIENT, 80), Allowed, "no labels yet");
    c.0.set_node("n1", Some(node(true, "a", "172.16.0.1")));
    let verdicts = [CLIENT, ECHO].map(|peer| c.verdict(HOST, Ingress, peer, 80));
    assert_eq!(verdicts, [Denied, Allowed]);
    let verdicts = [CLIENT, ECHO].map(|peer| c.verdict(HOST, Egress, peer, 80));
    assert_eq!(verdicts, [Allowed, Denied]);
    // Rules for nodes are not for pods, nor the other way round.
    assert_eq!(c.verdict(ECHO, Ingress, CLIENT, 80), Allowed);
    let mut c = c.with(
        &config,
        "CiliumClusterwideNetworkPolicy",
        &json!({"endpointSelector": {}, "ingress": [{}]}),
    );
    assert_eq!(c.verdict(HOST, Ingress, ECHO, 80), Allowed);
    c.0.set_node("n1", Some(node(true, "b", "172.16.0.1")));
    assert_eq!(c.verdict(HOST, Ingress, CLIENT, 80), Allowed);
    // With default deny even other nodes must be allowed.
    let strict = json!({"nodeSelector": {}, "ingress": [{"fromEntities": ["health"]}]});
    let mut c = c.with(&config, "CiliumClusterwideNetworkPolicy", &strict);
    assert_eq!([6, 4].map(|peer| c.verdict(HOST, Ingress, peer, 22)), [NotAllowed, Allowed]);

    // Without the firewall such rules have no effect, and say so.
    let object = json!({"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"}, "spec": strict});
    let notes = read(&object, &Config::default()).expect("a policy").1.expect("a valid one").notes;
    assert!(notes[0].to_string().contains("enable-host-firewall"), "{notes:?}");
    let mut c = Cluster::new(Config::default()).with(
        &Config::default(),
        "CiliumClusterwideNetworkPolicy",
        &strict,
    );
    assert_eq!(c.verdict(HOST, Ingress, 6, 22), Allowed);
}

#[test]
fn r65_policies_that_come_and_go_cut_nobody_elses() {
    use rand::{RngExt as _, SeedableRng as _};
    // The API server is outside, and others name ranges, services and groups that have its address.
    let keep = json!({"endpointSelector": {}, "egress": [{"toEntities": ["kube-apiserver"]}]});
    let mut c = Cluster::new(Config::default()).cnp(&keep);
    c.0.set_api_servers(&BTreeSet::from([E1.parse().expect("an address")]));
    c.0.set_service(&("test".into(), "given".into()), Some(service(&[], &[E1, E2])));
    let ranges = ["192.0.2.1/32", "192.0.2.0/31", "192.0.2.0/24", "0.0.0.0/0"]
        .map(|range| json!({"toCIDR": [range]}));
    let others = [
        json!({"toCIDRSet": [{"cidr": "192.0.2.0/24", "except": ["192.0.2.1/32"]}]}),
        json!({"toServices": [{"k8sService": {"serviceName": "given", "namespace": "test"}}]}),
        json!({"toCIDRSet": [{"cidrGroupRef": "net"}]}),
    ];
    let items = [&ranges[..], &others].concat();
    let rng = &mut rand::rngs::SmallRng::seed_from_u64(65);
    for round in 0..200 {
        let which = rng.random_range(0..items.len());
        let spec = json!({"endpointSelector": {}, "egress": [items[which]]});
        let object = json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": format!("u{which}"), "namespace": "test"}, "spec": spec});
        let (id, parsed) = read(&object, &Config::default()).expect("a policy");
        if rng.random_bool(0.5) {
            c.0.set_policy(id, parsed.expect("a valid policy").rules);
        } else {
            c.0.remove_policy(&id);
        }
        match rng.random_range(0..3) {
            0 => c.group("net", "edge", &[E1]),
            1 => c.group("net", "edge", &["192.0.2.0/25"]),
            _ => {
                c.0.retire_prefixes();
            }
        }
        assert_eq!(c.outside(E1), Allowed, "round {round}: {spec}");
        assert_eq!(
            c.outside("198.51.100.1") == Allowed,
            c.0.policies().keys().any(|id| &*id.name == "u3"),
            "round {round}"
        );
    }
    c.0.set_api_servers(&BTreeSet::new());
    for which in 0..items.len() {
        let id = cilia_policy::PolicyId {
            kind: cilia_policy::Kind::Cilium,
            namespace: "test".into(),
            name: format!("u{which}").into(),
        };
        c.0.remove_policy(&id);
    }
    assert_eq!([c.outside(E1), c.outside(E2)], [NotAllowed; 2], "who is no server any more");
}
