use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;

use super::{Allocation, NodePools, Request};
use crate::Family;

fn pools(pre_allocation: &[(&str, u32)]) -> NodePools {
    let pre: BTreeMap<_, _> =
        pre_allocation.iter().map(|&(pool, n)| (pool.to_owned(), n)).collect();
    let mut node = NodePools::new(true, false, pre);
    let ranges = |text: &str| vec![text.parse().expect("a CIDR")];
    let all = [("default", "10.0.0.0/16"), ("red", "10.1.0.0/16")];
    node.set_pools(all.map(|(pool, range)| (pool.to_owned(), ranges(range))).into());
    node
}

fn list(entries: &[(&str, &[&str])]) -> Vec<Allocation> {
    let one = |&(pool, cidrs): &(&str, &[&str])| Allocation {
        pool: pool.to_owned(),
        cidrs: cidrs.iter().map(|&cidr| cidr.to_owned()).collect(),
    };
    entries.iter().map(one).collect()
}

/// The object lists this, under a new version.
fn see(node: &mut NodePools, allocated: &[Allocation]) {
    static VERSION: AtomicU64 = AtomicU64::new(1);
    node.observe(&VERSION.fetch_add(1, Ordering::Relaxed).to_string(), allocated);
}

fn asks(pools: &mut NodePools, now: u64) -> Vec<(String, u32)> {
    pools.wish(&[], now, true).requested.into_iter().map(|one| (one.pool, one.v4)).collect()
}

fn add(pools: &mut NodePools, pool: &str, pod: &str) -> bool {
    pools.allocate(&[(Family::V4, pool.to_owned())], pod, pod, 0).is_ok()
}

#[test]
fn demand_follows_pods_and_those_that_wait() {
    let mut node = pools(&[("default", 8)]);
    assert_eq!(asks(&mut node, 0), [("default".to_owned(), 8)]);
    assert!(!add(&mut node, "red", "n/p"), "there is nothing of it yet");
    assert!(!add(&mut node, "red", "n/p"), "and the pod counts once");
    assert_eq!(asks(&mut node, 1), [("default".to_owned(), 8), ("red".to_owned(), 1)]);
    see(&mut node, &list(&[("default", &["10.0.0.0/28"]), ("red", &["10.1.0.0/32"])]));
    assert!(add(&mut node, "red", "n/p"));
    assert_eq!(asks(&mut node, 1)[1], ("red".to_owned(), 1));

    // The pod goes: so does the demand, and the range.
    node.restored();
    node.addresses_mut().release_all("n/p");
    let wish = node.wish(&[Request { pool: "default".into(), v4: 8, v6: 0 }], 1, true);
    assert_eq!(wish.requested.len(), 1);
    assert_eq!(wish.allocated, Some(list(&[("default", &["10.0.0.0/28"])])));
    assert!(wish.urgent, "somebody else may wait for it");
    assert!(!add(&mut node, "red", "n/q"), "it is given back already");
    see(&mut node, &list(&[("default", &["10.0.0.0/28"])]));
    assert!(node.releasing().1.is_empty());

    // One that waits is forgotten when it goes, or in time.
    assert_eq!(asks(&mut node, 1).len(), 2);
    assert!(node.forget("n/q"));
    assert_eq!(asks(&mut node, 1).len(), 1);
    assert!(!add(&mut node, "red", "n/r"));
    assert_eq!((asks(&mut node, 299).len(), asks(&mut node, 300).len()), (2, 1));
}

#[test]
fn only_what_is_left_over_is_given_back() {
    let mut node = pools(&[("default", 8)]);
    node.restored();
    let listed =
        list(&[("default", &["10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/29", "10.0.0.24/29"])]);
    see(&mut node, &listed);
    assert!(add(&mut node, "default", "a"));
    // One in use: 16 are needed, and three of the four blocks of six give them.
    let asked = [Request { pool: "default".into(), v4: 16, v6: 0 }];
    let wish = node.wish(&asked, 0, false);
    assert_eq!((wish.allocated, wish.later), (None, true), "it has time");
    let wish = node.wish(&asked, 0, true);
    let kept = list(&[("default", &["10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/29"])]);
    assert_eq!((wish.allocated, wish.urgent), (Some(kept.clone()), false));
    see(&mut node, &kept);
    assert_eq!(node.wish(&[], 0, true).allocated, None);
}

