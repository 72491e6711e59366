//! Nodes come, go and lose what they had; leaders are cut off; writes stall and arrive much later. After every step
//! each range is on one node's list.

use std::collections::BTreeMap;

use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ClusterPool, Node, Verdict};
use crate::PoolConfig;

/// One more than there are IPv4 ranges.
const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A `CiliumNode` as the API server has it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Object {
    version: u64,
    cidrs: Vec<String>,
    error: String,
    fenced: bool,
}

/// A write that was sent: it is carried out if the object is still of this version.
#[derive(Debug, Clone, Default)]
struct Write {
    node: &'static str,
    version: u64,
    cidrs: Option<Vec<String>>,
    error: Option<String>,
    fenced: Option<bool>,
}

struct World {
    rng: StdRng,
    version: u64,
    api: BTreeMap<&'static str, Object>,
    pool: ClusterPool,
    /// What the operator knows.
    seen: BTreeMap<&'static str, Object>,
    /// Under way, some of them from operators that are no more.
    writes: Vec<Write>,
}

fn pool() -> ClusterPool {
    let (v4, v6) = (["10.0.0.0/22".to_owned()], ["fd00::/117".to_owned()]);
    let v4 = PoolConfig { enabled: true, cidrs: &v4, mask_size: 24 };
    let v6 = PoolConfig { enabled: true, cidrs: &v6, mask_size: 120 };
    ClusterPool::new(&v4, &v6).expect("valid")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: StdRng::seed_from_u64(seed),
            version: 0,
            api: BTreeMap::new(),
            pool: pool(),
            seen: BTreeMap::new(),
            writes: Vec::new(),
        };
        world.start_operator(false);
        world
    }

    fn step(&mut self) {
        let node = NODES[self.rng.random_range(0..NODES.len())];
        match self.rng.random_range(0..16) {
            0 | 1 => self.change(node, |_| {}),
            2 => drop(self.api.remove(node)),
            3 if self.api.contains_key(node) => self.change(node, |object| object.cidrs.clear()),
            4 if self.api.contains_key(node) => {
                self.change(node, |object| drop(object.cidrs.pop()));
            }
            5..=7 => drop(self.operator_hears(node)),
            8..=11 => {
                let answered = self.rng.random_bool(0.7);
                if let Some(write) = self.operator_writes(node) {
                    if answered { self.carry_out(&write) } else { self.writes.push(write) }
                }
            }
            12 if self.rng.random_bool(0.4) => {
                let cut_off = self.rng.random_bool(0.7);
                self.start_operator(cut_off);
            }
            _ if !self.writes.is_empty() => {
                let late = self.rng.random_range(0..self.writes.len());
                let write = self.writes.swap_remove(late);
                self.carry_out(&write);
            }
            _ => {}
        }
    }

    /// Somebody makes the node, or writes it.
    fn change(&mut self, node: &'static str, change: impl FnOnce(&mut Object)) {
        self.version += 1;
        let object = self.api.entry(node).or_default();
        object.version = self.version;
        change(object);
    }

    fn carry_out(&mut self, write: &Write) {
        if self.api.get(write.node).is_some_and(|object| object.version == write.version) {
            let Write { cidrs, error, fenced, .. } = write.clone();
            self.change(write.node, |object| {
                object.cidrs = cidrs.unwrap_or(std::mem::take(&mut object.cidrs));
                object.error = error.unwrap_or(std::mem::take(&mut object.error));
                object.fenced = fenced.unwrap_or(object.fenced);
            });
        }
    }

    fn operator_hears(&mut self, node: &'static str) -> Option<Verdict> {
        match self.api.get(node) {
            Some(object) => drop(self.seen.insert(node, object.clone())),
            None => drop(self.seen.remove(node)),
        }
        self.ask(node)
    }

    fn ask(&mut self, node: &str) -> Option<Verdict> {
        let Some(object) = self.seen.get(node) else {
            self.pool.delete(node);
            return None;
        };
        Some(self.pool.upsert(Node {
            name: node,
            version: &object.version.to_string(),
            pod_cidrs: &object.cidrs,
            error: &object.error,
            fenced: object.fenced,
        }))
    }

    fn operator_writes(&mut self, node: &'static str) -> Option<Write> {
        let verdict = self.ask(node)?;
        let object = &self.seen[node];
        let write = Write { node, version: object.version, ..Write::default() };
        match verdict {
            Verdict::Nothing | Verdict::Wait => None,
            Verdict::Fence => Some(Write { fenced: Some(true), ..write }),
            Verdict::Unfence => Some(Write { fenced: Some(false), ..write }),
            Verdict::SetCidrs(cidrs) => {
                let cidrs = cidrs.iter().map(ToString::to_string).collect();
                let (cidrs, error) = (Some(cidrs), Some(String::new()));
                Some(Write { cidrs, error, fenced: Some(false), ..write })
            }
            Verdict::ClearError => Some(Write { error: Some(String::new()), ..write }),
            Verdict::SetError(text) => Some(Write { error: Some(text), ..write }),
        }
    }

    /// A new operator leads. If the former one was not cut off, its writes have been answered.
    fn start_operator(&mut self, cut_off: bool) {
        if !cut_off {
            for write in std::mem::take(&mut self.writes) {
                self.carry_out(&write);
            }
        }
        (self.pool, self.seen) = (pool(), self.api.clone());
        let mut order = NODES;
        order.rotate_left(self.rng.random_range(0..NODES.len()));
        for node in order {
            self.ask(node);
        }
        self.pool.resync(cut_off);
    }

    /// No range is on two lists.
    fn check(&self, context: &str) {
        let mut lists: Vec<(&str, IpNet)> = Vec::new();
        for (node, object) in &self.api {
            for text in &object.cidrs {
                let cidr: IpNet = text.parse().expect("a CIDR");
                let overlaps =
                    |(_, other): &&(&str, IpNet)| other.contains(&cidr) || cidr.contains(other);
                assert_eq!(lists.iter().find(overlaps), None, "{context}: {cidr} of {node}");
                lists.push((node, cidr));
            }
        }
    }

    /// Without faults everybody soon has what can be had, no mark is left, and nobody writes any more.
    fn settle(&mut self, context: &str) {
        for write in std::mem::take(&mut self.writes) {
            self.carry_out(&write);
        }
        for round in 0..12 {
            let before = self.api.clone();
            for node in NODES {
                self.operator_hears(node);
                if let Some(write) = self.operator_writes(node) {
                    self.carry_out(&write);
                }
                self.operator_hears(node);
                self.check(&format!("{context}, settling {round}"));
            }
            if before == self.api && round > 1 {
                assert!(before.values().all(|node| !node.fenced), "{context}: a mark is left");
                let well = before.values().filter(|node| node.error.is_empty());
                assert!(well.clone().all(|node| node.cidrs.len() == 2), "{context}: {before:?}");
                assert_eq!(well.count(), before.len().min(4), "{context}: {before:?}");
                return;
            }
        }
        panic!("{context}: it does not come to rest: {:?}", self.api);
    }
}

/// `CILIA_SEED` repeats one sequence, `CILIA_SEQUENCES` asks for more of them.
#[test]
fn one_owner_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("CILIA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CILIA_SEQUENCES").unwrap_or(500),
    };
    for seed in seeds {
        let mut world = World::new(seed);
        for step in 0..100 {
            world.step();
            world.check(&format!("CILIA_SEED={seed} step {step}"));
        }
        world.settle(&format!("CILIA_SEED={seed}"));
    }
}
