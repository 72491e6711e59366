use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cilia_kvstore::value::{Address, IpIdentityPair, Node, encode};
use cilia_kvstore::{KeyValue, Swap, is_stand_in, keys, stand_ins_of};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use super::{LAG, RETURN, SETTLE, StandIns};

const NODES: u8 = 3;
const PODS: u8 = 3;
/// An agent's lease.
const AGENT: i64 = 7;

fn name(node: u8) -> String {
    format!("n{node}")
}

fn host(node: u8) -> IpAddr {
    Ipv4Addr::new(172, 18, 0, node).into()
}

fn pod(node: u8, pod: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, node, pod).into()
}

fn node_key(node: u8) -> String {
    keys::node("east", &name(node))
}

fn node_value(node: u8) -> Vec<u8> {
    let address = Address { kind: "InternalIP".into(), ip: host(node).to_string() };
    encode(&Node {
        name: name(node),
        cluster: "east".into(),
        addresses: vec![address],
        ..Node::default()
    })
}

fn ip_value(node: u8, address: IpAddr, identity: u32) -> Vec<u8> {
    let pair = IpIdentityPair::new(address.into(), identity, Some(host(node)));
    encode(&IpIdentityPair { namespace: "default".into(), pod: "web".into(), ..pair })
}

fn kv(value: Vec<u8>, lease: i64, mod_revision: i64) -> KeyValue {
    KeyValue { value, lease, mod_revision, ..KeyValue::default() }
}

#[test]
fn what_a_silent_agent_said_is_put_back_until_it_speaks() {
    let (start, all) = (Instant::now(), ["10.0.1.1", "10.0.1.2", "10.0.1.3"]);
    let mut core = StandIns::new("east");
    core.lives("n1", true);
    core.node("n1", &kv(node_value(1), AGENT, 1), start);
    for (one, end) in (1..).zip(all) {
        core.address(end, &kv(ip_value(1, pod(1, one), 300), AGENT, 2));
    }
    assert_eq!(core.decide("n1", start), super::Decision::default());
    // Given up by an agent that speaks: it is gone.
    assert_eq!(core.address_gone("10.0.1.3", start).as_deref(), Some("n1"));
    assert_eq!(core.decide("n1", start).again, Some(start + LAG));
    assert_eq!(core.decide("n1", start + LAG), super::Decision::default());
    // Its lease ends; the node's key is heard of last.
    let end = start + Duration::from_hours(1);
    for address in &all[..2] {
        core.address_gone(address, end);
    }
    assert_eq!(core.decide("n1", end).swaps, []);
    core.node_gone("n1", end);
    assert_eq!(core.decide("n1", end).again, Some(end + SETTLE));
    let create = |key: String, value| Swap { key, since: 0, value: Some(value) };
    let ip = |end: &str| format!("{}{end}", keys::ips());
    let node = create(node_key(1), node_value(1));
    let first = create(ip("10.0.1.1"), ip_value(1, pod(1, 1), 300));
    let second = create(ip("10.0.1.2"), ip_value(1, pod(1, 2), 300));
    let decision = core.decide("n1", end + SETTLE);
    assert_eq!(decision.swaps, [node.clone(), first.clone(), second]);
    assert_eq!(core.silent().len(), 1);
    // The second one's pod goes before that is done.
    core.endpoints(Some(HashMap::from([(pod(1, 1), 1), (pod(1, 2), 1)])));
    assert_eq!(core.endpoint(&[pod(1, 2)], &[]).len(), 1);
    assert_eq!(core.decide("n1", end + SETTLE).swaps, [node, first]);
    let lease = stand_ins_of(1);
    core.node("n1", &kv(node_value(1), lease, 10), end + SETTLE);
    core.address("10.0.1.1", &kv(ip_value(1, pod(1, 1), 300), lease, 11));
    assert_eq!(core.decide("n1", end + SETTLE), super::Decision::default());
    assert!(core.stands_in());
    // It speaks again, and doesn't say this one any more.
    let back = end + Duration::from_hours(1);
    core.node("n1", &kv(node_value(1), AGENT, 20), back);
    assert_eq!(core.silent(), Vec::<std::sync::Arc<str>>::new());
    assert_eq!(core.decide("n1", back).again, Some(back + RETURN));
    let gone = Swap { key: ip("10.0.1.1"), since: 11, value: None };
    assert_eq!(core.decide("n1", back + RETURN).swaps, [gone]);
}

