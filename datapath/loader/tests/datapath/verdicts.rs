//! The classifier itself against the meaning of the rules, over random policies, peers and packets.
//!
//! Policies are written as users write them, compiled by the core, put into the kernel's maps, and asked
//! by real packets through the programs; what must come out is read off the rules one by one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cilia_crds::{CiliumNetworkPolicy, Labels, NumericIdentity};
use cilia_loader::maps::reason;
use cilia_loader::{Hook, PolicyEntry, PolicyKey, RemoteEndpoint, converge};
use cilia_policy::{Config, Kind, PolicyId, Repository};
use ipnet::IpNet;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::bench::{A, A4, A6, Bench, ID_A, ip};
use crate::packet::{ICMP, ICMPV6, Packet, SCTP, TCP, UDP};

/// Packets of the default run; the whole takes a few seconds. More kinds of policies are in `worlds`.
const PACKETS: usize = 8_000;
const PACKETS_A_POLICY: usize = 400;
const PODS: u32 = 12;
/// Where a packet to the pod came from, as far as the programs are told.
const ETH0: u32 = 9;

#[derive(Debug, Clone)]
enum Who {
    Everybody,
    /// Pods of these groups.
    Groups(Vec<u32>),
    Cidr(IpNet, Vec<IpNet>),
}

#[derive(Debug, Clone)]
enum What {
    Everything,
    Ports(Vec<(u8, u16, u16)>),
    IcmpType(bool, u8),
}

#[derive(Debug, Clone)]
struct Item {
    egress: bool,
    deny: bool,
    who: Who,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Pod(u32),
    Outside(u8),
}

fn group(pod: u32) -> u32 {
    pod % 4
}

impl Side {
    fn address(self, v6: bool) -> IpAddr {
        match (self, v6) {
            (Self::Pod(pod), false) => Ipv4Addr::from(0x0a01_0000 + pod).into(),
            (Self::Pod(pod), true) => Ipv6Addr::from((0xfd01 << 112) + u128::from(pod)).into(),
            (Self::Outside(last), false) => Ipv4Addr::new(192, 0, 2, last).into(),
            (Self::Outside(last), true) => {
                Ipv6Addr::from((0x2001_0db8 << 96) + u128::from(last)).into()
            }
        }
    }
}

fn random_item(rng: &mut SmallRng) -> Item {
    let who = match rng.random_range(0..6) {
        0 => Who::Everybody,
        1..=3 => Who::Groups((0..rng.random_range(1..3)).map(|_| rng.random_range(0..4)).collect()),
        _ => {
            let net = random_net(rng, &[24, 25, 28, 32]);
            let inside = |net: &IpNet| {
                let mut rng = SmallRng::seed_from_u64(u64::from(net.prefix_len()));
                let bits = if net.addr().is_ipv4() { 30 } else { 126 };
                IpNet::new(net.addr(), bits.max(net.prefix_len() + rng.random_range(1..3))).ok()
            };
            let except = rng.random_bool(0.4).then(|| inside(&net)).flatten();
            Who::Cidr(net, except.filter(|one| net.contains(one)).into_iter().collect())
        }
    };
    let what = match rng.random_range(0..6) {
        0 | 1 => What::Everything,
        2 => What::IcmpType(rng.random(), [0, 8, 128, 129][rng.random_range(0..4)]),
        _ => {
            let port = |rng: &mut SmallRng| {
                let proto = [0, TCP, UDP, SCTP][rng.random_range(0..4)];
                let first = [0, 1, 53, 79, 80, 1024, 8080][rng.random_range(0..7)];
                let last = first + [0, 0, 1, 7, 1000][rng.random_range(0..5)];
                (proto, first, if first == 0 { 0 } else { last })
            };
            What::Ports((0..rng.random_range(1..4)).map(|_| port(rng)).collect())
        }
    };
    Item { egress: rng.random(), deny: rng.random_bool(0.3), who, what }
}

fn random_net(rng: &mut SmallRng, bits: &[u8]) -> IpNet {
    let side = Side::Outside([0, 1, 2, 16, 128, 200][rng.random_range(0..6)]);
    let v6: bool = rng.random();
    let bits = bits[rng.random_range(0..bits.len())] + if v6 { 96 } else { 0 };
    IpNet::new(side.address(v6), bits).unwrap().trunc()
}

