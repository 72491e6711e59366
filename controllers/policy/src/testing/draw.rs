//! Draws the parts of random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;

use crate::directory::{CIDR_GROUP, CidrGroup, Service};
use crate::l4::protocol::{ICMP, SCTP, TCP, UDP};
use crate::names::{NamedPorts, PortName};
use crate::rule::{
    Action, Groups, Item, Peer, Peers, Port, Ports, Rule, Section, ServiceName, Services, Tier,
};
use crate::selector::{K8S, Key, NAMESPACE, Operator, Requirement, Selector};

/// Label sets are drawn from so few labels that selectors hit often.
const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["0", "1", "2"];
pub(super) const NAMESPACES: [&str; 3] = ["x", "y", "z"];
/// Ports where ranges are likely to begin, end and overlap.
pub(super) const PORTS: [u16; 10] = [0, 1, 53, 79, 80, 81, 128, 443, 8080, 65535];
const NAMES: [&str; 2] = ["http", "dns"];
/// Names of groups and services.
pub(super) const OBJECTS: [&str; 3] = ["one", "two", "three"];

pub(super) fn one<T: Copy>(rng: &mut SmallRng, of: &[T]) -> T {
    *of.choose(rng).expect("something to choose from")
}

pub(super) fn labels(rng: &mut SmallRng) -> Labels {
    let mut labels = Labels::new();
    labels.insert(K8S, NAMESPACE, one(rng, &NAMESPACES));
    for key in KEYS {
        if rng.random_bool(0.7) {
            labels.insert(K8S, key, one(rng, &VALUES));
        }
    }
    labels
}

fn requirement(rng: &mut SmallRng) -> Requirement {
    let key = Key::new(one(rng, &[K8S, "any"]), one(rng, &KEYS));
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
        .then(|| Requirement::equals(Key::new(K8S, NAMESPACE), one(rng, &NAMESPACES)));
    let more: Vec<Requirement> = (0..rng.random_range(0..3)).map(|_| requirement(rng)).collect();
    Selector::new(own.into_iter().chain(more))
}

/// A selector of pods only: never of reserved identities, nor of prefixes.
fn pods(rng: &mut SmallRng) -> Selector {
    selector(rng).and(&[Requirement::exists(Key::new(K8S, NAMESPACE))])
}

/// Prefixes of a small tree, so that they nest.
fn prefix(rng: &mut SmallRng) -> IpNet {
    let length = one(rng, &[0, 8, 12, 16, 24, 30, 32]);
    IpNet::new(address(rng), length).expect("a length of IPv4").trunc()
}

fn range(rng: &mut SmallRng) -> (IpNet, Vec<IpNet>) {
    let prefix = prefix(rng);
    let except = (0..rng.random_range(0..3))
        .map(|_| self::prefix(rng))
        .filter(|except| prefix.contains(except))
        .collect();
    (prefix, except)
}

pub(super) fn address(rng: &mut SmallRng) -> IpAddr {
    let mut byte = || one(rng, &[0, 1, 16, 255]);
    Ipv4Addr::new(10, byte(), byte(), byte()).into()
}

