//! What nodes ask of pools and get, case by case.

use std::collections::BTreeSet;

use super::{Allocation, Answer, MultiPool, PoolNode, Request};
use crate::pod_pool::{FamilySpec, PoolSpec};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn put(
    pools: &mut MultiPool,
    name: &str,
    v4: (&[&str], u8),
    v6: (&[&str], u8),
) -> Result<(), String> {
    let (cidrs4, cidrs6) = (strings(v4.0), strings(v6.0));
    let spec = PoolSpec {
        v4: (!cidrs4.is_empty()).then_some(FamilySpec { cidrs: &cidrs4, mask_size: v4.1 }),
        v6: (!cidrs6.is_empty()).then_some(FamilySpec { cidrs: &cidrs6, mask_size: v6.1 }),
    };
    pools.upsert_pool(name, &spec).map_err(|error| error.to_string())
}

/// The pool "default" of the scenarios.
fn default() -> MultiPool {
    let mut pools = MultiPool::new(true, true);
    let v4 = (&["10.100.0.0/16", "10.200.0.0/16"][..], 24);
    put(&mut pools, "default", v4, (&["fd00:100::/80", "fc00:100::/80"], 96)).expect("a pool");
    pools
}

/// A node as the API server has it.
#[derive(Debug, Clone, Default)]
struct Object {
    name: String,
    version: u64,
    requested: Vec<Request>,
    allocated: Vec<Allocation>,
    error: String,
    fenced: bool,
}

impl Object {
    fn new(name: &str, pool: &str, cidrs: &[&str], v4: u32, v6: u32) -> Self {
        let mut object = Self { name: name.into(), version: 1, ..Self::default() };
        object.list(pool, cidrs);
        object.need(pool, v4, v6);
        object
    }

    fn list(&mut self, pool: &str, cidrs: &[&str]) {
        self.version += 1;
        self.allocated.retain(|one| one.pool != pool);
        if !cidrs.is_empty() {
            self.allocated.push(Allocation { pool: pool.into(), cidrs: strings(cidrs) });
        }
    }

    fn need(&mut self, pool: &str, v4: u32, v6: u32) {
        self.version += 1;
        self.requested.retain(|one| one.pool != pool);
        if (v4, v6) != (0, 0) {
            self.requested.push(Request { pool: pool.into(), v4, v6 });
        }
    }

    fn ask(&self, pools: &mut MultiPool) -> Answer {
        pools.upsert(PoolNode {
            name: &self.name,
            version: &self.version.to_string(),
            requested: &self.requested,
            allocated: &self.allocated,
            error: &self.error,
            fenced: self.fenced,
        })
    }

    /// Asks, and does what is answered; the error that the object has then.
    fn settle(&mut self, pools: &mut MultiPool) -> &str {
        if let Answer::Write { allocated, error } = self.ask(pools) {
            self.version += u64::from(allocated.is_some());
            self.allocated = allocated.unwrap_or(std::mem::take(&mut self.allocated));
            self.error = error.unwrap_or(std::mem::take(&mut self.error));
        }
        &self.error
    }

    fn cidrs(&self) -> Vec<&str> {
        self.allocated.iter().flat_map(|one| &one.cidrs).map(String::as_str).collect()
    }
}