impl Item {
    /// The item as a user writes it.
    fn written(&self) -> Value {
        let way = if self.egress { "to" } else { "from" };
        let mut item = serde_json::Map::new();
        match &self.who {
            Who::Everybody => {
                item.insert(format!("{way}Entities"), json!(["all"]));
            }
            Who::Groups(groups) => {
                let selector = |group| json!({"matchLabels": {"group": format!("g{group}")}});
                let selectors: Vec<_> = groups.iter().map(selector).collect();
                item.insert(format!("{way}Endpoints"), json!(selectors));
            }
            Who::Cidr(net, except) => {
                let set = json!([{"cidr": net, "except": except}]);
                item.insert(format!("{way}CIDRSet"), set);
            }
        }
        match &self.what {
            What::Everything => {}
            What::Ports(ports) => {
                let port = |(proto, first, last): &(u8, u16, u16)| {
                    let proto = cilia_policy::l4::protocol::name(*proto).unwrap();
                    json!({"port": first.to_string(), "endPort": last, "protocol": proto})
                };
                let ports: Vec<_> = ports.iter().map(port).collect();
                item.insert("toPorts".into(), json!([{"ports": ports}]));
            }
            What::IcmpType(v6, kind) => {
                let family = if *v6 { "IPv6" } else { "IPv4" };
                let fields = json!([{"fields": [{"family": family, "type": kind}]}]);
                item.insert("icmps".into(), fields);
            }
        }
        Value::Object(item)
    }

    /// Whether the item is about a packet.
    fn meets(&self, egress: bool, side: Side, v6: bool, proto: u8, port: u16) -> bool {
        let who = match (&self.who, side) {
            (Who::Everybody, _) => true,
            (Who::Groups(groups), Side::Pod(pod)) => groups.contains(&group(pod)),
            // Prefixes are about the world, never about pods.
            (Who::Groups(_), Side::Outside(_)) | (Who::Cidr(..), Side::Pod(_)) => false,
            (Who::Cidr(net, except), Side::Outside(_)) => {
                let address = side.address(v6);
                net.contains(&address) && !except.iter().any(|net| net.contains(&address))
            }
        };
        let what = match &self.what {
            What::Everything => true,
            What::Ports(ports) => ports.iter().any(|(named, first, last)| {
                let proto =
                    if *named == 0 { matches!(proto, TCP | UDP | SCTP) } else { *named == proto };
                proto && (*first == 0 || (*first..=*last).contains(&port))
            }),
            What::IcmpType(v6, kind) => {
                proto == (if *v6 { ICMPV6 } else { ICMP }) && port == u16::from(*kind)
            }
        };
        self.egress == egress && who && what
    }
}

/// What must become of a packet: nothing, or a drop for a reason.
fn meaning(
    items: &[Item],
    egress: bool,
    side: Side,
    v6: bool,
    proto: u8,
    port: u16,
) -> Result<(), u8> {
    let mut of_direction = items.iter().filter(|item| item.egress == egress).peekable();
    if of_direction.peek().is_none() {
        return Ok(());
    }
    let meeting: Vec<_> =
        of_direction.filter(|item| item.meets(egress, side, v6, proto, port)).collect();
    if meeting.iter().any(|item| item.deny) {
        Err(reason::POLICY_DENY)
    } else if meeting.is_empty() {
        Err(reason::POLICY)
    } else {
        Ok(())
    }
}

/// The labels of the pod that has the policy, and of its peers.
fn labels(group: &str) -> Arc<Labels> {
    let mut labels = Labels::default();
    labels.insert("k8s", "group", group);
    labels.insert("k8s", "io.kubernetes.pod.namespace", "test");
    labels.insert("k8s", "io.cilium.k8s.policy.cluster", "default");
    Arc::new(labels)
}

