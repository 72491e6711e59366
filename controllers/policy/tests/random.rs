//! Random rules, identities and packets: what the maps say, looked up as the kernel does, against
//! the rules evaluated straight from their definition; and maps after changes against fresh ones.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_policy::l4::protocol::{ICMP, SCTP, TCP, UDP};
use cilia_policy::rule::{Item, Peer, Peers, Port, Ports, Rule, Section};
use cilia_policy::selector::{Key, Operator, Requirement, Selector};
use cilia_policy::{
    Action, ClusterPorts, Config, Direction, Kind, Mode, NamedPorts, PolicyId, PortName,
    Repository, Verdict,
};
use ipnet::IpNet;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// Label sets are drawn from so few labels that selectors hit often.
const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["0", "1", "2"];
const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Ports where ranges are likely to begin, end and overlap.
const PORTS: [u16; 10] = [0, 1, 53, 79, 80, 81, 128, 443, 8080, 65535];
const NAMES: [&str; 2] = ["http", "dns"];

fn one<T: Copy>(rng: &mut SmallRng, of: &[T]) -> T {
    *of.choose(rng).expect("something to choose from")
}

fn labels(rng: &mut SmallRng) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", NAMESPACE, one(rng, &NAMESPACES));
    for key in KEYS {
        if rng.random_bool(0.7) {
            labels.insert("k8s", key, one(rng, &VALUES));
        }
    }
    labels
}

fn requirement(rng: &mut SmallRng) -> Requirement {
    let key = Key::new(one(rng, &["k8s", "any"]), one(rng, &KEYS));
    let values = (0..rng.random_range(1..3)).map(|_| one(rng, &VALUES).into()).collect();
    let operator = match rng.random_range(0..6) {
        0..3 => Operator::In(values),
        3 => Operator::NotIn(values),
        4 => Operator::Exists,
        _ => Operator::DoesNotExist,
    };
    Requirement { key, operator }
}

fn selector(rng: &mut SmallRng) -> Selector {
    let own = rng
        .random_bool(0.6)
        .then(|| Requirement::equals(Key::new("k8s", NAMESPACE), one(rng, &NAMESPACES)));
    let more: Vec<Requirement> = (0..rng.random_range(0..3)).map(|_| requirement(rng)).collect();
    Selector::new(own.into_iter().chain(more))
}

/// Prefixes of a small tree, so that they nest.
fn prefix(rng: &mut SmallRng) -> IpNet {
    let length = one(rng, &[0, 8, 12, 16, 24, 30, 32]);
    IpNet::new(address(rng), length).expect("a length of IPv4").trunc()
}

fn address(rng: &mut SmallRng) -> IpAddr {
    let mut byte = || one(rng, &[0, 1, 16, 255]);
    Ipv4Addr::new(10, byte(), byte(), byte()).into()
}

fn peer(rng: &mut SmallRng) -> Peer {
    match rng.random_range(0..10) {
        0..6 => Peer::Endpoints(selector(rng)),
        6 => Peer::Entity(Selector::reserved(one(rng, &["host", "remote-node", "world", "none"]))),
        _ => {
            let prefix = prefix(rng);
            let except = (0..rng.random_range(0..3))
                .map(|_| self::prefix(rng))
                .filter(|e| prefix.contains(e))
                .collect();
            Peer::Cidr { prefix, except }
        }
    }
}

fn port(rng: &mut SmallRng) -> Port {
    let proto = one(rng, &[TCP, TCP, UDP, SCTP]);
    match rng.random_range(0..8) {
        0 => Port::Named { proto, name: one(rng, &NAMES).into() },
        1 => {
            let first = one(rng, &[0, 8]);
            Port::Range { proto: ICMP, first, last: first }
        }
        2..5 => {
            let (a, b) = (one(rng, &PORTS), one(rng, &PORTS));
            Port::Range { proto, first: a.min(b), last: a.max(b) }
        }
        _ => {
            let port = one(rng, &PORTS);
            Port::Range { proto, first: port, last: port }
        }
    }
}

fn item(rng: &mut SmallRng) -> Item {
    let peers = if rng.random_bool(0.15) {
        Peers::Any
    } else {
        Peers::Of((0..rng.random_range(0..4)).map(|_| peer(rng)).collect())
    };
    let ports = if rng.random_bool(0.3) {
        Ports::Any
    } else {
        Ports::Of((0..rng.random_range(0..4)).map(|_| port(rng)).collect())
    };
    let action = if rng.random_bool(0.3) { Action::Deny } else { Action::Allow };
    Item { field: format!("spec.{}", rng.random_range(0..1000)).into(), action, peers, ports }
}

