//! Policies with random damage: never a panic, and never more allowed than what could be read says.

use std::sync::Arc;

use cilia_crds::{CiliumNetworkPolicy, Labels, NumericIdentity};
use cilia_policy::{Config, Direction, Kind, NamedPorts, PolicyId, Repository, Verdict};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

/// A policy that lets pods in on port 80 only, and out to one range only, in many words.
fn policy() -> Value {
    json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [
            {"fromEndpoints": [{"matchLabels": {"k8s:app": "client"}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}],
             "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]},
            {"fromEntities": ["remote-node"], "icmps": [{"fields": [{"type": 8, "family": "IPv4"}]}]},
        ],
        "egress": [{"toCIDRSet": [{"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}],
            "toPorts": [{"ports": [{"port": "443", "endPort": 450, "protocol": "TCP"}], "rules": {"http": [{"path": "/"}]}}]}],
        "egressDeny": [{"toEntities": ["world"], "toPorts": [{"ports": [{"port": "53", "protocol": "UDP"}]}]}],
    }})
}

/// Changes something somewhere in `value`.
fn damage(value: &mut Value, rng: &mut SmallRng) {
    let odd = [
        json!(null),
        json!(-1),
        json!(70000),
        json!(""),
        json!("*"),
        json!([]),
        json!({}),
        json!("k8s:"),
        json!(true),
        json!("0.0.0.0/0"),
    ];
    let deeper = rng.random_bool(0.85);
    match value {
        Value::Object(members) if deeper && !members.is_empty() => {
            let keys: Vec<String> = members.keys().cloned().collect();
            let key = keys.choose(rng).expect("a member");
            match rng.random_range(0..12) {
                0 => {
                    members.remove(key);
                }
                1 => {
                    let moved = members.remove(key).unwrap_or_default();
                    members.insert(keys.choose(rng).expect("a member").clone(), moved);
                }
                _ => damage(members.get_mut(key).expect("a member"), rng),
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = rng.random_range(0..items.len());
            match rng.random_range(0..12) {
                0 => {
                    items.remove(at);
                }
                1 => items.push(items[at].clone()),
                _ => damage(&mut items[at], rng),
            }
        }
        Value::String(text) if rng.random_bool(0.6) => {
            let mut characters: Vec<char> = text.chars().collect();
            let at = rng.random_range(0..=characters.len());
            characters.insert(
                at,
                *['0', '9', '/', ':', '.', '-', 'é', '\0', ' '].choose(rng).expect("some"),
            );
            *text = characters.into_iter().collect();
        }
        other => *other = odd.choose(rng).expect("some").clone(),
    }
}

#[test]
fn damage_is_named_or_harmless() {
    let (mut valid, mut refused, mut unreadable) = (0, 0, 0);
    for seed in 0..10_000 {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut object = policy();
        for _ in 0..rng.random_range(1..4) {
            damage(&mut object["spec"], rng);
        }
        let Ok(policy) = serde_json::from_value::<CiliumNetworkPolicy>(object.clone()) else {
            unreadable += 1;
            continue;
        };
        let parsed = match cilia_policy::cilium(&policy, &Config::default()) {
            Ok(parsed) => parsed,
            Err(error) => {
                refused += 1;
                assert!(
                    error.field.starts_with("spec") && !error.fault.is_empty(),
                    "seed {seed}: {error}"
                );
                continue;
            }
        };
        valid += 1;
        let mut repository = Repository::new(Config::default());
        let pod = |app: &str, namespace: &str| {
            let mut labels = Labels::new();
            labels.insert("k8s", "app", app);
            labels.insert("k8s", "io.kubernetes.pod.namespace", namespace);
            labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
            Arc::new(labels)
        };
        repository.set_identity(NumericIdentity(300), pod("web", "shop"));
        repository.set_identity(NumericIdentity(301), pod("stranger", "elsewhere"));
        let id = PolicyId { kind: Kind::Cilium, namespace: "shop".into(), name: "p".into() };
        repository.set_policy(id, parsed.rules);
        let map =
            repository.policy(NumericIdentity(300), &NamedPorts::new()).expect("a known identity");
        // Pods of another namespace are never let in by a policy that doesn't name it or everybody.
        let text = object.to_string();
        let names_nobody = !text.contains("io.kubernetes") && !text.contains("\"all\"");
        let peers =
            text.matches("fromEndpoints").count() == 1 && text.matches("fromEntities").count() == 1;
        if map.ingress.enforced && names_nobody && peers && !text.contains("{\"toPorts\"") {
            let verdict = map.verdict(Direction::Ingress, 301, 6, 81);
            assert_ne!(verdict, Verdict::Allowed, "seed {seed}: {text}");
        }
    }
    println!("{valid} valid, {refused} refused, {unreadable} unreadable");
    assert!(valid > 500 && refused > 500, "{valid} valid, {refused} refused");
}

/// Policies of the other kinds, in many words.
fn others() -> [Value; 3] {
    let clusterwide = json!({"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"}, "spec": {
        "nodeSelector": {"matchLabels": {"zone": "a"}},
        "log": {"value": "nodes"},
        "ingress": [{"fromNodes": [{"matchLabels": {"zone": "a"}}], "toPorts": [{"ports": [{"port": "http", "protocol": "TCP"}]}]},
            {"fromCIDRSet": [{"cidrGroupRef": "net", "except": ["192.0.2.0/25"]}, {"cidrGroupSelector": {"matchLabels": {"team": "x"}}}]}],
        "egress": [{"toServices": [{"k8sService": {"serviceName": "api", "namespace": "shop"}},
            {"k8sServiceSelector": {"selector": {"matchLabels": {"tier": "front"}}}}]}],
        "ingressDeny": [{"fromEntities": ["world"], "icmps": [{"fields": [{"type": 0}]}]}],
    }});
    let block = json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}});
    let network = json!({"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "shop"}, "spec": {
        "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [block, {"podSelector": {"matchLabels": {"app": "client"}},
            "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}}],
            "ports": [{"port": "http"}, {"port": 8000, "endPort": 9000, "protocol": "UDP"}]}],
        "egress": [{"to": [block]}],
    }});
    let cluster = json!({"kind": "ClusterNetworkPolicy", "metadata": {"name": "p"}, "spec": {
        "tier": "Admin", "priority": 10, "subject": {"namespaces": {}},
        "ingress": [
            {"name": "one", "action": "Accept", "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "client"}}}}],
             "protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"destinationNamedPort": "http"}]},
            {"action": "Pass", "from": [{"namespaces": {"matchLabels": {"team": "a"}}}]},
            {"action": "Deny", "from": [{"namespaces": {}}]}],
        "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8", "192.0.2.0/24"]}, {"nodes": {}}],
            "protocols": [{"udp": {"destinationPort": {"range": {"start": 5, "end": 500}}}}]}],
    }});
    [clusterwide, network, cluster]
}

