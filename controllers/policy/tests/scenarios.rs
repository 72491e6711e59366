//! The scenarios of policy-scenarios.md that concern addresses, identities and ports, from the
//! objects as users write them to the verdict that the kernel's lookup would give.

use std::sync::Arc;

use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Labels, NumericIdentity};
use cilia_policy::l4::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
use cilia_policy::{
    Config, Direction, EndpointPolicy, Kind, Mode, NamedPorts, PolicyId, Repository, Verdict,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

const CLIENT: u32 = 1001;
const CLIENT2: u32 = 1002;
const ECHO: u32 = 1003;
/// Pods of another namespace, of another cluster, and one whose labels aren't known yet.
const ELSEWHERE: u32 = 1004;
const ABROAD: u32 = 1005;
const INIT: u32 = 5;
const HOST: u32 = 1;
const WORLD: u32 = 2;
const NODE: u32 = 6;
/// Addresses by the name that the scenarios give them.
const E1: &str = "192.0.2.1";
const E2: &str = "192.0.2.2";

use Direction::{Egress, Ingress};
use Verdict::{Allowed, Denied, NotAllowed};

struct Cluster {
    repository: Repository,
    config: Config,
}

fn cluster_with(config: Config) -> Cluster {
    let mut repository = Repository::new(config.clone());
    let pods = [
        (CLIENT, "test", "default", "kind=client,name=client"),
        (CLIENT2, "test", "default", "kind=client,other=client"),
        (ECHO, "test", "default", "kind=echo"),
        (ELSEWHERE, "other", "default", "kind=client,name=client"),
        (ABROAD, "test", "away", "kind=client,name=client"),
    ];
    for (number, namespace, cluster, labels) in pods {
        let mut set = Labels::new();
        set.insert("k8s", "io.kubernetes.pod.namespace", namespace);
        set.insert("k8s", "io.cilium.k8s.policy.cluster", cluster);
        set.insert("k8s", "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name", namespace);
        set.insert(
            "k8s",
            "io.cilium.k8s.policy.serviceaccount",
            if number == CLIENT { "sa" } else { "default" },
        );
        for label in labels.split(',') {
            let (key, value) = label.split_once('=').expect("a value");
            set.insert("k8s", key, value);
        }
        repository.set_identity(NumericIdentity(number), Arc::new(set));
    }
    Cluster { repository, config }
}

fn cluster() -> Cluster {
    cluster_with(Config::default())
}

impl Cluster {
    fn with(mut self, kind: &str, name: &str, mut object: Value) -> Self {
        object["metadata"] = json!({"name": name, "namespace": "test"});
        let (kind, parsed) = match kind {
            "cnp" => (Kind::Cilium, cilia_policy::cilium(&from(object), &self.config)),
            "ccnp" => (
                Kind::CiliumClusterwide,
                cilia_policy::clusterwide(
                    &from::<CiliumClusterwideNetworkPolicy>(object),
                    &self.config,
                ),
            ),
            _ => (
                Kind::Kubernetes,
                cilia_policy::kubernetes(&from::<NetworkPolicy>(object), &self.config),
            ),
        };
        let namespace = if kind == Kind::CiliumClusterwide { "" } else { "test" };
        let id = PolicyId { kind, namespace: namespace.into(), name: name.into() };
        self.repository.set_policy(id, parsed.expect("a valid policy").rules);
        self
    }

    fn cnp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("p{}", self.repository.policies().len());
        self.with("cnp", &name, json!({"spec": spec}))
    }

    fn knp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("k{}", self.repository.policies().len());
        self.with("knp", &name, json!({"spec": spec}))
    }

    fn ccnp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("c{}", self.repository.policies().len());
        self.with("ccnp", &name, json!({"spec": spec}))
    }

    fn map(&mut self, subject: u32) -> Arc<EndpointPolicy> {
        let mut names = NamedPorts::new();
        if subject == ECHO {
            names.insert(("http-8080".into(), TCP), 8080);
        }
        self.repository.policy(NumericIdentity(subject), &names).expect("a known identity")
    }

    fn verdict(
        &mut self,
        subject: u32,
        direction: Direction,
        peer: u32,
        proto: u8,
        port: u16,
    ) -> Verdict {
        self.map(subject).verdict(direction, peer, proto, port)
    }

    /// The verdict for a peer outside, by its address.
    fn outside(
        &mut self,
        subject: u32,
        direction: Direction,
        address: &str,
        proto: u8,
        port: u16,
    ) -> Verdict {
        let map = self.map(subject);
        let address: std::net::IpAddr = address.parse().expect("an address");
        let held =
            self.repository.prefixes().into_iter().filter(|(prefix, _)| prefix.contains(&address));
        let identity = held
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map_or(WORLD, |(_, identity)| identity.0);
        map.verdict(direction, identity, proto, port)
    }

    /// What a TCP connection between two pods meets: the sender's egress, then the receiver's ingress.
    fn tcp(&mut self, from: u32, to: u32, port: u16) -> (Verdict, Verdict) {
        (self.verdict(from, Egress, to, TCP, port), self.verdict(to, Ingress, from, TCP, port))
    }
}