fn rule(rng: &mut SmallRng) -> Rule {
    let section = |rng: &mut SmallRng| {
        let requires = |rng: &mut SmallRng| {
            if rng.random_bool(0.05) { vec![requirement(rng)] } else { Vec::new() }
        };
        rng.random_bool(0.7).then(|| Section {
            default_deny: rng.random_bool(0.8),
            items: (0..rng.random_range(0..4)).map(|_| item(rng)).collect(),
            requires: requires(rng),
            deny_requires: requires(rng),
        })
    };
    let (ingress, egress) = (section(rng), section(rng));
    Rule { subject: selector(rng), ingress, egress, ..Rule::default() }
}

/// A policy's rules concern its own namespace, as parsing makes sure.
fn policy(rng: &mut SmallRng, namespace: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = (0..rng.random_range(1..3)).map(|_| rule(rng)).collect();
    if !namespace.is_empty() {
        for rule in &mut rules {
            rule.subject =
                rule.subject.and(&[Requirement::equals(Key::new("k8s", NAMESPACE), namespace)]);
        }
    }
    rules
}

/// How pods of a few identities name their ports.
fn cluster_names(rng: &mut SmallRng) -> Vec<(NumericIdentity, PortName, u16)> {
    // Sometimes all agree.
    let agree = rng.random_bool(0.4).then(|| one(rng, &PORTS));
    let count = rng.random_range(0..8);
    let mut pod = |_| {
        let identity = NumericIdentity(rng.random_range(256..280));
        let port = agree.unwrap_or_else(|| one(rng, &PORTS));
        (identity, (one(rng, &NAMES).into(), TCP), port)
    };
    (0..count).map(&mut pod).collect()
}

fn cluster_ports(named: &[(NumericIdentity, PortName, u16)]) -> Arc<ClusterPorts> {
    let mut ports = ClusterPorts::default();
    for (identity, name, port) in named {
        ports.insert(*identity, name.clone(), *port);
    }
    Arc::new(ports)
}

fn names(rng: &mut SmallRng) -> NamedPorts {
    let mut names = NamedPorts::new();
    for name in NAMES {
        if rng.random_bool(0.6) {
            names.insert((name.into(), TCP), one(rng, &PORTS));
        }
    }
    names
}

/// The other side of a packet.
enum Side {
    Identity(NumericIdentity, Arc<Labels>),
    Outside(IpAddr),
}

/// A cluster as plain data: what the oracle looks at.
struct World {
    config: Config,
    policies: BTreeMap<PolicyId, Vec<Rule>>,
    identities: BTreeMap<NumericIdentity, Arc<Labels>>,
    /// How pods name their ports.
    names: Vec<(NumericIdentity, PortName, u16)>,
}

impl World {
    fn new(rng: &mut SmallRng) -> Self {
        let mode = match rng.random_range(0..12) {
            0 => Mode::Always,
            1 => Mode::Never,
            _ => Mode::Default,
        };
        let config = Config {
            mode,
            allow_localhost: rng.random_bool(0.7),
            dual_stack: rng.random_bool(0.5),
            ..Config::default()
        };
        let mut world = Self {
            config,
            policies: BTreeMap::new(),
            identities: BTreeMap::new(),
            names: Vec::new(),
        };
        for _ in 0..rng.random_range(1..25) {
            world.change(rng, &mut Repository::new(world.config.clone()));
        }
        world
    }

    /// One change, to the data and to the repository.
    fn change(&mut self, rng: &mut SmallRng, repository: &mut Repository) {
        match rng.random_range(0..10) {
            0..4 => {
                let number = NumericIdentity(rng.random_range(256..280));
                let labels = Arc::new(labels(rng));
                self.identities.insert(number, labels.clone());
                repository.set_identity(number, labels);
            }
            4 => {
                if let Some(number) = self.identities.keys().nth(rng.random_range(0..24)).copied() {
                    self.identities.remove(&number);
                    repository.remove_identity(number);
                }
            }
            5..8 => {
                let namespace = one(rng, &["", "x", "y", "z"]);
                let id = policy_id(namespace, rng.random_range(0..4));
                let rules = policy(rng, namespace);
                self.policies.insert(id.clone(), rules.clone());
                repository.set_policy(id, rules);
            }
            8 => {
                let id = policy_id(one(rng, &["", "x", "y", "z"]), rng.random_range(0..4));
                self.policies.remove(&id);
                repository.remove_policy(&id);
            }
            _ => {
                self.names = cluster_names(rng);
                repository.set_named_ports(cluster_ports(&self.names));
            }
        }
    }

    fn repository(&self) -> Repository {
        let mut repository = Repository::new(self.config.clone());
        repository.set_named_ports(cluster_ports(&self.names));
        self.identities
            .iter()
            .for_each(|(number, labels)| repository.set_identity(*number, labels.clone()));
        self.policies.iter().for_each(|(id, rules)| {
            repository.set_policy(id.clone(), rules.clone());
        });
        repository
    }

