//! Random rules, identities and packets: what the maps say, looked up as the kernel does, against
//! the rules evaluated straight from their definition; and maps after changes against fresh ones.
//!
//! `CILIA_SEED` repeats one seed, `CILIA_SEQUENCES` sets how many there are.

use std::collections::{BTreeMap, HashMap};

use cilia_crds::NumericIdentity;
use cilia_policy::testing::{Want, World, seeds};
use cilia_policy::{EndpointPolicy, NamedPorts, PolicyKey, Repository, VIEW_SHIFT};
use ipnet::IpNet;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;

#[test]
fn maps_say_what_the_rules_mean() {
    let (mut lookups, mut ordered, mut loose) = (0u64, 0u64, 0u64);
    for seed in seeds(400) {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let world = World::new(rng);
        let mut repository = world.repository();
        for case in world.cases(rng, &mut repository, 8) {
            for packet in &case.packets {
                let block = packet.block.map(|block| block.0);
                let (identity, proto, port) = (packet.identity.0, packet.proto, packet.port);
                let (got, cookie) = case.map.decide(packet.direction, identity, block, proto, port);
                lookups += 1;
                ordered += u64::from(matches!(packet.want, Want::Passes(_)));
                loose += u64::from(matches!(packet.want, Want::AtMost(_)));
                assert!(
                    packet.want.admits(got),
                    "CILIA_SEED={seed}: {} {packet:?}: {got:?}\n{:#?}\n{:#?}",
                    case.subject,
                    case.map
                        .entries()
                        .filter(|(key, _)| [identity, 0].contains(&(key.identity & !(1 << 31)))
                            || Some(key.identity & !(u32::MAX << VIEW_SHIFT)) == block)
                        .collect::<Vec<_>>(),
                    repository.rules_for(&world.identities[&case.subject]),
                );
                let known =
                    cookie.is_none_or(|one| one == 0 || !repository.origins(one).is_empty());
                assert!(known, "CILIA_SEED={seed}: {packet:?}: an entry of unknown origin");
            }
        }
    }
    println!(
        "{lookups} lookups, {ordered} by rules with an order, {loose} of them with less certainty"
    );
    assert!(std::env::var("CILIA_SEED").is_ok() || lookups >= 1_000_000, "only {lookups} lookups");
    assert!(loose < lookups / 500, "{loose} of {lookups}");
}

/// A prefix instead of a number, true for a block; and the key without it.
type Key = (Option<(IpNet, bool)>, PolicyKey);

/// A map in a form that doesn't depend on the numbers that prefixes happen to have.
fn comparable(
    map: &EndpointPolicy,
    repository: &Repository,
) -> BTreeMap<Key, (bool, u8, Vec<String>)> {
    let prefixes = repository.prefixes().into_iter().map(|(prefix, id)| (id, (prefix, false)));
    let blocks = repository.blocks().into_iter().map(|(prefix, id)| (id, (prefix, true)));
    let named: HashMap<NumericIdentity, (IpNet, bool)> = prefixes.chain(blocks).collect();
    let entries = map.entries().filter_map(|(mut key, entry)| {
        let views = u32::MAX << VIEW_SHIFT;
        let prefix = named.get(&NumericIdentity(key.identity & !views)).copied();
        if (key.identity & !views) >> 24 != 0 {
            // What no rule names any more is about to be retired.
            prefix?;
            key.identity &= views;
        }
        let origins = repository.origins(entry.cookie).iter();
        let origins = origins.map(|one| format!("{} {}", one.policy, one.field)).collect();
        Some(((prefix, key), (entry.deny, entry.view, origins)))
    });
    entries.collect()
}

#[test]
fn changes_lead_where_a_fresh_start_leads() {
    for seed in seeds(120) {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut world = World::new(rng);
        let mut repository = world.repository();
        let own = [NamedPorts::new(), NamedPorts::from([(("http".into(), 6), 80)])];
        // What a writer that only follows differences would have in each endpoint's map.
        let mut written: BTreeMap<(u32, usize), BTreeMap<_, _>> = BTreeMap::new();
        let mut last: BTreeMap<(u32, usize), Arc<EndpointPolicy>> = BTreeMap::new();
        for step in 0..20 {
            world.change(rng, &mut repository);
            if rng.random_bool(0.3) {
                repository.retain_subjects(|number| number.0 % 2 == 0);
                repository.retire_prefixes();
            }
            let mut fresh = world.repository();
            let local = || world.identities.keys().copied().filter(|number| number.0 % 2 == 0);
            for subject in local() {
                let _ = fresh.policy(subject, &own[0]);
                let _ = repository.policy(subject, &own[0]);
            }
            for subject in local() {
                for (which, names) in own.iter().enumerate() {
                    let got = repository.policy(subject, names).expect("a known identity");
                    let want = fresh.policy(subject, names).expect("a known identity");
                    assert_eq!(
                        comparable(&got, &repository),
                        comparable(&want, &fresh),
                        "CILIA_SEED={seed}: step {step}, {subject}"
                    );
                    assert_eq!(
                        [got.ingress.enforced, got.ingress.blocks, got.egress.enforced],
                        [want.ingress.enforced, want.ingress.blocks, want.egress.enforced]
                    );
                    let map = written.entry((subject.0, which)).or_default();
                    let before = last.insert((subject.0, which), got.clone()).unwrap_or_default();
                    let difference = got.difference(&before);
                    map.extend(difference.write.iter().copied());
                    difference.remove.iter().for_each(|key| {
                        map.remove(key);
                    });
                    let all: BTreeMap<_, _> = got.entries().collect();
                    assert_eq!(*map, all, "CILIA_SEED={seed}: step {step}, {subject}: differences");
                }
            }
        }
    }
}