#[test]
fn nothing_is_handed_out_before_all_is_known() {
    let mut pools = default();
    let list = ["10.100.20.0/24", "10.100.10.0/24", "fd00:100:0:0:0:10::/96"];
    let mut one = Object::new("node1", "default", &list, 10, 10);
    let mut two = Object::new("node2", "default", &[], 10, 10);
    let mut three = Object::new("node3", "default", &["10.100.10.0/24"], 0, 0);
    for node in [&one, &two, &three] {
        assert_eq!(node.ask(&mut pools), Answer::Wait, "MPOOL-01..03");
    }
    let sorted = ["10.100.10.0/24", "10.100.20.0/24", "fd00:100::10:0:0/96"];
    assert_eq!(
        pools.allocated("node1"),
        [Allocation { pool: "default".into(), cidrs: strings(&sorted) }]
    );
    assert_eq!(pools.allocated("node2"), []);

    pools.resync(None);
    assert_eq!(one.settle(&mut pools), "");
    assert_eq!(one.cidrs(), sorted);
    assert_eq!(two.settle(&mut pools), "");
    assert_eq!(two.cidrs(), ["10.100.0.0/24", "fd00:100::/96"], "MPOOL-05");
    let want = "unable to reuse from pool default: cidr 10.100.10.0/24 has already been allocated";
    assert_eq!(three.settle(&mut pools), want, "MPOOL-06");
    assert_eq!(three.cidrs(), [] as [&str; 0]);
    assert_eq!(three.settle(&mut pools), "", "it asks for nothing else");

    // MPOOL-07: node1 gives it back.
    one.list("default", &["10.100.20.0/24", "fd00:100::10:0:0/96"]);
    one.settle(&mut pools);
    three.list("default", &["10.100.10.0/24"]);
    assert_eq!(three.settle(&mut pools), "");
    assert_eq!(three.cidrs(), ["10.100.10.0/24"]);

    // MPOOL-09.
    one.need("default", 300, 10);
    assert_eq!(one.settle(&mut pools), "");
    assert_eq!(one.cidrs(), ["10.100.1.0/24", "10.100.20.0/24", "fd00:100::10:0:0/96"]);
}

#[test]
fn what_cannot_be_had_is_said_and_the_rest_is_done() {
    let mut pools = default();
    put(&mut pools, "four", (&["10.1.0.0/28"], 29), (&[], 0)).expect("a pool");
    pools.resync(None);
    let mut node = Object::new("n", "default", &["10.100.300.0/24", "10.100.3.0/24"], 1, 0);
    node.need("nowhere", 1, 0);
    node.need("four", 1, 1);
    let error = node.settle(&mut pools).to_owned();
    let wants = [
        "unable to reuse from pool default: failed to parse CIDR \"10.100.300.0/24\"",
        "failed to allocate ipv4 address for node \"n\" from pool \"nowhere\": cannot allocate from non-existing pool: nowhere",
        "failed to allocate ipv6 address for node \"n\" from pool \"four\": pool empty",
    ];
    for want in wants {
        assert!(error.contains(want), "{error} lacks {want}");
    }
    assert_eq!(node.cidrs(), ["10.100.3.0/24", "10.1.0.0/29"], "MPOOL-10, 11, 13");
    assert_eq!(pools.to_ask(), ["n"], "the pools are new");

    // The pool comes; the node is asked again, and its error goes.
    put(&mut pools, "nowhere", (&["10.2.0.0/24"], 26), (&[], 0)).expect("a pool");
    assert_eq!(pools.to_ask(), ["n"]);
    node.need("four", 1, 0);
    assert_eq!(node.settle(&mut pools), "");
    assert_eq!(pools.to_ask(), [] as [&str; 0]);
}

#[test]
fn pools_change_within_limits() {
    let mut pools = default();
    let v4 = ["10.100.0.0/16", "10.200.0.0/16"];
    let v6 = ["fd00:100::/80", "fc00:100::/80"];
    let other4 = put(&mut pools, "default", (&v4, 25), (&v6, 96)).expect_err("another size");
    assert!(
        other4.contains("cannot change IPv4 mask size in existing pool \"default\""),
        "{other4}"
    );
    let other6 = put(&mut pools, "default", (&v4, 24), (&v6, 97)).expect_err("another size");
    assert!(
        other6.contains("cannot change IPv6 mask size in existing pool \"default\""),
        "{other6}"
    );
    put(&mut pools, "default", (&v4, 24), (&["fd00/80"], 96)).expect_err("no CIDR");
    pools.resync(None);
    let mut node = Object::new("n", "default", &[], 1, 1);
    node.settle(&mut pools);
    assert_eq!(node.cidrs(), ["10.100.0.0/24", "fd00:100::/96"], "unchanged");

    // MPOOL-14: old removed, new added, kept ones stay, and stay in front.
    put(&mut pools, "default", (&["10.50.0.0/16", "10.200.0.0/16"], 24), (&v6, 96)).expect("fine");
    let mut second = Object::new("m", "default", &[], 1, 0);
    second.settle(&mut pools);
    assert_eq!(second.cidrs(), ["10.200.0.0/24"]);
    assert!(pools.delete_pool("default"));
    assert!(!pools.delete_pool("default"), "MPOOL-15");
}