    /// The verdict by definition (policy.md 2 and 8).
    fn verdict(
        &self,
        subject: &Labels,
        own: &NamedPorts,
        direction: Direction,
        side: &Side,
        proto: u8,
        port: u16,
    ) -> Verdict {
        let rules = self.policies.values().flatten().filter(|rule| rule.subject.matches(subject));
        let sections: Vec<&Section> = rules.filter_map(|rule| rule.section(direction)).collect();
        if self.config.mode == Mode::Never
            || (self.config.mode == Mode::Default && sections.is_empty())
        {
            return Verdict::Allowed;
        }
        let named = |item: &Item, name: &PortName| match (direction, side, &item.peers) {
            (Direction::Ingress, ..) => own.get(name) == Some(&port),
            (_, Side::Identity(identity, _), Peers::Of(_)) => {
                self.names_so(Some(*identity), name, port)
            }
            _ => self.names_so(None, name, port),
        };
        let hit = |deny: bool| {
            let requires: Vec<&Requirement> = sections
                .iter()
                .flat_map(|section| if deny { &section.deny_requires } else { &section.requires })
                .collect();
            sections
                .iter()
                .flat_map(|section| &section.items)
                .filter(|item| (item.action == Action::Deny) == deny)
                .any(|item| {
                    self.meets(&item.peers, &requires, side)
                        && ports_meet(&item.ports, |name| named(item, name), proto, port)
                })
        };
        if hit(true) {
            return Verdict::Denied;
        }
        let host = matches!(side, Side::Identity(id, _) if *id == NumericIdentity::HOST);
        let local = self.config.allow_localhost && direction == Direction::Ingress && host;
        let open = self.config.mode == Mode::Default
            && !sections.iter().any(|section| section.default_deny);
        if local || open || hit(false) { Verdict::Allowed } else { Verdict::NotAllowed }
    }

    /// Whether a name stands for a port: to pods that have it as they say, else if all agree.
    fn names_so(&self, identity: Option<NumericIdentity>, name: &PortName, port: u16) -> bool {
        let so: Vec<_> = self.names.iter().filter(|(_, one, _)| one == name).collect();
        let own = || so.iter().filter(|(pod, ..)| Some(*pod) == identity);
        if own().next().is_some() {
            return own().any(|(.., number)| *number == port);
        }
        !so.is_empty() && so.iter().all(|(.., number)| *number == port)
    }

    fn meets(&self, peers: &Peers, requires: &[&Requirement], side: &Side) -> bool {
        let Peers::Of(peers) = peers else { return true };
        peers.iter().any(|peer| match (peer, side) {
            (Peer::Endpoints(selector), Side::Identity(_, labels)) => {
                selector.matches(labels)
                    && requires.iter().all(|requirement| requirement.matches(labels))
            }
            (Peer::Entity(selector), Side::Identity(_, labels)) => selector.matches(labels),
            (Peer::Cidr { prefix, except }, Side::Outside(address)) => {
                prefix.contains(address) && !except.iter().any(|except| except.contains(address))
            }
            (Peer::Endpoints(selector), Side::Outside(_)) => {
                let labels = outside(self.config.dual_stack);
                selector.matches(&labels)
                    && requires.iter().all(|requirement| requirement.matches(&labels))
            }
            (Peer::Entity(selector), Side::Outside(_)) => {
                selector.matches(&outside(self.config.dual_stack))
            }
            _ => false,
        })
    }
}

fn outside(dual_stack: bool) -> Labels {
    Labels::reserved(if dual_stack { "world-ipv4" } else { "world" })
}

fn policy_id(namespace: &str, number: u32) -> PolicyId {
    let kind = if namespace.is_empty() { Kind::CiliumClusterwide } else { Kind::Cilium };
    PolicyId { kind, namespace: namespace.into(), name: format!("p{number}").into() }
}

