//! The classifier itself against the definition of the rules, over the random clusters by which the core
//! is measured: all kinds of policies, tiers and priorities, and ipBlocks that mean pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cilia_crds::NumericIdentity;
use cilia_loader::maps::reason;
use cilia_loader::{Hook, PolicyEntry, PolicyKey, RemoteEndpoint, converge};
use cilia_policy::rule::Direction;
use cilia_policy::testing::{Case, Packet as Asked, Want, World};
use cilia_policy::{EndpointPolicy, Repository, Verdict};
use ipnet::IpNet;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bench::{A, A4, Bench};
use crate::packet::{ICMP, Packet};

/// Packets of the default run; the whole takes a few seconds.
const PACKETS: usize = 24_000;
const PACKETS_AN_ENDPOINT: usize = 300;
/// Where a packet to the pod came from, as far as the programs are told.
const ETH0: u32 = 9;

/// Who has which address: the first one that claims it.
fn addresses(case: &Case) -> BTreeMap<IpAddr, u32> {
    let mut addresses = BTreeMap::new();
    for packet in case.packets.iter().filter(|packet| is_managed(packet.identity)) {
        addresses.entry(packet.address).or_insert(packet.identity.0);
    }
    addresses
}

/// Whether the ipcache has the identity's addresses one by one.
fn is_managed(identity: NumericIdentity) -> bool {
    (256..1 << 24).contains(&identity.0) || identity == NumericIdentity::REMOTE_NODE
}

/// Puts a policy into the maps as the agent would.
fn realize(
    bench: &Bench,
    policy: &EndpointPolicy,
    repository: &Repository,
    of: &BTreeMap<IpAddr, u32>,
) {
    let entries = policy.entries().map(|(key, entry)| {
        let cilia_policy::PolicyKey { identity, egress, proto, port, port_prefix } = key;
        let key = PolicyKey { identity, egress, proto, port, port_prefix };
        (key, PolicyEntry { deny: entry.deny, view: entry.view, cookie: entry.cookie })
    });
    converge(&bench.datapath.policy(A).unwrap(), &entries.collect::<BTreeMap<_, _>>()).unwrap();
    let place = |net: IpNet| (net.addr(), net.prefix_len());
    let known = of.iter().map(|(address, identity)| (IpNet::from(*address), *identity));
    let prefixes = repository.prefixes().into_iter().map(|(net, identity)| (net, identity.0));
    // Who has an address goes before prefixes that are as long.
    let entry = |identity| RemoteEndpoint { identity, ..RemoteEndpoint::default() };
    let ipcache = prefixes.chain(known).map(|(net, identity)| (place(net), entry(identity)));
    converge(&bench.datapath.ipcache(), &ipcache.collect::<BTreeMap<_, _>>()).unwrap();
    let blocks = repository.blocks().into_iter().map(|(net, block)| (place(net), block.0));
    converge(&bench.datapath.blocks(), &blocks.collect::<BTreeMap<_, _>>()).unwrap();
}

/// What the programs do with the packet.
fn sent(bench: &Bench, rng: &mut SmallRng, asked: &Asked) -> Result<(), u8> {
    let own: IpAddr = A4.parse().unwrap();
    let egress = asked.direction == Direction::Egress;
    let (from, to) = if egress { (own, asked.address) } else { (asked.address, own) };
    let packet = Packet {
        // Ports of their own for each direction: nothing here is an answer.
        sport: if egress { 40_000 } else { 30_000 } + u16::from(rng.random::<u8>()),
        dport: asked.port,
        icmp: (u8::try_from(asked.port).unwrap_or(0), 0),
        ..Packet::new(asked.proto, &from.to_string(), &to.to_string())
    };
    let (hook, by) = if egress { (Hook::FromContainer, 0) } else { (Hook::ToContainer, ETH0) };
    bench.forwarded(hook, by, &packet).map(drop)
}

fn is_right(want: Want, got: Result<(), u8>) -> bool {
    match got {
        Ok(()) => want.admits(Verdict::Allowed),
        Err(reason::POLICY_DENY) => want.admits(Verdict::Denied),
        Err(reason::POLICY) => want.admits(Verdict::NotAllowed),
        Err(_) => false,
    }
}

#[test]
fn the_programs_do_what_the_definition_says() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("CILIA_SEED").unwrap_or(1);
    let packets = number("CILIA_PACKETS").and_then(|n| usize::try_from(n).ok()).unwrap_or(PACKETS);
    println!("CILIA_SEED={seed} CILIA_PACKETS={packets}");
    // What is outside is one world, or one of each family, as the node is told.
    let benches = [false, true].map(|dual_stack| {
        Bench::with(|config| {
            config.ipv6 = dual_stack;
            config.sizes.policy = 16_384;
        })
    });
    let (mut asked, mut passed, mut ordered, mut by_block) = (0, 0, 0, 0);
    for seed in seed.. {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let world = World::new(rng);
        let bench = &benches[usize::from(world.config.dual_stack)];
        let mut repository = world.repository();
        for mut case in world.cases(rng, &mut repository, 3) {
            let of = addresses(&case);
            realize(bench, &case.map, &repository, &of);
            // Whom an address belongs to is one thing; and ICMP messages other than echoes are one
            // connection, the answer of which passes.
            case.packets.retain(|one| {
                let known = of.get(&one.address).copied();
                let own = known.map_or(!is_managed(one.identity), |id| id == one.identity.0);
                own && one.identity != NumericIdentity::HOST
                    && (one.proto != ICMP || one.port != 13)
            });
            case.packets.shuffle(rng);
            for packet in case.packets.iter().take(PACKETS_AN_ENDPOINT) {
                let got = sent(bench, rng, packet);
                assert!(
                    is_right(packet.want, got),
                    "CILIA_SEED={seed}: {}: {packet:?}: {got:?}; {:?}",
                    case.subject,
                    repository.rules_for(&world.identities[&case.subject]),
                );
                asked += 1;
                passed += usize::from(got.is_ok());
                ordered += usize::from(matches!(packet.want, Want::Passes(_)));
                by_block += usize::from(packet.block.is_some());
            }
        }
        if asked >= packets {
            break;
        }
    }
    println!(
        "{asked} packets, {passed} let through, {ordered} by rules with an order, {by_block} in blocks"
    );
    assert!(passed * 10 > asked && passed * 10 < asked * 9, "{passed} of {asked}: too one-sided");
    assert!(ordered * 20 > asked && by_block * 20 > asked, "{ordered}, {by_block} of {asked}");
}