#[test]
fn orphans_stay_and_come_home() {
    let mut pools = MultiPool::new(true, true);
    put(&mut pools, "test", (&["10.0.0.0/27"], 28), (&["fd00::/95"], 96)).expect("a pool");
    pools.resync(None);
    let mut one = Object::new("node1", "test", &[], 1, 1);
    let mut two = Object::new("node2", "test", &[], 1, 1);
    one.settle(&mut pools);
    two.settle(&mut pools);
    let (held1, held2) = (one.allocated.clone(), two.allocated.clone());

    // MPOOL-18: the pool loses its IPv4 ranges.
    put(&mut pools, "test", (&[], 0), (&["fd00::/95"], 96)).expect("fine");
    let error = one.settle(&mut pools).to_owned();
    assert!(error.contains("10.0.0.0/28 is not part of the pool: it stays allocated"), "{error}");
    assert!(error.contains("from pool \"test\": pool empty"), "orphans don't count: {error}");
    assert_eq!(one.allocated, held1);

    // MPOOL-19: it goes altogether, and comes back.
    pools.delete_pool("test");
    let error = two.settle(&mut pools).to_owned();
    assert!(
        error.contains("unable to reuse from non-existing pool test: prefix fd00::1:0:0/96"),
        "{error}"
    );
    assert_eq!(pools.holders("test"), ["node1", "node2"]);

    // MPOOL-21: another pool of the same ranges gets none of it.
    put(&mut pools, "other", (&["10.0.0.0/27"], 28), (&[], 0)).expect("fine");
    let orphans = pools.orphans_in("other");
    let orphans: Vec<&str> = orphans.iter().map(|(node, _, _)| node.as_str()).collect();
    assert_eq!(orphans, ["node1", "node2"]);
    let mut three = Object::new("node3", "other", &[], 1, 0);
    assert!(three.settle(&mut pools).ends_with("pool empty"));
    put(&mut pools, "test", (&["10.0.0.0/27"], 28), (&["fd00::/95"], 96)).expect("fine");
    for (node, held) in [(&mut one, &held1), (&mut two, &held2)] {
        assert_eq!(node.settle(&mut pools), "");
        assert_eq!(node.allocated, *held);
    }
    assert_eq!(pools.orphans_in("other"), []);

    // MPOOL-29: what a node that is gone had is free, pool or no pool.
    pools.delete_pool("test");
    pools.delete("node1");
    assert_eq!(pools.to_ask(), ["node3"]);
    assert_eq!(three.settle(&mut pools), "");
    assert_eq!(three.cidrs(), ["10.0.0.0/28"]);
}

#[test]
fn a_restart_knows_orphans_too() {
    // MPOOL-26.
    let mut pools = MultiPool::new(true, false);
    let mut node = Object::new("n", "gone", &["10.0.0.0/24"], 1, 0);
    assert_eq!(node.ask(&mut pools), Answer::Wait);
    pools.resync(None);
    let Answer::Write { allocated: None, error: Some(error) } = node.ask(&mut pools) else {
        panic!("only the status is written")
    };
    assert!(error.contains("non-existing pool"), "{error}");
    node.settle(&mut pools);
    node.need("gone", 500, 0);
    assert!(node.settle(&mut pools).contains("cannot allocate from non-existing pool: gone"));
    assert_eq!(node.cidrs(), ["10.0.0.0/24"]);
    put(&mut pools, "gone", (&["10.0.0.0/16"], 24), (&[], 0)).expect("fine");
    assert_eq!(node.settle(&mut pools), "");
    assert_eq!(node.cidrs(), ["10.0.0.0/24", "10.0.1.0/24"]);

    // MPOOL-22, 27: the pool shrinks under use, and the node lets go.
    put(&mut pools, "gone", (&["10.0.1.0/24"], 24), (&[], 0)).expect("fine");
    node.need("gone", 1, 0);
    node.list("gone", &["10.0.1.0/24"]);
    assert_eq!(node.settle(&mut pools), "");
    assert_eq!(node.ask(&mut pools), Answer::Write { allocated: None, error: None });
    put(&mut pools, "heir", (&["10.0.0.0/24"], 24), (&[], 0)).expect("fine");
    let mut heir = Object::new("m", "heir", &[], 1, 0);
    heir.settle(&mut pools);
    assert_eq!(heir.cidrs(), ["10.0.0.0/24"]);
}