fn peer(rng: &mut SmallRng) -> Peer {
    match rng.random_range(0..13) {
        0..6 => Peer::Endpoints(selector(rng)),
        6 => Peer::Entity(Selector::reserved(one(rng, &["host", "remote-node", "world", "none"]))),
        7 => Peer::Nodes(Selector::default()),
        8 => {
            let groups = if rng.random_bool(0.5) {
                Groups::Named(one(rng, &OBJECTS).into())
            } else {
                let label = Key::new("any", one(rng, &KEYS));
                Groups::Labelled(Selector::new([Requirement::equals(label, one(rng, &VALUES))]))
            };
            Peer::Groups { groups, except: range(rng).1 }
        }
        9 => {
            let which = if rng.random_bool(0.5) {
                ServiceName::Named(one(rng, &OBJECTS).into())
            } else {
                let label = Key::new("any", one(rng, &KEYS));
                ServiceName::Labelled(Selector::new([Requirement::exists(label)]))
            };
            let namespace = rng.random_bool(0.5).then(|| one(rng, &NAMESPACES).into());
            Peer::Services(Services { namespace, which })
        }
        _ => {
            let (prefix, except) = range(rng);
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

fn ports(rng: &mut SmallRng) -> Ports {
    if rng.random_bool(0.3) {
        return Ports::Any;
    }
    Ports::Of((0..rng.random_range(0..4)).map(|_| port(rng)).collect())
}

fn field(rng: &mut SmallRng) -> Arc<str> {
    format!("spec.ingress[{}]", rng.random_range(0..40)).into()
}

fn item(rng: &mut SmallRng) -> Item {
    let peers = if rng.random_bool(0.15) {
        Peers::Any
    } else {
        Peers::Of((0..rng.random_range(0..4)).map(|_| peer(rng)).collect())
    };
    let action = if rng.random_bool(0.3) { Action::Deny } else { Action::Allow };
    Item { field: field(rng), action, peers, ports: ports(rng) }
}

fn requires(rng: &mut SmallRng) -> Vec<Requirement> {
    if rng.random_bool(0.05) { vec![requirement(rng)] } else { Vec::new() }
}

fn section(rng: &mut SmallRng) -> Section {
    let default_deny = rng.random_bool(0.8);
    let mut items: Vec<Item> = (0..rng.random_range(0..4)).map(|_| item(rng)).collect();
    // Some demand what isn't enforced; of these some are allowed without by another item.
    if default_deny && rng.random_bool(0.1) {
        let mut one = Item { ports: Ports::Of(vec![port(rng)]), ..item(rng) };
        if rng.random_bool(0.5) {
            items.push(Item { action: Action::Allow, ..one.clone() });
        }
        one.action = self::one(rng, &[Action::Inspect, Action::Inspect, Action::Authenticate]);
        items.push(one);
    }
    Section { default_deny, items, requires: requires(rng), deny_requires: requires(rng) }
}

/// Rules as Cilium's kinds of policy make them.
pub(super) fn policy(rng: &mut SmallRng, namespace: &str) -> Vec<Rule> {
    let rule = |rng: &mut SmallRng| {
        let half = |rng: &mut SmallRng| rng.random_bool(0.7).then(|| section(rng));
        let (ingress, egress) = (half(rng), half(rng));
        let mut subject = selector(rng);
        if !namespace.is_empty() {
            // A policy's rules concern its own namespace, as parsing makes sure.
            subject = subject.and(&[Requirement::equals(Key::new(K8S, NAMESPACE), namespace)]);
        }
        Rule { subject, ingress, egress, ..Rule::default() }
    };
    (0..rng.random_range(1..3)).map(|_| rule(rng)).collect()
}

/// A rule as `NetworkPolicy` makes it.
pub(super) fn network_policy(rng: &mut SmallRng, namespace: &str) -> Vec<Rule> {
    let half = |rng: &mut SmallRng| {
        let peer = |rng: &mut SmallRng| {
            if rng.random_bool(0.5) {
                return Peer::Endpoints(pods(rng));
            }
            let (prefix, except) = range(rng);
            Peer::Block { prefix, except }
        };
        let item = |rng: &mut SmallRng| {
            let peers = if rng.random_bool(0.1) {
                Peers::Any
            } else {
                Peers::Of((0..rng.random_range(1..4)).map(|_| peer(rng)).collect())
            };
            Item { field: field(rng), action: Action::Allow, peers, ports: ports(rng) }
        };
        let items = (0..rng.random_range(0..3)).map(|_| item(rng)).collect();
        rng.random_bool(0.7).then(|| Section { default_deny: true, items, ..Section::default() })
    };
    let (ingress, egress) = (half(rng), half(rng));
    let own = Requirement::equals(Key::new(K8S, NAMESPACE), namespace);
    vec![Rule { subject: selector(rng).and(&[own]), ingress, egress, ..Rule::default() }]
}

/// A rule as `ClusterNetworkPolicy` makes it; rules about addresses are rarer than others.
pub(super) fn cluster_policy(rng: &mut SmallRng) -> Vec<Rule> {
    let half = |rng: &mut SmallRng| {
        let peer = |rng: &mut SmallRng| match rng.random_range(0..10) {
            0..6 => Peer::Endpoints(pods(rng)),
            6 => Peer::Nodes(Selector::default()),
            _ => Peer::Block { prefix: prefix(rng), except: Vec::new() },
        };
        let item = |rng: &mut SmallRng| {
            let peers = if rng.random_bool(0.25) {
                Peers::Any
            } else {
                Peers::Of((0..rng.random_range(1..3)).map(|_| peer(rng)).collect())
            };
            let action = one(rng, &[Action::Allow, Action::Deny, Action::Deny, Action::Pass]);
            Item { field: field(rng), action, peers, ports: ports(rng) }
        };
        let items = (0..rng.random_range(1..4)).map(|_| item(rng)).collect();
        rng.random_bool(0.7).then(|| Section { items, ..Section::default() })
    };
    let (ingress, egress) = (half(rng), half(rng));
    let priority = rng.random_range(0..4);
    let tier = if rng.random_bool(0.6) { Tier::Admin(priority) } else { Tier::Baseline(priority) };
    vec![Rule { subject: pods(rng), tier, ingress, egress, ..Rule::default() }]
}

pub(super) fn group(rng: &mut SmallRng) -> CidrGroup {
    let mut labels = Labels::new();
    labels.insert(CIDR_GROUP, one(rng, &KEYS), one(rng, &VALUES));
    let prefixes = (0..rng.random_range(0..4)).map(|_| prefix(rng)).collect();
    CidrGroup { labels, prefixes }
}

pub(super) fn service(rng: &mut SmallRng) -> Service {
    let labels = BTreeMap::from([(one(rng, &KEYS).to_owned(), one(rng, &VALUES).to_owned())]);
    let addresses: BTreeSet<IpAddr> = (0..rng.random_range(0..3)).map(|_| address(rng)).collect();
    let selector = if rng.random_bool(0.5) {
        BTreeMap::new()
    } else {
        BTreeMap::from([(one(rng, &KEYS).to_owned(), one(rng, &VALUES).to_owned())])
    };
    Service { labels, selector, addresses }
}

/// How pods of a few identities name their ports.
pub(super) fn cluster_names(rng: &mut SmallRng) -> Vec<(NumericIdentity, PortName, u16)> {
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

/// How an endpoint names its ports.
pub(super) fn names(rng: &mut SmallRng) -> NamedPorts {
    let mut names = NamedPorts::new();
    for name in NAMES {
        if rng.random_bool(0.6) {
            names.insert((name.into(), TCP), one(rng, &PORTS));
        }
    }
    names
}
