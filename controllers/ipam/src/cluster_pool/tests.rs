use std::collections::BTreeMap;

use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ClusterPool, Node, Verdict};
use crate::{Family, PoolConfig};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().expect("a CIDR")).collect()
}

fn pool(v4: &[&str], mask4: i64, v6: &[&str], mask6: i64) -> ClusterPool {
    let (v4, v6) = (strings(v4), strings(v6));
    ClusterPool::new(
        &PoolConfig { enabled: !v4.is_empty(), cidrs: &v4, mask_size: mask4 },
        &PoolConfig { enabled: !v6.is_empty(), cidrs: &v6, mask_size: mask6 },
    )
    .expect("valid")
}

fn node<'a>(name: &'a str, pod_cidrs: &'a [String], error: &'a str) -> Node<'a> {
    Node { name, version: "1", pod_cidrs, error, fenced: false }
}

fn ask(pool: &mut ClusterPool, name: &str, pod_cidrs: &[&str]) -> Verdict {
    ask_with_error(pool, name, pod_cidrs, "")
}

fn ask_with_error(pool: &mut ClusterPool, name: &str, cidrs: &[&str], error: &str) -> Verdict {
    pool.upsert(node(name, &strings(cidrs), error))
}

fn error_of(verdict: Verdict) -> String {
    match verdict {
        Verdict::SetError(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn waits_for_every_node_before_handing_out() {
    // PCIDR-27: a node without CIDR is listed before the one that has the first block.
    let mut pool = pool(&["10.129.0.0/16"], 24, &[], 0);
    assert_eq!(ask(&mut pool, "node-a", &[]), Verdict::Wait);
    assert_eq!(ask(&mut pool, "node-b", &["10.129.0.0/24"]), Verdict::Nothing);
    pool.resync(false);
    let got = ask(&mut pool, "node-a", &[]);
    assert_eq!(got, Verdict::SetCidrs(nets(&["10.129.1.0/24"])));
    // PCIDR-07, PCIDR-14: the same again while the write has not been seen, and then nothing.
    assert_eq!(ask(&mut pool, "node-a", &[]), got);
    assert_eq!(ask(&mut pool, "node-a", &["10.129.1.0/24"]), Verdict::Nothing);
}

#[test]
fn a_node_of_somebody_elses_keeps_what_it_has() {
    // PCIDR-29: it is ignored, and nobody else gets its ranges as long as it lives.
    let mut pool = pool(&["10.0.0.0/22"], 24, &["fd00::/118"], 120);
    let observe = |pool: &mut ClusterPool, name: &str, cidrs: &[&str]| {
        let pod_cidrs = strings(cidrs);
        let verdict = pool.observe(node(name, &pod_cidrs, "old"));
        assert_eq!(verdict, Verdict::Nothing);
    };
    observe(&mut pool, "theirs", &["10.0.0.0/24", "192.0.2.0/24", "nonsense"]);
    pool.resync(false);
    observe(&mut pool, "theirs", &["10.0.0.0/24"]);
    assert_eq!(pool.cidrs("theirs"), Some(&nets(&["10.0.0.0/24"])[..]), "and no IPv6");
    let ours = nets(&["10.0.1.0/24", "fd00::/120"]);
    assert_eq!(ask(&mut pool, "ours", &[]), Verdict::SetCidrs(ours));

    // Annotated while it lives.
    observe(&mut pool, "ours", &["10.0.1.0/24", "fd00::/120"]);
    observe(&mut pool, "theirs", &["10.0.1.0/24", "10.0.0.0/24"]);
    let third = nets(&["10.0.2.0/24", "fd00::100/120"]);
    assert_eq!(ask(&mut pool, "third", &[]), Verdict::SetCidrs(third));

    // The annotation is gone: it is as if it had never been there.
    assert_eq!(ask(&mut pool, "ours", &["10.0.1.0/24", "fd00::/120"]), Verdict::Nothing);
    assert!(pool.delete("theirs"));
    let fourth = nets(&["10.0.3.0/24", "fd00::200/120"]);
    assert_eq!(ask(&mut pool, "fourth", &[]), Verdict::SetCidrs(fourth));
    let fifth = nets(&["10.0.0.0/24", "fd00::300/120"]);
    assert_eq!(ask(&mut pool, "fifth", &[]), Verdict::SetCidrs(fifth), "what the deleted one had");
}

#[test]
fn a_family_that_is_missing_waits_too() {
    // PCIDR-33, PCIDR-13.
    let mut pool = pool(&["10.0.0.0/16"], 24, &["fd00::/104"], 120);
    assert_eq!(ask(&mut pool, "a", &["10.0.0.0/24"]), Verdict::Wait);
    assert_eq!(pool.cidrs("a"), Some(&nets(&["10.0.0.0/24"])[..]));
    assert_eq!(ask(&mut pool, "b", &["10.0.1.0/24", "fd00::/120"]), Verdict::Nothing);
    pool.resync(false);
    let both = Verdict::SetCidrs(nets(&["10.0.0.0/24", "fd00::100/120"]));
    assert_eq!(ask(&mut pool, "a", &["10.0.0.0/24"]), both);
    // A known node that loses one family gets it back.
    assert_eq!(ask(&mut pool, "a", &["fd00::100/120"]), both);
    assert_eq!(ask(&mut pool, "a", &["10.0.0.0/24", "fd00::100/120"]), Verdict::Nothing);
}

#[test]
fn a_leader_that_was_cut_off_is_fenced() {
    let mut pool = pool(&["10.0.0.0/16"], 24, &[], 0);
    let ask = |pool: &mut ClusterPool, name: &str, version: &str, cidrs: &[&str]| {
        pool.upsert(Node { version, ..node(name, &strings(cidrs), "") })
    };
    for (name, cidrs) in [("a", &[][..]), ("b", &[]), ("c", &["10.0.0.0/24"])] {
        ask(&mut pool, name, "1", cidrs);
    }
    pool.resync(true);
    assert_eq!(ask(&mut pool, "a", "1", &[]), Verdict::Fence);
    assert_eq!(ask(&mut pool, "c", "1", &["10.0.0.0/24"]), Verdict::Nothing, "it lacks nothing");
    assert_eq!(ask(&mut pool, "new", "1", &[]), Verdict::Wait, "the former leader cannot know it");
    // What the former leader wrote arrives before the fence.
    assert_eq!(ask(&mut pool, "a", "2", &["10.0.1.0/24"]), Verdict::Nothing);
    assert_eq!(pool.to_ask(), [] as [&str; 0]);
    assert_eq!(ask(&mut pool, "b", "2", &[]), Verdict::SetCidrs(nets(&["10.0.2.0/24"])));
    assert_eq!(pool.to_ask(), ["new"]);
    assert_eq!(ask(&mut pool, "new", "1", &[]), Verdict::SetCidrs(nets(&["10.0.3.0/24"])));

    // Its mark goes once it has served: not before, and not from a node that is written anyway.
    let cidrs = strings(&["10.0.1.0/24"]);
    let marked = Node { fenced: true, ..node("a", &cidrs, "") };
    assert_eq!(pool.upsert(marked), Verdict::Unfence);
    assert_eq!(pool.upsert(Node { error: "old", ..marked }), Verdict::ClearError);
    let lost = Node { pod_cidrs: &[], ..marked };
    assert_eq!(pool.upsert(lost), Verdict::SetCidrs(nets(&["10.0.1.0/24"])));
    pool.resync(true);
    let empty = Node { fenced: true, ..node("d", &[], "") };
    assert_eq!(pool.upsert(empty), Verdict::SetCidrs(nets(&["10.0.4.0/24"])), "nobody to fence");
}

#[test]
fn a_node_that_is_refused_is_fenced_too() {
    let mut pool = pool(&["10.0.0.0/16"], 24, &[], 0);
    let ask = |pool: &mut ClusterPool, name: &str, version: &str, cidrs: &[&str]| {
        pool.upsert(Node { version, ..node(name, &strings(cidrs), "") })
    };
    let foreign = &["192.0.2.0/24"][..];
    ask(&mut pool, "wrong", "1", foreign);
    ask(&mut pool, "new", "1", &[]);
    pool.resync(true);
    assert_eq!(ask(&mut pool, "wrong", "1", foreign), Verdict::Fence);
    assert_eq!(ask(&mut pool, "new", "1", &[]), Verdict::Fence);
    error_of(ask(&mut pool, "wrong", "2", foreign));
    let first = Verdict::SetCidrs(nets(&["10.0.0.0/24"]));
    assert_eq!(ask(&mut pool, "new", "2", &[]), first, "nobody waits for the one that is refused");
}

#[test]
fn refuses_and_takes_it_back() {
    let mut pool = pool(&["10.0.0.0/23"], 24, &["fd00::/119"], 120);
    pool.resync(false);
    ask(&mut pool, "a", &["10.0.0.0/24", "fd00::/120"]);
    let taken = error_of(ask(&mut pool, "b", &["10.0.1.0/24", "fd00::/120"]));
    assert_eq!(taken, "requested CIDR (fd00::/120) is already allocated");
    assert_eq!(pool.cidrs("b"), None, "the IPv4 part is given back");
    // Written once, not again.
    let again = ask_with_error(&mut pool, "b", &["10.0.1.0/24", "fd00::/120"], &taken);
    assert_eq!(again, Verdict::Nothing);
    // A CIDR of which a part is taken is taken.
    let part = error_of(ask(&mut pool, "b", &["10.0.0.0/23", "fd00::100/120"]));
    assert_eq!(part, "requested CIDR (10.0.0.0/23) is already allocated");
    assert_eq!(pool.refused().collect::<Vec<_>>(), ["b"]);
    assert!(pool.delete("a"));
    assert!(!pool.delete("a"), "PCIDR-02");
    let fine = ask_with_error(&mut pool, "b", &["10.0.1.0/24", "fd00::/120"], &taken);
    assert_eq!(fine, Verdict::ClearError);
    assert_eq!(pool.refused().count(), 0);
}

#[test]
fn errors_say_what_is_wrong() {
    let mut pool = pool(&["10.0.0.0/23"], 24, &[], 0);
    pool.resync(false);
    ask(&mut pool, "a", &["10.0.0.0/24"]);
    let cases: &[(&str, &[&str], &str)] = &[
        ("a", &["10.0.1.0/24"], "node has CIDRs allocated ([10.0.0.0/24]) that conflict with"),
        ("b", &["192.168.0.0/24"], "allocator not configured for the requested CIDR"),
        ("b", &["fd00::/120"], "IPv6 allocator does not exist: cannot reuse [fd00::/120]"),
        ("b", &["1.1.1.1/280"], "unable to parse pod CIDR \"1.1.1.1/280\""),
    ];
    for &(name, cidrs, want) in cases {
        let got = error_of(ask(&mut pool, name, cidrs));
        assert!(got.starts_with(want), "{got}");
    }
    ask(&mut pool, "b", &["10.0.1.7/24"]);
    assert_eq!(pool.cidrs("b"), Some(&nets(&["10.0.1.0/24"])[..]), "host bits are masked");
    assert_eq!(error_of(ask(&mut pool, "c", &[])), "allocator full: no free IPv4 CIDR");
    let full = error_of(ask(&mut pool, "c", &["10.0.1.0/24"]));
    assert!(full.starts_with("allocator 10.0.0.0/23 full"), "{full}");
    let mut none = self::pool(&[], 0, &[], 0);
    none.resync(false);
    let got = error_of(ask(&mut none, "node-1", &[]));
    assert!(got.contains("node-1") && got.contains("[]"), "{got}");
}

/// Two nodes never have parts of the same range, whatever happens in whatever order; and once
/// what the pool says has been done, it says nothing more.
#[test]
fn one_owner_per_address() {
    const CIDRS: [&str; 9] = [
        "10.0.0.0/24",
        "10.0.1.0/24",
        "10.0.2.0/24",
        "10.0.2.128/25",
        "10.0.0.0/23",
        "10.0.0.0/8",
        "10.1.0.0/24",
        "fd00::/120",
        "fd00::100/120",
    ];
    for seed in 0..3_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let fresh = || pool(&["10.0.0.0/22", "10.1.0.0/23"], 24, &["fd00::/117"], 120);
        let mut pool = fresh();
        let mut api: BTreeMap<String, (Vec<String>, String)> = BTreeMap::new();
        for step in 0..40 {
            let name = format!("node-{}", rng.random_range(0..6));
            match rng.random_range(0..8) {
                0 => {
                    api.remove(&name);
                    pool.delete(&name);
                }
                1 if rng.random_bool(0.5) => {
                    let cidrs = (0..rng.random_range(0..3))
                        .map(|_| CIDRS[rng.random_range(0..CIDRS.len())].to_owned());
                    api.entry(name).or_default().0 = cidrs.collect();
                }
                2 if rng.random_bool(0.3) => pool = fresh(),
                4 => {
                    // The annotation comes, and is gone with the next look.
                    let (cidrs, error) = api.entry(name.clone()).or_default();
                    pool.observe(node(&name, cidrs, error));
                }
                3 => {
                    // A complete list, in any order: events of before count.
                    for (name, node) in &api {
                        perform(&mut pool, name, &mut node.clone());
                    }
                    pool.resync(false);
                }
                _ => {
                    let node = api.entry(name.clone()).or_default();
                    let mut changed = node.clone();
                    perform(&mut pool, &name, &mut changed);
                    // Sometimes the write is lost.
                    if rng.random_bool(0.8) {
                        *node = changed;
                    }
                }
            }
            check(&pool, &format!("seed {seed} step {step}"));
        }
        pool.resync(false);
        for _ in 0..3 {
            for (name, node) in &mut api {
                perform(&mut pool, name, node);
            }
        }
        for (name, node) in &mut api {
            let quiet = perform(&mut pool, name, node);
            assert_eq!(quiet, Verdict::Nothing, "seed {seed}: {name} {node:?}");
            if node.1.is_empty() {
                for family in Family::BOTH {
                    let has = nets(&node.0.iter().map(String::as_str).collect::<Vec<_>>());
                    assert!(has.iter().any(|cidr| Family::of_net(*cidr) == family), "seed {seed}");
                }
            }
        }
    }
}

fn perform(pool: &mut ClusterPool, name: &str, node: &mut (Vec<String>, String)) -> Verdict {
    let verdict = pool.upsert(self::node(name, &node.0, &node.1));
    match &verdict {
        Verdict::Nothing | Verdict::Wait | Verdict::Fence | Verdict::Unfence => {}
        Verdict::SetCidrs(cidrs) => {
            *node = (cidrs.iter().map(ToString::to_string).collect(), String::new());
        }
        Verdict::ClearError => node.1.clear(),
        Verdict::SetError(text) => node.1.clone_from(text),
    }
    verdict
}

fn check(pool: &ClusterPool, context: &str) {
    let held: Vec<(&String, &IpNet)> =
        pool.nodes.iter().flat_map(|(name, cidrs)| cidrs.iter().map(move |c| (name, c))).collect();
    for (index, (name, cidr)) in held.iter().enumerate() {
        for (other, theirs) in &held[index + 1..] {
            let apart = !cidr.contains(*theirs) && !theirs.contains(*cidr);
            assert!(apart || name == other, "{context}: {name} {cidr}, {other} {theirs}");
        }
        for (family, ranges) in &pool.ranges {
            for set in ranges.sets.iter().filter(|set| set.in_range(**cidr)) {
                assert!(set.any_used(**cidr), "{context}: {family} {cidr} not marked");
            }
        }
    }
}
