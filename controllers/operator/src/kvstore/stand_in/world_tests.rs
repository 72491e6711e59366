//! Random sequences of what happens to a kvstore, its agents and Kubernetes, against what Kubernetes has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use cilia_kvstore::{KeyValue, Swap, is_stand_in, keys, stand_ins_of};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use super::tests::{AGENT, endpoint, ip_value, kv, name, node_key, node_value, pod};
use super::{Endpoints, LAG, RETURN, SETTLE, StandIns};

const NODES: u8 = 3;
const PODS: u8 = 3;
/// What happened to a key, as a watch tells it.
type News = (String, Option<KeyValue>);

/// A node that lives always, without an agent.
const FOREVER: u8 = 9;

fn nodes() -> impl Iterator<Item = u8> {
    (0..NODES).chain([FOREVER])
}

/// A kvstore, agents, and Kubernetes.
struct World {
    rng: StdRng,
    core: StandIns,
    now: Instant,
    store: BTreeMap<String, KeyValue>,
    revision: i64,
    /// Of nodes and of addresses: two watches.
    untold: [VecDeque<News>; 2],
    lives: BTreeSet<u8>,
    speaks: BTreeSet<u8>,
    /// The pods of each node, with their identities, as Kubernetes and their agent have them.
    says: BTreeMap<u8, BTreeMap<IpAddr, u32>>,
    again: BTreeMap<u8, Instant>,
}

impl World {
    fn write(&mut self, key: &str, value: Option<(Vec<u8>, i64)>) {
        self.revision += 1;
        let now = value.map(|(value, lease)| kv(value, lease, self.revision));
        match now.clone() {
            Some(kv) => _ = self.store.insert(key.to_owned(), kv),
            None if self.store.remove(key).is_none() => return,
            None => {}
        }
        self.untold[usize::from(!key.contains("/nodes/"))].push_back((key.to_owned(), now));
    }

    fn tell(&mut self, watch: usize) {
        let Some((key, kv)) = self.untold[watch].pop_front() else { return };
        let end = key.rsplit('/').next().expect("a key").to_owned();
        match (watch, kv) {
            (0, Some(kv)) => self.core.node(&end, &kv, self.now),
            (0, None) => self.core.node_gone(&end, self.now),
            (_, Some(kv)) => _ = self.core.address(&end, &kv),
            (_, None) => _ = self.core.address_gone(&end, self.now),
        }
    }

    fn tell_all(&mut self) {
        while self.untold.iter().any(|watch| !watch.is_empty()) {
            let watch = self.rng.random_range(0..2);
            self.tell(watch);
        }
    }

    fn decide(&mut self, node: u8) {
        let mut all = Endpoints::default();
        for (node, says) in &self.says {
            let pods = says.iter().map(|(address, identity)| endpoint(*node, *address, *identity));
            all.add(&pods.collect::<Vec<_>>());
        }
        self.core.endpoints(Some(all));
        let mut decision = self.core.decide(&name(node), self.now);
        if decision.unheard {
            self.core.learned(&name(node), node_value(node), self.now);
            decision.again = Some(self.now + SETTLE);
        }
        assert!(decision.again.is_none_or(|again| again > self.now), "{decision:?}");
        let orphans = self.core.orphans();
        for Swap { key, since, value } in decision.swaps.into_iter().chain(orphans) {
            let there = self.store.get(&key);
            if there.map_or(0, |kv| kv.mod_revision) != since {
                continue;
            }
            assert!(there.is_none_or(|kv| is_stand_in(kv.lease)), "{key} is an agent's");
            self.write(&key, value.map(|value| (value, stand_ins_of(1))));
        }
        match decision.again {
            Some(again) => _ = self.again.insert(node, again),
            None => _ = self.again.remove(&node),
        }
    }

    fn say(&mut self, node: u8, address: IpAddr, identity: Option<u32>) {
        let key = keys::ip(address.into());
        let says = self.says.entry(node).or_default();
        match identity {
            Some(identity) => {
                says.insert(address, identity);
                self.write(&key, Some((ip_value(node, address, identity), AGENT)));
            }
            None if says.remove(&address).is_some() => self.write(&key, None),
            None => {}
        }
    }

    /// The agent's lease ends: the ends of its keys are heard of within the lag.
    fn expire(&mut self, node: u8) {
        if !self.speaks.remove(&node) {
            return;
        }
        self.tell_all();
        // Who speaks has said everything by then, and what it gave up is forgotten: leases live for longer.
        self.now += RETURN;
        self.decide(node);
        self.tell_all();
        let says = self.says.get(&node).cloned().unwrap_or_default();
        self.write(&node_key(node), None);
        for address in says.keys() {
            self.write(&keys::ip((*address).into()), None);
        }
        for _ in 0..self.rng.random_range(0..4) {
            self.tell(1);
        }
        self.decide(node);
        let late = self.rng.random_range(0..LAG.as_secs());
        self.now += Duration::from_secs(late);
        self.decide(node);
        self.tell_all();
    }

