//! How long the core takes on a large cluster, and how much it keeps.
//!
//! `cargo run --release -p cilia-policy --example scale`: 30,000 policies, 6,000 identities and 100
//! local endpoints; and 1,000 allowed and 1,000 denied prefixes for one endpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cilia_crds::{CiliumNetworkPolicy, Labels, NumericIdentity};
use cilia_policy::{Config, Kind, NamedPorts, PolicyId, Repository};
use serde_json::{Value, json};

const POLICIES: usize = 30_000;
const IDENTITIES: u32 = 6_000;
const NAMESPACES: u32 = 300;
const LOCAL: u32 = 100;

fn labels(number: u32) -> Arc<Labels> {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{}", number / NAMESPACES));
    labels.insert("k8s", "tier", if number.is_multiple_of(2) { "front" } else { "back" });
    labels.insert("k8s", "io.kubernetes.pod.namespace", &format!("ns-{}", number % NAMESPACES));
    labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
    Arc::new(labels)
}

fn rules(spec: &Value, namespace: &str) -> Vec<cilia_policy::rule::Rule> {
    let policy = json!({"metadata": {"name": "p", "namespace": namespace}, "spec": spec});
    let policy: CiliumNetworkPolicy = serde_json::from_value(policy).expect("a policy");
    cilia_policy::cilium(&policy, &Config::default()).expect("a valid policy").rules
}

fn id(number: usize, namespace: &str) -> PolicyId {
    PolicyId { kind: Kind::Cilium, namespace: namespace.into(), name: format!("p{number}").into() }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

fn quantile(times: &mut [Duration], of: f64) -> Duration {
    times.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let at = ((times.len() - 1) as f64 * of) as usize;
    times[at]
}

fn main() {
    let before = resident();
    let mut repository = Repository::new(Config::default());
    for number in 0..IDENTITIES {
        repository.set_identity(NumericIdentity(1000 + number), labels(number));
    }
    for number in 0..POLICIES {
        let namespace = format!("ns-{}", number % NAMESPACES as usize);
        let app = number / NAMESPACES as usize % 20;
        let from = json!({"matchLabels": {"app": format!("app-{}", (app + 1) % 20)}});
        let other = json!({"matchLabels": {"tier": "front", "k8s:io.kubernetes.pod.namespace": format!("ns-{}", number % 7)}});
        let spec = json!({"endpointSelector": {"matchLabels": {"app": format!("app-{app}")}},
            "ingress": [{"fromEndpoints": [from, other], "toPorts": [{"ports": [{"port": (1000 + number % 50).to_string(), "protocol": "TCP"}]}]}],
            "egress": [{"toEntities": ["cluster"]}]});
        repository.set_policy(id(number, &namespace), rules(&spec, &namespace));
    }
    println!(
        "{POLICIES} policies and {IDENTITIES} identities: {} MiB",
        (resident() - before) / 1024
    );
    let start = Instant::now();
    let mut maps = Vec::new();
    for number in 0..LOCAL {
        maps.push(
            repository.policy(NumericIdentity(1000 + number), &NamedPorts::new()).expect("known"),
        );
    }
    let entries: usize = maps.iter().map(|map| map.len()).sum();
    println!(
        "compiled {LOCAL} endpoints, {entries} entries: {:?}, {} MiB",
        start.elapsed(),
        (resident() - before) / 1024
    );
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for round in 0..500 {
        let number = NumericIdentity(100_000 + round);
        let start = Instant::now();
        repository.set_identity(number, labels(round));
        for (local, map) in maps.iter_mut().enumerate() {
            let identity = NumericIdentity(1000 + u32::try_from(local).expect("small"));
            let now = repository.policy(identity, &NamedPorts::new()).expect("known");
            if !Arc::ptr_eq(&now, map) {
                let _ = now.difference(map);
                *map = now;
            }
        }
        added.push(start.elapsed());
        let start = Instant::now();
        repository.remove_identity(number);
        removed.push(start.elapsed());
        for (local, map) in maps.iter_mut().enumerate() {
            let identity = NumericIdentity(1000 + u32::try_from(local).expect("small"));
            *map = repository.policy(identity, &NamedPorts::new()).expect("known");
        }
    }
    println!(
        "one identity more: p50 {:?}, p99 {:?}",
        quantile(&mut added, 0.5),
        quantile(&mut added, 0.99)
    );
    println!(
        "one identity less: p50 {:?}, p99 {:?}",
        quantile(&mut removed, 0.5),
        quantile(&mut removed, 0.99)
    );

    let prefixes = |first: usize| -> Vec<String> {
        (0..1000).map(|n| format!("10.{first}.{}.{}/30", n / 64, n % 64 * 4)).collect()
    };
    let spec = json!({"endpointSelector": {}, "egress": [{"toCIDR": prefixes(0)}], "egressDeny": [{"toCIDR": prefixes(1)}]});
    let mut repository = Repository::new(Config::default());
    repository.set_identity(NumericIdentity(1000), labels(0));
    repository.set_policy(id(0, "ns-0"), rules(&spec, "ns-0"));
    let start = Instant::now();
    let map = repository.policy(NumericIdentity(1000), &NamedPorts::new()).expect("known");
    println!("2,000 prefixes, {} entries: {:?}", map.len(), start.elapsed());
}