fn from<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its kind")
}

fn all() -> Value {
    json!({"endpointSelector": {}, "ingress": [{"fromEntities": ["all"]}], "egress": [{"toEntities": ["all"]}]})
}

fn of(kind: &str) -> Value {
    json!({"matchLabels": {"kind": kind}})
}

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
fn s25_s29_s31_s73_what_is_not_built_is_closed() {
    let items = [
        json!({"toFQDNs": [{"matchPattern": "*.example.org"}]}),
        json!({"toServices": [{"k8sService": {"serviceName": "echo"}}]}),
        json!({"toGroups": [{"aws": {"region": "x"}}]}),
        json!({"toEntities": ["all"], "toPorts": [{"ports": [{"port": "53", "protocol": "UDP"}], "rules": {"dns": [{"matchPattern": "*"}]}}]}),
        json!({"toEntities": ["all"], "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"path": "/"}]}}]}),
        json!({"toEntities": ["all"], "toPorts": [{"ports": [{"port": "443", "protocol": "TCP"}], "serverNames": ["a.example"]}]}),
        json!({"toEntities": ["all"], "authentication": {"mode": "required"}}),
    ];
    for item in items {
        let mut c = cluster().cnp(json!({"endpointSelector": of("client"), "egress": [item]}));
        let pass = [(TCP, 80), (TCP, 443), (UDP, 53)]
            .map(|(proto, port)| c.outside(CLIENT, Egress, E1, proto, port));
        assert_eq!(pass, [NotAllowed; 3], "{item}");
    }
    // What can't be told from everybody is denied to everybody.
    let deny = json!({"endpointSelector": of("client"), "egressDeny": [{"toGroups": [{"aws": {"region": "x"}}]}]});
    let mut c = cluster().cnp(all()).cnp(deny);
    assert_eq!(c.outside(CLIENT, Egress, E1, TCP, 80), Denied);
}

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
fn s40_s41_without_default_deny() {
    let soft = json!({"endpointSelector": of("echo"), "enableDefaultDeny": {"ingress": false},
        "ingress": [{"fromEndpoints": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(soft);
    assert_eq!(c.tcp(CLIENT2, ECHO, 80).1, Allowed);
    assert!(c.map(ECHO).ingress.enforced);
    let mut c = c.cnp(json!({"endpointSelector": of("echo"), "ingress": [{}]}));
    assert_eq!((c.tcp(CLIENT, ECHO, 80).1, c.tcp(CLIENT2, ECHO, 80).1), (Allowed, NotAllowed));
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
fn s70_unknown_labels() {
    let mut c = cluster();
    assert_eq!(c.tcp(INIT, ECHO, 80).0, NotAllowed);
    let rule = json!({"endpointSelector": {"matchLabels": {"reserved:init": ""}}, "egress": [{"toEntities": ["all"]}]});
    let mut c = cluster().ccnp(rule);
    assert_eq!(c.tcp(INIT, ECHO, 80).0, Allowed);
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
fn s86_requirements() {
    let allow =
        json!({"endpointSelector": of("echo"), "ingress": [{"fromEndpoints": [of("client")]}]});
    let require = json!({"endpointSelector": of("echo"), "ingress": [{"fromRequires": [{"matchLabels": {"name": "client"}}]}]});
    let mut c = cluster().cnp(allow).cnp(require);
    assert_eq!((c.tcp(CLIENT, ECHO, 80).1, c.tcp(CLIENT2, ECHO, 80).1), (Allowed, NotAllowed));
}

#[test]
fn faults_are_named() {
    let port = |port: Value| json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [port]}]}]});
    let ports = vec![json!({"port": "80", "protocol": "TCP"}); 41];
    let cases = [
        ("S43", json!({"endpointSelector": {}, "ingress": []}), "spec: at least one of ingress"),
        (
            "S44 both",
            json!({"endpointSelector": {}, "nodeSelector": {}, "ingress": [{}]}),
            "spec: endpointSelector and nodeSelector",
        ),
        ("S44 neither", json!({"ingress": [{}]}), "spec: one of endpointSelector and nodeSelector"),
        (
            "nodes",
            json!({"nodeSelector": {}, "ingress": [{}]}),
            "spec.nodeSelector: only a CiliumClusterwide",
        ),
        (
            "S46",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": ports}]}]}),
            "spec.ingress[0].toPorts[0].ports: 41 ports",
        ),
        (
            "S47",
            json!({"endpointSelector": {}, "ingress": [{"icmps": [{"fields": [{"type": 8}]}], "toPorts": [{"ports": [{"port": "80"}]}]}]}),
            "spec.ingress[0].icmps: it can't be combined with toPorts",
        ),
        (
            "S49",
            json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}]}]}),
            "spec.egress[0].toCIDRSet[0].except[0]: 11.0.0.0/8 is not inside of 10.0.0.0/8",
        ),
        (
            "S94, an except wider than its range",
            json!({"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidr": "10.0.0.0/24", "except": ["10.0.0.0/16"]}]}]}),
            "spec.egress[0].toCIDRSet[0].except[0]: 10.0.0.0/16 is not inside of 10.0.0.0/24",
        ),
        (
            "two peers",
            json!({"endpointSelector": {}, "egress": [{"toEndpoints": [{}], "toEntities": ["world"]}]}),
            "spec.egress[0].toEntities: it can't be combined with spec.egress[0].toEndpoints",
        ),
        (
            "prefix",
            json!({"endpointSelector": {}, "egress": [{"toCIDR": ["10.0.0.0/33"]}]}),
            "spec.egress[0].toCIDR[0]: \"10.0.0.0/33\" is neither a prefix",
        ),
        (
            "port",
            port(json!({"port": "70000"})),
            "spec.ingress[0].toPorts[0].ports[0].port: port 70000 is not between",
        ),
        (
            "port name",
            port(json!({"port": "-x"})),
            "spec.ingress[0].toPorts[0].ports[0].port: \"-x\" is neither",
        ),
        (
            "no port",
            port(json!({"protocol": "TCP"})),
            "spec.ingress[0].toPorts[0].ports[0].port: a port is required",
        ),
        (
            "dns on ingress",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "53"}], "rules": {"dns": []}}]}]}),
            "spec.ingress[0].toPorts[0].rules.dns: rules for DNS are possible for egress only",
        ),
        (
            "dns on every port",
            json!({"endpointSelector": {}, "egress": [{"toPorts": [{"ports": [{"port": "0", "protocol": "UDP"}], "rules": {"dns": [{"matchPattern": "*"}]}}]}]}),
            "spec.egress[0].toPorts[0].rules.dns: it can't be combined with port 0",
        ),
        (
            "http over any",
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "80"}], "rules": {"http": [{}]}}]}]}),
            "spec.ingress[0].toPorts[0].rules.http: every port needs protocol TCP",
        ),
        (
            "operator",
            json!({"endpointSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}, "ingress": [{}]}),
            "spec.endpointSelector.matchExpressions[0].values: operators In and NotIn need",
        ),
    ];
    for (name, spec, want) in cases {
        let policy: CiliumNetworkPolicy =
            from(json!({"metadata": {"name": "p", "namespace": "test"}, "spec": spec}));
        let error = cilia_policy::cilium(&policy, &Config::default()).expect_err(name).to_string();
        assert!(error.starts_with(want), "{name}: {error}");
    }
    let empty: CiliumNetworkPolicy = from(json!({"metadata": {"name": "p", "namespace": "test"}}));
    assert!(
        cilia_policy::cilium(&empty, &Config::default())
            .expect_err("no rule")
            .to_string()
            .starts_with("spec: the policy has no rule")
    );
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