#[test]
fn damage_of_every_kind_is_named_or_harmless() {
    let config = Config { host_firewall: true, node_selectors: true, ..Config::default() };
    let (mut valid, mut refused) = (0, 0);
    for seed in 0..3_000 {
        for mut object in others() {
            let rng = &mut SmallRng::seed_from_u64(seed);
            for _ in 0..rng.random_range(1..4) {
                damage(&mut object["spec"], rng);
            }
            let (id, parsed) = cilia_policy::read(&object, &config).expect("a policy");
            let parsed = match parsed {
                Ok(parsed) => parsed,
                Err(fault) => {
                    refused += 1;
                    assert!(!fault.is_empty(), "seed {seed}: {object}");
                    continue;
                }
            };
            valid += 1;
            let mut repository = Repository::new(config.clone());
            let node = cilia_policy::Node {
                own: true,
                labels: [("zone".to_owned(), "a".to_owned())].into(),
                ..Default::default()
            };
            repository.set_node("n1", Some(node));
            for (number, app) in [(300, "web"), (301, "stranger")] {
                let mut labels = Labels::new();
                labels.insert("k8s", "app", app);
                labels.insert("k8s", "io.kubernetes.pod.namespace", "shop");
                repository.set_identity(NumericIdentity(number), Arc::new(labels));
            }
            let rules = parsed.rules.len();
            repository.set_policy(id.clone(), parsed.rules);
            for subject in [1, 300] {
                let map = repository.policy(NumericIdentity(subject), &NamedPorts::new());
                let map = map.expect("a known identity");
                for (key, entry) in map.entries() {
                    let known = entry.cookie == 0 || !repository.origins(entry.cookie).is_empty();
                    assert!(known && key.port_prefix <= 16, "seed {seed}: {object}");
                }
                assert!(map.fit(16384) == cilia_policy::Fit::Fits, "seed {seed}: {object}");
            }
            repository.remove_policy(&id);
            for subject in [1, 300] {
                let map = repository.policy(NumericIdentity(subject), &NamedPorts::new());
                let map = map.expect("a known identity");
                assert_eq!(map.len(), 2, "seed {seed}: {rules} rules left something: {object}");
            }
        }
    }
    println!("{valid} valid, {refused} refused");
    assert!(valid > 500 && refused > 500, "{valid} valid, {refused} refused");
}