#[test]
fn a_node_takes_its_stand_ins_along() {
    let (now, lease) = (Instant::now(), stand_ins_of(1));
    let mut core = StandIns::new("east");
    // A next leader finds them.
    core.node("n1", &kv(node_value(1), lease, 5), now);
    core.address("10.0.1.1", &kv(ip_value(1, pod(1, 1), 300), lease, 6));
    core.address("10.0.2.1", &kv(ip_value(2, pod(2, 1), 300), lease, 7));
    assert_eq!(core.decide("n1", now).swaps, [], "there may be nodes yet");
    assert_eq!(core.orphans(), []);
    core.lives("n3", true);
    let back = |key: String, since| Swap { key, since, value: None };
    let ip = |address: IpAddr| keys::ip(address.into());
    assert_eq!(core.decide("n1", now).swaps, [back(ip(pod(1, 1)), 6), back(node_key(1), 5)]);
    assert_eq!(core.orphans(), [back(ip(pod(2, 1)), 7)], "nobody has n2");
    core.address_gone("10.0.1.1", now);
    core.node_gone("n1", now);
    assert_eq!(core.decide("n1", now), super::Decision::default());
    core.address_gone("10.0.2.1", now);
    assert!(core.nodes.len() == 1 && core.hosts.is_empty() && core.addresses.is_empty());
    assert!(core.of_host.is_empty() && !core.stands_in());
}

/// What happened to a key, as a watch tells it.
type News = (String, Option<KeyValue>);

/// One that knows of a node without an agent, so that Kubernetes has some.
fn core() -> StandIns {
    let mut core = StandIns::new("east");
    core.lives("n9", true);
    core
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
    /// What each agent says, or said last.
    says: BTreeMap<u8, BTreeMap<IpAddr, u32>>,
    /// What a frozen agent's lease took with it.
    lost: BTreeMap<u8, BTreeMap<IpAddr, u32>>,
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
        let decision = self.core.decide(&name(node), self.now);
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
        self.lost.insert(node, says);
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
        self.lost.remove(&node);
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
            self.lost.remove(&node);
            self.says.remove(&node);
        }
        self.core.lives(&name(node), lives);
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
        for _ in 0..8 {
            self.tell_all();
            for node in 0..NODES {
                self.decide(node);
            }
            let next = self.again.values().min().copied();
            self.now = next.map_or(self.now, |next| self.now.max(next));
        }
        assert!(self.again.is_empty(), "{:?}", self.again);
        self.tell_all();
    }

    /// Another leader, which knows nothing but what there is.
    fn succeed(&mut self) {
        self.settle();
        self.core = core();
        for node in self.lives.clone() {
            self.core.lives(&name(node), true);
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

    fn check(&self, seed: u64) {
        let mut want = BTreeMap::new();
        let silent = |node: &u8| self.lives.contains(node) && self.lost.contains_key(node);
        for node in 0..NODES {
            let said = if self.speaks.contains(&node) {
                self.says.get(&node)
            } else if silent(&node) {
                self.lost.get(&node)
            } else {
                continue;
            };
            want.insert(node_key(node), node_value(node));
            for (address, identity) in said.into_iter().flatten() {
                want.insert(keys::ip((*address).into()), ip_value(node, *address, *identity));
            }
        }
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let is: BTreeMap<_, _> =
            self.store.iter().map(|(key, kv)| (key.clone(), text(&kv.value))).collect();
        let want: BTreeMap<_, _> =
            want.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        assert_eq!(is, want, "CILIA_SEED={seed}");
        for kv in self.store.values().filter(|_| self.lost.is_empty()) {
            assert!(!is_stand_in(kv.lease), "CILIA_SEED={seed}");
        }
    }
}

/// Whatever happens in whichever order: the store has what agents say, and what silent ones said last.
#[test]
fn nobody_is_cut_off_and_nothing_stays_for_ever() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("CILIA_SEED={seed}");
    let mut seeds = StdRng::seed_from_u64(seed);
    for _ in 0..500 {
        let mut world = World {
            rng: StdRng::seed_from_u64(seeds.random()),
            core: core(),
            now: Instant::now(),
            store: BTreeMap::new(),
            revision: 0,
            untold: Default::default(),
            lives: BTreeSet::new(),
            speaks: BTreeSet::new(),
            says: BTreeMap::new(),
            lost: BTreeMap::new(),
            again: BTreeMap::new(),
        };
        for _ in 0..60 {
            let (node, one) = (world.rng.random_range(0..NODES), world.rng.random_range(0..PODS));
            match world.rng.random_range(0..10) {
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
                8 => {
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
