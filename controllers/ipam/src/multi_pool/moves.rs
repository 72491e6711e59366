//! As many addresses as pods, and pods that go from node to node: no node keeps what none of its pods needs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Allocation, Answer, MultiPool, PoolNode, Request};
use crate::pod_pool::{FamilySpec, PoolSpec};
use crate::{Family, NodePools};

const POOL: &str = "red";
const RANGE: &str = "10.0.0.0/30";
const PODS: [&str; 4] = ["p0", "p1", "p2", "p3"];
/// Seconds between two looks.
const TURN: u64 = 60;

struct Node {
    name: &'static str,
    version: u64,
    requested: Vec<Request>,
    allocated: Vec<Allocation>,
    pools: NodePools,
}

impl Node {
    fn new(name: &'static str) -> Self {
        let mut pools = NodePools::new(true, false, BTreeMap::new());
        let range = RANGE.parse().expect("a CIDR");
        pools.set_pools(BTreeMap::from([(POOL.to_owned(), vec![range])]));
        pools.restored();
        Self { name, version: 1, requested: Vec::new(), allocated: Vec::new(), pools }
    }

    fn agent_looks(&mut self, now: u64) {
        self.pools.observe(&self.version.to_string(), &self.allocated);
        let wish = self.pools.wish(&self.requested, now, true);
        if wish.requested != self.requested || wish.allocated.is_some() {
            self.version += 1;
            self.requested = wish.requested;
            self.allocated = wish.allocated.unwrap_or(std::mem::take(&mut self.allocated));
        }
    }

    fn operator_looks(&mut self, core: &mut MultiPool) {
        let answer = core.upsert(PoolNode {
            name: self.name,
            version: &self.version.to_string(),
            requested: &self.requested,
            allocated: &self.allocated,
            error: "",
            fenced: false,
        });
        if let Answer::Write { allocated: Some(allocated), .. } = answer {
            self.version += 1;
            self.allocated = allocated;
        }
        self.pools.observe(&self.version.to_string(), &self.allocated);
    }

    fn add(&mut self, pod: &str, now: u64) -> bool {
        self.pools.allocate(&[(Family::V4, POOL.to_owned())], pod, pod, now).is_ok()
    }

    fn has(&self) -> usize {
        self.allocated.iter().map(|one| one.cidrs.len()).sum()
    }
}

#[test]
fn four_addresses_serve_four_pods_wherever_they_are() {
    let mut core = MultiPool::new(true, false);
    let cidrs = [RANGE.to_owned()];
    let spec = PoolSpec { v4: Some(FamilySpec { cidrs: &cidrs, mask_size: 32 }), v6: None };
    core.upsert_pool(POOL, &spec).expect("a pool");
    core.resync(None);
    let mut nodes = [Node::new("a"), Node::new("b")];
    let (mut now, mut place) = (0, BTreeMap::new());
    for round in 0..54 {
        let pod = PODS[round % PODS.len()];
        let to = match place.get(pod) {
            Some(from) => {
                let node: &mut Node = &mut nodes[*from];
                node.pools.addresses_mut().release_all(pod);
                // Now and then an ADD fails where the pod was, and is not tried again.
                if round % 10 == 9 {
                    assert!(node.add("short", now) && !node.add(&format!("lost-{round}"), now));
                    node.pools.addresses_mut().release_all("short");
                }
                1 - from
            }
            None => 0,
        };
        let mut turns = 0;
        while !nodes[to].add(pod, now) {
            turns += 1;
            assert!(turns < 12, "round {round}: {pod} hangs on {}", nodes[to].name);
            now += TURN;
            for node in &mut nodes {
                node.agent_looks(now);
                node.operator_looks(&mut core);
            }
        }
        place.insert(pod, to);
        let listed = nodes.iter().flat_map(|node| &node.allocated).flat_map(|one| &one.cidrs);
        let listed: Vec<&String> = listed.collect();
        let apart: BTreeSet<&String> = listed.iter().copied().collect();
        assert!(listed.len() == apart.len() && apart.len() <= 4, "round {round}: {listed:?}");
    }
    // All go: so does everything that nodes had and asked for.
    for (pod, at) in &place {
        nodes[*at].pools.addresses_mut().release_all(pod);
    }
    for _ in 0..8 {
        now += TURN;
        for node in &mut nodes {
            node.agent_looks(now);
            node.operator_looks(&mut core);
        }
    }
    assert_eq!(nodes.each_ref().map(|node| (node.has(), node.requested.len())), [(0, 0); 2]);
}
