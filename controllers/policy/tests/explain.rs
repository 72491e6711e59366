//! Explanations: from manifests to reasons, and that they agree with the maps.

use cilia_crds::Labels;
use cilia_policy::testing::{World, seeds};
use cilia_policy::{
    Config, Fit, Flow, Manifests, Party, PodMeta, Verdict, cuts, explain, l4::protocol::TCP,
};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

fn labels(pod: PodMeta<'_>) -> Labels {
    let mut labels = Labels::new();
    pod.labels.iter().for_each(|(key, value)| labels.insert("k8s", key, value));
    labels.insert("k8s", "io.kubernetes.pod.namespace", pod.namespace);
    labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
    for (key, value) in pod.namespace_labels {
        labels.insert("k8s", &format!("io.cilium.k8s.namespace.labels.{key}"), value);
    }
    labels
}

fn manifests(policies: &[Value]) -> Manifests {
    manifests_with(policies, &Config::default())
}

fn manifests_with(policies: &[Value], config: &Config) -> Manifests {
    let pod = |name: &str, address: &str| {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}, "status": {"podIP": address}})
    };
    let deployment = json!({"kind": "Deployment", "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}}}});
    let mut objects = vec![
        json!({"kind": "List", "items": [pod("web", "10.0.0.1"), pod("cart", "10.0.0.2"), deployment]}),
    ];
    objects.extend(policies.iter().cloned());
    Manifests::read(&objects, config, &labels)
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

fn flow(cluster: &Manifests, from: &str, to: &str, port: u16) -> Flow {
    let party = |name: &str| cluster.party(name).expect("a known side");
    Flow { from: party(from), to: party(to), proto: TCP, port }
}

#[test]
fn names_the_rules_and_what_to_add() {
    let spec = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [
        {"fromEndpoints": [{"matchLabels": {"app": "cart"}}], "toPorts": [{"ports": [{"port": "8080", "protocol": "TCP"}]}]}]});
    let mut cluster = manifests(&[policy("web", &spec)]);
    assert_eq!(cluster.faults, []);
    let asked = flow(&cluster, "shop/cart", "10.0.0.1", 8080);
    let told = explain(&mut cluster.repository, &asked);
    assert!(told.allowed && !told.egress.enforced && told.ingress.enforced, "{told}");
    let rule = &told.ingress.by[0];
    assert_eq!((&*rule.policy, &*rule.field), ("CiliumNetworkPolicy shop/web", "spec.ingress[0]"));

    let asked = flow(&cluster, "shop/db", "shop/web", 8080);
    let told = explain(&mut cluster.repository, &asked);
    assert_eq!(told.ingress.verdict, Verdict::NotAllowed, "{told}");
    let near = &told.ingress.near[0];
    assert_eq!(near.misses, ["the peer has not any:app=cart"], "{told}");
    // What it says to add is what helps.
    let spec = told.ingress.advice.clone().and_then(|advice| advice.spec).expect("a rule to add");
    assert_eq!(spec["ingress"][0]["fromEndpoints"], json!([{"matchLabels": {"app": "db"}}]));
    let mut helped = manifests(&[policy("more", &spec)]);
    let asked = flow(&helped, "shop/db", "shop/web", 8080);
    assert!(explain(&mut helped.repository, &asked).allowed);

    let deny = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingressDeny": [{"fromEndpoints": [{}]}]});
    let mut denied = manifests(&[policy("no", &deny)]);
    let asked = flow(&denied, "shop/cart", "shop/web", 8080);
    let told = explain(&mut denied.repository, &asked);
    assert_eq!(
        (told.ingress.verdict, &*told.ingress.by[0].field),
        (Verdict::Denied, "spec.ingressDeny[0]"),
        "{told}"
    );
    assert!(told.to_string().contains("narrow or remove CiliumNetworkPolicy shop/no"), "{told}");
    assert!(serde_json::to_value(&told).is_ok());

    let mut before = manifests(&[]);
    let flows = [
        flow(&before, "shop/cart", "shop/web", 80),
        flow(&before, "shop/cart", "shop/db", 80),
        flow(&before, "192.0.2.1", "shop/web", 80),
    ];
    let cut = cuts(&mut before.repository, &mut denied.repository, &flows);
    assert_eq!(cut.iter().map(|one| one.flow).collect::<Vec<_>>(), [0, 2], "{cut:#?}");
    assert!(before.party("shop/nobody").expect_err("nobody").contains("is not a pod"));
}