#[test]
fn a_grant_outlives_events_of_before_and_ends_with_a_write_that_failed() {
    let mut pools = default();
    pools.resync(None);
    let mut node = Object::new("n", "default", &[], 1, 0);
    let first = node.ask(&mut pools);
    assert_eq!(node.ask(&mut pools), first, "the same until it is seen");
    let mut other = Object::new("m", "default", &[], 1, 0);
    other.settle(&mut pools);
    assert_eq!(other.cidrs(), ["10.100.1.0/24"]);
    // MPOOL-25: somebody else changed the node; the write was refused and cannot arrive any more.
    node.version += 1;
    node.need("default", 0, 0);
    assert_eq!(node.ask(&mut pools), Answer::Write { allocated: None, error: None });
    assert_eq!(pools.allocated("n"), []);
}

#[test]
fn a_leader_that_was_cut_off_is_fenced() {
    let mut pools = default();
    let mut lacks = Object::new("a", "default", &[], 1, 0);
    let full = Object::new("b", "default", &["10.100.0.0/24"], 1, 0);
    lacks.ask(&mut pools);
    full.ask(&mut pools);
    pools.resync(Some(&BTreeSet::new()));
    let fresh = Object::new("c", "default", &[], 1, 0);
    assert_eq!(lacks.ask(&mut pools), Answer::Fence);
    assert_eq!(full.ask(&mut pools), Answer::Write { allocated: None, error: None });
    assert_eq!(fresh.ask(&mut pools), Answer::Wait, "the former leader cannot know it");
    pools.to_ask();
    lacks.version += 1;
    lacks.settle(&mut pools);
    assert_eq!(lacks.cidrs(), ["10.100.1.0/24"]);
    assert_eq!(pools.to_ask(), ["c"]);
    // The fence's mark goes last.
    let at_rest = Answer::Write { allocated: None, error: None };
    assert_eq!(lacks.ask(&mut pools), at_rest);
    lacks.fenced = true;
    assert_eq!(lacks.ask(&mut pools), Answer::Unfence);
    lacks.need("nowhere", 1, 0);
    assert!(matches!(lacks.ask(&mut pools), Answer::Write { error: Some(_), .. }));
}

#[test]
fn who_lacks_nothing_any_more_is_fenced_too() {
    let mut pools = MultiPool::new(true, false);
    put(&mut pools, "red", (&["10.1.0.0/16"], 24), (&[], 0)).expect("a pool");
    // It has a range that its pool has not: that does not count.
    let mut orphan = Object::new("a", "red", &["10.2.0.0/24"], 1, 0);
    let mut fresh = Object::new("b", "red", &[], 1, 0);
    orphan.ask(&mut pools);
    fresh.ask(&mut pools);
    pools.resync(Some(&BTreeSet::new()));
    put(&mut pools, "red", (&["10.1.0.0/16", "10.2.0.0/16"], 24), (&[], 0)).expect("a pool");
    assert_eq!(orphan.ask(&mut pools), Answer::Fence);
    assert_eq!(fresh.ask(&mut pools), Answer::Fence);
    orphan.version += 1;
    fresh.version += 1;
    assert_eq!(orphan.settle(&mut pools), "");
    fresh.settle(&mut pools);
    assert_eq!(fresh.cidrs(), ["10.1.0.0/24"]);
}

#[test]
fn who_lacked_something_of_a_pool_as_it_was_is_fenced_too() {
    let mut pools = default();
    let mut holder = Object::new("a", "default", &["10.100.0.0/24"], 1, 0);
    let mut fresh = Object::new("b", "default", &[], 1, 0);
    holder.ask(&mut pools);
    // The former leader saw a pool without that range, and has given the node another one.
    pools.resync(Some(&BTreeSet::from(["default".to_owned()])));
    assert_eq!(fresh.ask(&mut pools), Answer::Wait, "it came after the former leader");
    assert_eq!(holder.ask(&mut pools), Answer::Fence);
    holder.version += 1;
    holder.settle(&mut pools);
    fresh.settle(&mut pools);
    assert_eq!(fresh.cidrs(), ["10.100.1.0/24"]);
}