#[test]
fn a_former_agent_s_decisions_and_pods_are_kept() {
    let mut node = pools(&[("default", 8)]);
    let listed = list(&[("default", &["10.0.0.0/28", "10.0.1.0/28"]), ("red", &["10.1.0.0/32"])]);
    let red = ("red".to_owned(), "10.1.0.0/32".parse().expect("a CIDR"));
    node.restore_releasing("7".to_owned(), [red].into());
    node.observe("7", &listed);
    assert!(!add(&mut node, "red", "a"), "its write may be under way");
    let asked = [Request { pool: "blue".into(), v4: 3, v6: 0 }];
    let wish = node.wish(&asked, 0, true);
    assert_eq!(wish.requested.len(), 3, "blue may have pods that are not restored yet: {wish:?}");
    node.addresses_mut().restore("10.0.1.3".parse().expect("an address"), "old").expect("free");
    node.restored();
    let wish = node.wish(&asked, 0, true);
    assert_eq!(
        wish.allocated,
        Some(list(&[("default", &["10.0.0.0/28", "10.0.1.0/28"])])),
        "{wish:?}"
    );
}

#[test]
fn what_others_take_away_is_put_back_once() {
    let mut node = pools(&[]);
    node.restored();
    let listed = list(&[("red", &["10.1.0.0/30"])]);
    see(&mut node, &listed);
    assert!(add(&mut node, "red", "a"));
    see(&mut node, &[]);
    assert!(!add(&mut node, "red", "b"), "it is not the node's now");
    let wish = node.wish(&[], 0, true);
    assert_eq!((wish.allocated.as_ref(), wish.urgent), (Some(&listed), true));
    see(&mut node, &listed);
    assert_eq!(node.wish(&[], 0, true).allocated, None);
    // The operator insists: another node has it.
    see(&mut node, &[]);
    assert_eq!(node.wish(&[], 0, true).allocated, None);
    // The object was deleted: it comes back with what is in use.
    see(&mut node, &listed);
    node.forgotten();
    assert_eq!(node.wish(&[], 0, true).allocated, Some(listed));
}

#[test]
fn an_orphan_does_not_stand_in_for_a_range_of_the_pool() {
    let mut node = pools(&[]);
    node.restored();
    let listed = list(&[("red", &["10.1.0.0/30", "10.7.0.0/30"])]);
    see(&mut node, &listed);
    node.addresses_mut().restore("10.7.0.1".parse().expect("an address"), "a").expect("free");
    // The operator would give another in its place.
    assert_eq!(node.wish(&[], 0, true).allocated, None);
    node.addresses_mut().release_all("a");
    node.addresses_mut().restore("10.1.0.1".parse().expect("an address"), "b").expect("free");
    let kept = list(&[("red", &["10.1.0.0/30"])]);
    assert_eq!(node.wish(&[], 0, true).allocated, Some(kept), "an orphan that nobody uses goes");
}

#[test]
fn what_was_given_back_in_vain_is_used_again() {
    let mut node = pools(&[]);
    node.restored();
    let listed = list(&[("red", &["10.1.0.0/30"])]);
    node.observe("1", &listed);
    assert_eq!(node.wish(&[], 0, true).allocated, Some(vec![]));
    assert!(!add(&mut node, "red", "a"));
    // Somebody else wrote first: the write that names version 1 arrives no more.
    node.observe("2", &listed);
    assert!(add(&mut node, "red", "a"));
    assert_eq!(node.wish(&[], 0, true).allocated, None);
}

#[test]
fn the_node_s_own_pool_is_asked_for_without_pods() {
    let mut node = pools(&[("red", 8)]);
    node.set_own_pool("default");
    assert_eq!(asks(&mut node, 0), [("default".to_owned(), 1), ("red".to_owned(), 8)]);
    see(&mut node, &list(&[("default", &["10.0.0.0/30"]), ("red", &["10.1.0.0/28"])]));
    node.addresses_mut().restore("10.0.0.1".parse().unwrap(), "router").unwrap();
    node.restored();
    assert_eq!(asks(&mut node, 1)[0], ("default".to_owned(), 1), "it is the router's");
}

#[test]
fn what_was_taken_away_while_no_agent_ran_is_put_back_too() {
    let listed = list(&[("red", &["10.1.0.0/30", "10.1.0.4/30"])]);
    let mut node = pools(&[]);
    node.restore_listed(&listed);
    see(&mut node, &list(&[("red", &["10.1.0.4/30"])]));
    assert_eq!(node.wish(&[], 0, true).allocated, None, "the pods are not known yet");
    node.addresses_mut().restore("10.1.0.1".parse().expect("an address"), "old").expect("free");
    node.restored();
    assert!(add(&mut node, "red", "new"));
    let ranges: IpNet = "10.1.0.4/30".parse().expect("a CIDR");
    assert!(node.addresses().iter().all(|(at, who)| who != "new" || ranges.contains(&at)));
    let wish = node.wish(&[], 0, true);
    assert_eq!(wish.allocated, Some(list(&[("red", &["10.1.0.4/30", "10.1.0.0/30"])])), "{wish:?}");
    // Another node has it by now: it is not asked for for ever.
    see(&mut node, &list(&[("red", &["10.1.0.0/30", "10.1.0.4/30"])]));
    see(&mut node, &list(&[("red", &["10.1.0.4/30"])]));
    assert_eq!(node.wish(&[], 0, true).allocated, None);
}