    /// It is back, and says what its pods have now.
    fn thaw(&mut self, node: u8) {
        if !self.lives.contains(&node) || !self.speaks.insert(node) {
            return;
        }
        self.write(&node_key(node), Some((node_value(node), AGENT)));
        for (address, identity) in self.says.get(&node).cloned().unwrap_or_default() {
            let kept = self.rng.random_bool(0.7);
            if kept {
                self.say(node, address, Some(identity));
            } else {
                // It cannot delete what it never had again: that is the operator's.
                self.says.entry(node).or_default().remove(&address);
            }
        }
    }

    fn lives(&mut self, node: u8, lives: bool) {
        if lives {
            self.lives.insert(node);
        } else {
            // Its agent goes with it, and its keys at once, or by the collector.
            self.expire(node);
            self.lives.remove(&node);
            self.says.remove(&node);
        }
        self.core.lives(&name(node), lives, self.now);
        if !lives {
            // Else it might be back before anybody looks.
            for _ in 0..3 {
                self.tell_all();
                self.decide(node);
            }
        }
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.tell_all();
            nodes().for_each(|node| self.decide(node));
            let next = self.again.values().min().copied();
            self.now = next.map_or(self.now, |next| self.now.max(next));
        }
        assert!(self.again.is_empty(), "{:?}", self.again);
        self.tell_all();
    }

    /// Another leader, which knows nothing but what there is.
    fn succeed(&mut self) {
        self.core = StandIns::new("east", 1);
        for node in self.lives.clone() {
            self.core.lives(&name(node), true, self.now);
        }
        self.untold = Default::default();
        for (key, kv) in &self.store {
            self.untold[usize::from(!key.contains("/nodes/"))]
                .push_back((key.clone(), Some(kv.clone())));
        }
        while !self.untold[0].is_empty() {
            self.tell(0);
        }
        self.tell_all();
    }

    /// What Kubernetes has is there, said by agents where they speak.
    fn check(&self, seed: u64) {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let mut want = BTreeMap::new();
        for node in &self.lives {
            let stands_in = !self.speaks.contains(node);
            want.insert(node_key(*node), (text(&node_value(*node)), stands_in));
            for (address, identity) in self.says.get(node).into_iter().flatten() {
                let value = ip_value(*node, *address, *identity);
                want.insert(keys::ip((*address).into()), (text(&value), stands_in));
            }
        }
        let is = self
            .store
            .iter()
            .map(|(key, kv)| (key.clone(), (text(&kv.value), is_stand_in(kv.lease))));
        assert_eq!(is.collect::<BTreeMap<_, _>>(), want, "CILIA_SEED={seed}");
    }
}

/// Whatever happens in whichever order: the store has what Kubernetes has, and no agent's word is touched.
#[test]
fn nobody_is_cut_off_and_nothing_stays_for_ever() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("CILIA_SEED={seed}");
    let mut seeds = StdRng::seed_from_u64(seed);
    let rounds = std::env::var("CILIA_STEPS").ok().and_then(|steps| steps.parse().ok());
    for _ in 0..rounds.unwrap_or(50) {
        let mut world = World {
            rng: StdRng::seed_from_u64(seeds.random()),
            core: StandIns::new("east", 1),
            now: Instant::now(),
            store: BTreeMap::new(),
            revision: 0,
            untold: Default::default(),
            lives: [FOREVER].into(),
            speaks: BTreeSet::new(),
            says: [(FOREVER, [(pod(FOREVER, 1), 300)].into())].into(),
            again: BTreeMap::new(),
        };
        world.core.lives(&name(FOREVER), true, world.now);
        for _ in 0..60 {
            let (node, one) = (world.rng.random_range(0..NODES), world.rng.random_range(0..PODS));
            match world.rng.random_range(0..11) {
                0 => {
                    let lives = world.rng.random_bool(0.8);
                    world.lives(node, lives);
                }
                1 | 2 => world.thaw(node),
                3 => world.expire(node),
                4 | 5 if world.speaks.contains(&node) => {
                    let identity = world.rng.random_range(300..302);
                    world.say(node, pod(node, one), Some(identity));
                }
                6 if world.speaks.contains(&node) => world.say(node, pod(node, one), None),
                7 => world.succeed(),
                8 if !world.speaks.contains(&node) => {
                    // A pod of a silent agent goes.
                    world.says.get_mut(&node).map(|says| says.remove(&pod(node, one)));
                }
                9 => {
                    let watch = world.rng.random_range(0..2);
                    world.tell(watch);
                }
                _ => world.decide(node),
            }
        }
        world.settle();
        world.check(seed);
        // Everybody is back, or gone.
        for node in 0..NODES {
            let lives = world.rng.random_bool(0.6);
            world.lives(node, lives);
            world.thaw(node);
        }
        world.settle();
        world.check(seed);
    }
}
