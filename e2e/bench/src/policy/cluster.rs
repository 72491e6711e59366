//! A cluster of many policies, as its agent's core sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cilia_crds::{CiliumNetworkPolicy, Labels, NumericIdentity};
use cilia_policy::{Config, EndpointPolicy, Kind, NamedPorts, PolicyId, Repository, rule::Rule};
use serde_json::{Value, json};

/// Namespaces that policies and identities are spread over.
const NAMESPACES: u32 = 300;
/// Applications of a namespace.
const APPS: u32 = 20;
/// The number of the first identity.
const FIRST: u32 = 1000;
/// The number of the first one that comes later.
const LATER: u32 = 100_000;

/// How large a cluster is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) policies: u32,
    pub(crate) identities: u32,
    pub(crate) endpoints: u32,
}

/// A cluster, and the maps of a node's endpoints.
pub(crate) struct Cluster {
    repository: Repository,
    maps: Vec<(NumericIdentity, Arc<EndpointPolicy>)>,
    size: Size,
}

impl Cluster {
    /// Reads all objects.
    pub(crate) fn new(size: Size) -> Self {
        let mut repository = Repository::new(Config::default());
        for number in 0..size.identities {
            repository.set_identity(NumericIdentity(FIRST + number), labels(number));
        }
        for number in 0..size.policies {
            let (id, rules) = policy(number, 0);
            repository.set_policy(id, rules);
        }
        Self { repository, maps: Vec::new(), size }
    }

    /// Computes every map; how many entries there are.
    pub(crate) fn compile(&mut self) -> usize {
        for number in 0..self.size.endpoints {
            let identity = NumericIdentity(FIRST + number);
            self.maps.extend(
                self.repository.policy(identity, &NamedPorts::new()).map(|map| (identity, map)),
            );
        }
        self.maps.iter().map(|(_, map)| map.len()).sum()
    }

    /// An identity comes; its labels are those of others.
    pub(crate) fn add(&mut self, round: u32) {
        self.repository
            .set_identity(NumericIdentity(LATER + round), labels(round % self.size.identities));
        self.write();
    }

    /// It goes.
    pub(crate) fn remove(&mut self, round: u32) {
        self.repository.remove_identity(NumericIdentity(LATER + round));
        self.write();
    }

    /// A policy says something else.
    pub(crate) fn edit(&mut self, round: u32) {
        let (id, rules) = policy(round, 1);
        self.repository.set_policy(id, rules);
        self.write();
    }

    /// Finds what is to be written.
    fn write(&mut self) {
        for (identity, map) in &mut self.maps {
            let Some(now) = self.repository.policy(*identity, &NamedPorts::new()) else { continue };
            if !Arc::ptr_eq(&now, map) {
                std::hint::black_box(now.difference(map));
                *map = now;
            }
        }
    }
}

fn labels(number: u32) -> Arc<Labels> {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{}", number / NAMESPACES));
    labels.insert("k8s", "tier", if number.is_multiple_of(2) { "front" } else { "back" });
    labels.insert("k8s", "io.kubernetes.pod.namespace", &format!("ns-{}", number % NAMESPACES));
    labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
    Arc::new(labels)
}

/// A policy of one application: who may come on one port, and everything inside may be reached.
fn policy(number: u32, edition: u32) -> (PolicyId, Vec<Rule>) {
    let namespace = format!("ns-{}", number % NAMESPACES);
    let app = number / NAMESPACES % APPS;
    let from = json!({"matchLabels": {"app": format!("app-{}", (app + 1) % APPS)}});
    let other = json!({"matchLabels":
        {"tier": "front", "k8s:io.kubernetes.pod.namespace": format!("ns-{}", number % 7)}});
    let port = (1000 + number % 50 + 100 * edition).to_string();
    let spec = json!({"endpointSelector": {"matchLabels": {"app": format!("app-{app}")}},
        "ingress": [{"fromEndpoints": [from, other],
            "toPorts": [{"ports": [{"port": port, "protocol": "TCP"}]}]}],
        "egress": [{"toEntities": ["cluster"]}]});
    (id(number, &namespace), rules(&spec, &namespace))
}

fn id(number: u32, namespace: &str) -> PolicyId {
    PolicyId { kind: Kind::Cilium, namespace: namespace.into(), name: format!("p{number}").into() }
}

fn rules(spec: &Value, namespace: &str) -> Vec<Rule> {
    let policy = json!({"metadata": {"name": "p", "namespace": namespace}, "spec": spec});
    let policy: CiliumNetworkPolicy = serde_json::from_value(policy).expect("a policy");
    cilia_policy::cilium(&policy, &Config::default()).expect("a valid policy").rules
}

/// From one policy with 1,000 allowed and 1,000 denied prefixes to the entries of one map.
pub(crate) fn prefixes() -> (Duration, usize) {
    let prefixes = |first: u32| -> Vec<String> {
        (0..1000).map(|n| format!("10.{first}.{}.{}/30", n / 64, n % 64 * 4)).collect()
    };
    let spec = json!({"endpointSelector": {}, "egress": [{"toCIDR": prefixes(0)}],
        "egressDeny": [{"toCIDR": prefixes(1)}]});
    let mut repository = Repository::new(Config::default());
    repository.set_identity(NumericIdentity(FIRST), labels(0));
    let start = Instant::now();
    repository.set_policy(id(0, "ns-0"), rules(&spec, "ns-0"));
    let map = repository.policy(NumericIdentity(FIRST), &NamedPorts::new());
    let entries = map.map_or(0, |map| map.difference(&EndpointPolicy::default()).write.len());
    (start.elapsed(), entries)
}