/// Puts the policy into the maps as the agent would.
fn realize(bench: &Bench, items: &[Item], config: &Config) {
    let section = |egress: bool, deny: bool| -> Vec<Value> {
        let of = items.iter().filter(|item| item.egress == egress && item.deny == deny);
        of.map(Item::written).collect()
    };
    let policy = json!({"metadata": {"name": "p", "namespace": "test"}, "spec": {
        "endpointSelector": {"matchLabels": {"group": "subject"}},
        "ingress": section(false, false), "ingressDeny": section(false, true),
        "egress": section(true, false), "egressDeny": section(true, true)}});
    let parsed: CiliumNetworkPolicy = serde_json::from_value(policy.clone()).unwrap();
    let parsed = cilia_policy::cilium(&parsed, config);
    let parsed = parsed.unwrap_or_else(|error| panic!("{error}: {policy}"));
    let mut repository = Repository::new(config.clone());
    for pod in 0..PODS {
        repository.set_identity(NumericIdentity(1000 + pod), labels(&format!("g{}", group(pod))));
    }
    repository.set_identity(NumericIdentity(ID_A), labels("subject"));
    let id = PolicyId { kind: Kind::Cilium, namespace: "test".into(), name: "p".into() };
    repository.set_policy(id, parsed.rules);
    let map = repository.policy(NumericIdentity(ID_A), &BTreeMap::new()).unwrap();
    let entries: BTreeMap<PolicyKey, PolicyEntry> = map
        .entries()
        .map(|(key, entry)| {
            let cilia_policy::PolicyKey { identity, egress, proto, port, port_prefix } = key;
            let key = PolicyKey { identity, egress, proto, port, port_prefix };
            (key, PolicyEntry { deny: entry.deny, view: entry.view, cookie: entry.cookie })
        })
        .collect();
    converge(&bench.datapath.policy(A).unwrap(), &entries).unwrap();
    let pods = (0..PODS).flat_map(|pod| {
        [false, true].map(|v6| (IpNet::from(Side::Pod(pod).address(v6)), 1000 + pod))
    });
    let prefixes = repository.prefixes();
    let prefixes = prefixes.into_iter().map(|(net, identity)| (net, identity.0));
    let addresses: BTreeMap<(IpAddr, u8), RemoteEndpoint> = pods
        .chain(prefixes)
        .map(|(net, identity)| {
            let entry = RemoteEndpoint { identity, ..RemoteEndpoint::default() };
            ((net.addr(), net.prefix_len()), entry)
        })
        .collect();
    converge(&bench.datapath.ipcache(), &addresses).unwrap();
}

#[test]
fn the_programs_do_what_the_rules_mean() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("CILIA_SEED").unwrap_or(1);
    let packets = number("CILIA_PACKETS").and_then(|n| usize::try_from(n).ok()).unwrap_or(PACKETS);
    println!("CILIA_SEED={seed} CILIA_PACKETS={packets}");
    let bench = Bench::new();
    let config = Config { dual_stack: true, ..Config::default() };
    let (mut asked, mut passed) = (0, 0);
    for round in 0..packets.div_ceil(PACKETS_A_POLICY) {
        let rng = &mut SmallRng::seed_from_u64(seed + round as u64);
        let items: Vec<Item> = (0..rng.random_range(1..12)).map(|_| random_item(rng)).collect();
        realize(&bench, &items, &config);
        for _ in 0..PACKETS_A_POLICY {
            let (egress, v6): (bool, bool) = (rng.random(), rng.random());
            let side = if rng.random_bool(0.6) {
                Side::Pod(rng.random_range(0..PODS))
            } else {
                Side::Outside([0, 1, 2, 3, 16, 17, 129, 130, 255][rng.random_range(0..9)])
            };
            let icmp = if v6 { ICMPV6 } else { ICMP };
            let proto = [TCP, UDP, SCTP, icmp][rng.random_range(0..4)];
            let port: u16 = match proto {
                // Echoes have identifiers; other types between two addresses are one connection.
                ICMP => [0, 8][rng.random_range(0..2)],
                ICMPV6 => [128, 129][rng.random_range(0..2)],
                _ => [1, 53, 54, 79, 80, 81, 86, 1024, 2024, 2025, 8080, 60_000]
                    [rng.random_range(0..12)],
            };
            let own = ip(if v6 { A6 } else { A4 });
            let (from, to) = if egress { (own, side.address(v6)) } else { (side.address(v6), own) };
            let packet = Packet {
                // Ports of their own for each direction: nothing here is an answer.
                sport: if egress { 40_000 } else { 30_000 } + u16::from(rng.random::<u8>()),
                dport: port,
                icmp: (u8::try_from(port).unwrap_or(0), 0),
                ..Packet::new(proto, &from.to_string(), &to.to_string())
            };
            let hook = if egress { Hook::FromContainer } else { Hook::ToContainer };
            let got = bench.forwarded(hook, if egress { 0 } else { ETH0 }, &packet).map(drop);
            let want = meaning(&items, egress, side, v6, proto, port);
            assert_eq!(
                got,
                want,
                "CILIA_SEED={} round 0: egress {egress}, {side:?} ({}), {proto}/{port}: {items:#?}",
                seed + round as u64,
                side.address(v6)
            );
            asked += 1;
            passed += usize::from(got.is_ok());
        }
    }
    println!("{asked} packets, {passed} let through");
    assert!(passed * 10 > asked && passed * 10 < asked * 9, "{passed} of {asked}: too one-sided");
}
