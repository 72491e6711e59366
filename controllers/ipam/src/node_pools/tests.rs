use std::collections::BTreeMap;

use super::{Allocation, NodePools, Request};
use crate::Family;

fn pools(pre_allocation: &[(&str, u32)]) -> NodePools {
    let pre: BTreeMap<_, _> =
        pre_allocation.iter().map(|&(pool, n)| (pool.to_owned(), n)).collect();
    NodePools::new(true, false, pre)
}

fn list(entries: &[(&str, &[&str])]) -> Vec<Allocation> {
    let one = |&(pool, cidrs): &(&str, &[&str])| Allocation {
        pool: pool.to_owned(),
        cidrs: cidrs.iter().map(|&cidr| cidr.to_owned()).collect(),
    };
    entries.iter().map(one).collect()
}

fn asks(pools: &mut NodePools, now: u64) -> Vec<(String, u32)> {
    pools.wish(&[], now).requested.into_iter().map(|one| (one.pool, one.v4)).collect()
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
    node.observe(&list(&[("default", &["10.0.0.0/28"]), ("red", &["10.1.0.0/32"])]));
    assert!(add(&mut node, "red", "n/p"));
    assert_eq!(asks(&mut node, 1)[1], ("red".to_owned(), 1));

    // The pod goes: so does the demand, and the range.
    node.restored();
    node.addresses_mut().release_all("n/p");
    let wish = node.wish(&[Request { pool: "default".into(), v4: 8, v6: 0 }], 1);
    assert_eq!(wish.requested.len(), 1);
    assert_eq!(wish.allocated, Some(list(&[("default", &["10.0.0.0/28"])])));
    assert!(wish.urgent, "somebody else may wait for it");
    assert!(!add(&mut node, "red", "n/q"), "it is given back already");
    node.observe(&list(&[("default", &["10.0.0.0/28"])]));
    assert!(node.releasing().is_empty());

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
    node.observe(&listed);
    assert!(add(&mut node, "default", "a"));
    // One in use: 16 are needed, and three of the four blocks of six give them.
    let wish = node.wish(&[Request { pool: "default".into(), v4: 16, v6: 0 }], 0);
    let kept = list(&[("default", &["10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/29"])]);
    assert_eq!((wish.allocated, wish.urgent), (Some(kept.clone()), false));
    node.observe(&kept);
    assert_eq!(node.wish(&[], 0).allocated, None);
}

#[test]
fn a_former_agent_s_decisions_and_pods_are_kept() {
    let mut node = pools(&[("default", 8)]);
    let listed = list(&[("default", &["10.0.0.0/28", "10.0.1.0/28"]), ("red", &["10.1.0.0/32"])]);
    node.restore_releasing([("red".to_owned(), "10.1.0.0/32".parse().expect("a CIDR"))]);
    node.observe(&listed);
    assert!(!add(&mut node, "red", "a"), "its write may be under way");
    let asked = [Request { pool: "blue".into(), v4: 3, v6: 0 }];
    let wish = node.wish(&asked, 0);
    assert_eq!(wish.requested.len(), 3, "blue may have pods that are not restored yet: {wish:?}");
    node.addresses_mut().restore("10.0.1.3".parse().expect("an address"), "old").expect("free");
    node.restored();
    let wish = node.wish(&asked, 0);
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
    node.observe(&listed);
    assert!(add(&mut node, "red", "a"));
    node.observe(&[]);
    assert!(!add(&mut node, "red", "b"), "it is not the node's now");
    let wish = node.wish(&[], 0);
    assert_eq!((wish.allocated.as_ref(), wish.urgent), (Some(&listed), true));
    node.observe(&listed);
    assert_eq!(node.wish(&[], 0).allocated, None);
    // The operator insists: another node has it.
    node.observe(&[]);
    assert_eq!(node.wish(&[], 0).allocated, None);
    // The object was deleted: it comes back with what is in use.
    node.observe(&listed);
    node.forgotten();
    assert_eq!(node.wish(&[], 0).allocated, Some(listed));
}