#[test]
fn manifests_have_nodes_tiers_and_blocks_of_addresses() {
    let node = |name: &str, role: &str, address: &str| {
        let labels = json!({"role": role, "kubernetes.io/hostname": name});
        json!({"kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    };
    let host = json!({"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "edge"}, "spec": {
        "nodeSelector": {"matchLabels": {"role": "edge"}},
        "ingress": [{"fromEntities": ["cluster"], "toPorts": [{"ports": [{"port": "22", "protocol": "TCP"}]}]}]}});
    let tier = |priority: i32, action: &str, peer: Value| {
        json!({"kind": "ClusterNetworkPolicy", "metadata": {"name": format!("t{priority}")}, "spec": {
            "tier": "Admin", "priority": priority,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
            "ingress": [{"action": action, "from": [peer]}]}})
    };
    let pods = |app: &str| json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}});
    let block = json!({"kind": "NetworkPolicy", "metadata": {"name": "db", "namespace": "shop"}, "spec": {
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.2/32"]}}]}]}});
    let objects = [
        node("n1", "edge", "172.16.0.1"),
        node("n2", "inner", "172.16.0.2"),
        host,
        tier(1, "Accept", pods("cart")),
        tier(2, "Deny", json!({"namespaces": {}})),
        block,
    ];
    let mut cluster =
        manifests_with(&objects, &Config { host_firewall: true, ..Config::default() });
    assert_eq!(cluster.faults, []);
    assert!(cluster.stand_on("n2") && cluster.stand_on("n1") && !cluster.stand_on("n3"));
    for (from, to, port, allowed) in [
        ("shop/web", "node/n1", 22, true),
        ("shop/web", "node/n1", 23, false),
        ("192.0.2.1", "node/n1", 22, false),
        ("node/n2", "172.16.0.1", 22, true),
        ("shop/web", "node/n2", 23, true),
        ("shop/cart", "shop/web", 80, true),
        ("shop/db", "shop/web", 80, false),
        ("192.0.2.1", "shop/web", 80, true),
        ("shop/web", "shop/db", 80, true),
        ("shop/cart", "shop/db", 80, false),
        ("192.0.2.1", "shop/db", 80, false),
    ] {
        let asked = flow(&cluster, from, to, port);
        let told = explain(&mut cluster.repository, &asked);
        assert_eq!(told.allowed, allowed, "{from} to {to}:{port}: {told}");
    }
    // A rule for all nodes would close the others.
    let asked = flow(&cluster, "shop/web", "node/n1", 23);
    let told = explain(&mut cluster.repository, &asked).to_string();
    let own = r#"{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":"n1"}}"#;
    assert!(told.contains(own) || told.contains(&own[1..]), "{told}");
}

#[test]
fn explanations_and_aggregation_agree_with_the_maps() {
    let (mut asked, mut before, mut after) = (0, 0, 0);
    for seed in seeds(60) {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let world = World::new(rng);
        let mut repository = world.repository();
        for case in world.cases(rng, &mut repository, 3) {
            let small = case.map.aggregated();
            assert!(small.len() <= case.map.len(), "CILIA_SEED={seed}");
            before += case.map.len();
            after += small.len();
            let enough = if small.len() < case.map.len() {
                let fit = case.map.fit(small.len());
                assert!(matches!(fit, Fit::Aggregated(_)), "CILIA_SEED={seed}: {fit:?}");
                small.len()
            } else {
                case.map.len()
            };
            if enough > 0 {
                assert!(matches!(case.map.fit(enough - 1), Fit::Overflow { .. }));
            }
            for packet in &case.packets {
                let (identity, proto, port) = (packet.identity.0, packet.proto, packet.port);
                let block = packet.block.map(|block| block.0);
                let ask = |map: &cilia_policy::EndpointPolicy| {
                    map.decide(packet.direction, identity, block, proto, port).0
                };
                let passes = |verdict| verdict == Verdict::Allowed;
                assert_eq!(
                    passes(ask(&case.map)),
                    passes(ask(&small)),
                    "CILIA_SEED={seed}: {packet:?}"
                );
            }
            for packet in case.packets.iter().step_by(7) {
                let own = Party {
                    identity: Some(case.subject),
                    ports: case.ports.clone(),
                    ..Party::default()
                };
                let pod =
                    packet.identity.0 < 1 << 24 && packet.identity.0 != 2 && packet.identity.0 < 9
                        || packet.identity.0 >= 256 && packet.identity.0 < 1 << 24;
                let other = Party {
                    identity: pod.then_some(packet.identity),
                    address: Some(packet.address),
                    ..Party::default()
                };
                let ingress = packet.direction == cilia_policy::Direction::Ingress;
                let (from, to) = if ingress { (other, own) } else { (own, other) };
                let flow = Flow { from, to, proto: packet.proto, port: packet.port };
                let told = explain(&mut repository, &flow);
                let part = if ingress { &told.ingress } else { &told.egress };
                let block = packet.block.map(|block| block.0);
                let (got, _) = case.map.decide(
                    packet.direction,
                    packet.identity.0,
                    block,
                    packet.proto,
                    packet.port,
                );
                assert_eq!(part.verdict, got, "CILIA_SEED={seed}: {packet:?}\n{told}");
                if got == Verdict::Denied
                    && matches!(packet.want, cilia_policy::testing::Want::Exactly(_))
                {
                    assert!(!part.by.is_empty(), "CILIA_SEED={seed}: {packet:?}\n{told}");
                }
                asked += 1;
            }
        }
    }
    println!("{asked} explained; {before} entries aggregated to {after}");
}