fn ports_meet(ports: &Ports, named: impl Fn(&PortName) -> bool, proto: u8, port: u16) -> bool {
    let Ports::Of(ports) = ports else { return true };
    ports.iter().any(|one| match one {
        Port::Range { proto: p, first: 0, last: 0 } if *p != ICMP => *p == proto,
        Port::Range { proto: p, first, last } => *p == proto && (*first..=*last).contains(&port),
        Port::Named { proto: p, name } => *p == proto && named(&(name.clone(), *p)),
    })
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let start: u64 = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let count = std::env::var("COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    start..start + count
}

#[test]
fn maps_say_what_the_rules_mean() {
    let mut lookups = 0u64;
    for seed in seeds(400) {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let world = World::new(rng);
        let mut repository = world.repository();
        let mut sides: Vec<Side> = world
            .identities
            .iter()
            .map(|(number, labels)| Side::Identity(*number, labels.clone()))
            .collect();
        for number in [NumericIdentity::HOST, NumericIdentity::REMOTE_NODE] {
            sides.push(Side::Identity(
                number,
                Arc::new(number.reserved_labels().expect("reserved")),
            ));
        }
        sides.extend((0..12).map(|_| Side::Outside(address(rng))));
        for (subject, labels) in world.identities.iter().take(8) {
            let own = names(rng);
            let map = repository.policy(*subject, &own).expect("a known identity");
            let prefixes = repository.prefixes();
            for side in &sides {
                let (identity, shown) = match side {
                    Side::Identity(number, labels) => (*number, labels.to_string()),
                    Side::Outside(address) => {
                        let held = prefixes.iter().filter(|(prefix, _)| prefix.contains(address));
                        let world = if world.config.dual_stack { 9 } else { 2 };
                        let longest = held.max_by_key(|(prefix, _)| prefix.prefix_len());
                        (
                            longest.map_or(NumericIdentity(world), |(_, number)| *number),
                            address.to_string(),
                        )
                    }
                };
                for direction in Direction::BOTH {
                    for (proto, port) in [TCP, UDP, SCTP, ICMP].into_iter().flat_map(|proto| {
                        PORTS.into_iter().chain([8, 100, 8081]).map(move |port| (proto, port))
                    }) {
                        if direction == Direction::Ingress && proto == SCTP {
                            continue;
                        }
                        let want = world.verdict(labels, &own, direction, side, proto, port);
                        let got = map.verdict(direction, identity.0, proto, port);
                        lookups += 1;
                        assert_eq!(
                            got, want,
                            "SEED={seed} COUNT=1: {subject} ({labels}) {direction:?} {identity} ({shown}) {port}/{proto}"
                        );
                    }
                }
            }
        }
    }
    println!("{lookups} lookups");
    assert!(std::env::var("SEED").is_ok() || lookups >= 1_000_000, "only {lookups} lookups");
}

#[test]
fn changes_lead_where_a_fresh_start_leads() {
    for seed in seeds(150) {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut world = World::new(rng);
        let mut repository = world.repository();
        let own = [names(rng), names(rng)];
        // What a writer that only follows differences would have in each endpoint's map.
        let mut written: BTreeMap<(u32, usize), BTreeMap<_, _>> = BTreeMap::new();
        let mut last: BTreeMap<(u32, usize), Arc<cilia_policy::EndpointPolicy>> = BTreeMap::new();
        for step in 0..25 {
            world.change(rng, &mut repository);
            if rng.random_bool(0.3) {
                repository.retain_subjects(|number| number.0 % 2 == 0);
                repository.retire_prefixes();
            }
            let mut fresh = world.repository();
            for subject in world.identities.keys().copied().filter(|number| number.0 % 2 == 0) {
                let _ = fresh.policy(subject, &own[0]);
                let _ = repository.policy(subject, &own[0]);
            }
            let prefixes: BTreeMap<_, _> =
                fresh.prefixes().into_iter().map(|(prefix, id)| (id.0, prefix)).collect();
            let numbers: BTreeMap<_, _> = repository.prefixes().into_iter().collect();
            for subject in world.identities.keys().copied().filter(|number| number.0 % 2 == 0) {
                for (which, names) in own.iter().enumerate() {
                    let got = repository.policy(subject, names).expect("a known identity");
                    let want = fresh.policy(subject, names).expect("a known identity");
                    // Numbers of prefixes depend on history: compare by prefix; skip what is to be retired.
                    let known: Vec<u32> = numbers.values().map(|number| number.0).collect();
                    let own_form: BTreeMap<_, _> = got
                        .entries()
                        .filter(|(key, _)| key.identity >> 24 == 0 || known.contains(&key.identity))
                        .map(|(key, entry)| (key, entry.deny))
                        .collect();
                    let wanted: BTreeMap<_, _> = want
                        .entries()
                        .map(|(mut key, entry)| {
                            if let Some(prefix) = prefixes.get(&key.identity) {
                                key.identity = numbers[prefix].0;
                            }
                            (key, entry.deny)
                        })
                        .collect();
                    assert_eq!(own_form, wanted, "SEED={seed} COUNT=1: step {step}, {subject}");
                    assert_eq!(got.ingress.enforced, want.ingress.enforced);
                    let map = written.entry((subject.0, which)).or_default();
                    let before = last.insert((subject.0, which), got.clone()).unwrap_or_default();
                    let difference = got.difference(&before);
                    map.extend(difference.write.iter().map(|(key, entry)| (*key, entry.deny)));
                    difference.remove.iter().for_each(|key| {
                        map.remove(key);
                    });
                    let all: BTreeMap<_, _> =
                        got.entries().map(|(key, entry)| (key, entry.deny)).collect();
                    assert_eq!(
                        *map, all,
                        "SEED={seed} COUNT=1: step {step}, {subject}: differences"
                    );
                }
            }
        }
    }
}
