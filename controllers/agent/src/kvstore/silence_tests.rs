use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use cilia_loader::RemoteEndpoint;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use super::{LAG, Living, RETURN, Silence};
use crate::ipcache::Fed;

const NODES: u8 = 3;
const PODS: u8 = 4;

fn node(node: u8) -> Arc<str> {
    format!("n{node}").into()
}

fn host(node: u8) -> IpAddr {
    Ipv4Addr::new(172, 18, 0, node).into()
}

fn pod(node: u8, pod: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, node, pod).into()
}

fn name(address: IpAddr) -> Arc<str> {
    format!("kvstore/{address}").into()
}

fn entry(address: IpAddr, host: IpAddr) -> Fed {
    let endpoint = RemoteEndpoint { identity: 300, tunnel: Some(host), key: 0 };
    Fed::Entry { name: name(address), prefix: (address, 32), endpoint, ports: Vec::new() }
}

fn living(nodes: &BTreeSet<u8>) -> Living {
    nodes.iter().map(|one| (host(*one), node(*one))).collect()
}

/// What is gone after so long.
fn after(silence: &mut Silence, now: Instant) -> Vec<String> {
    let name = |word: Fed| match word {
        Fed::Gone(name) => name.to_string(),
        other => panic!("{other:?}"),
    };
    silence.due(now).0.into_iter().map(name).collect()
}

#[test]
fn what_an_agent_gives_up_goes_and_what_it_loses_stays() {
    let start = Instant::now();
    let mut silence = Silence::default();
    silence.have(living(&[1].into()));
    silence.speaks("n1", None);
    for address in [pod(1, 1), pod(1, 2), pod(2, 1)] {
        let host = if address == pod(2, 1) { host(2) } else { host(1) };
        assert!(silence.take(entry(address, host), start).is_some());
    }
    let gone = |address| Fed::Gone(name(address));
    assert_eq!(silence.take(gone(pod(2, 1)), start), Some(gone(pod(2, 1))), "Kubernetes has no n2");
    assert_eq!(silence.take(gone(pod(1, 1)), start), None);
    assert_eq!(silence.due(start), (vec![], Some(start + LAG)));
    assert_eq!(silence.due(start + LAG), (vec![gone(pod(1, 1))], None), "n1 speaks, and not of it");
    // The lease ends; the node's key is heard of later than the address.
    let end = start + LAG;
    assert_eq!(silence.take(gone(pod(1, 2)), end), None);
    silence.is_silent("n1");
    assert_eq!(silence.due(end + Duration::from_hours(24)), (vec![], None));
    // It speaks again, and has time to say everything.
    let back = end + Duration::from_hours(24);
    silence.speaks("n1", Some(back));
    assert_eq!(silence.due(back + LAG), (vec![], Some(back + RETURN)));
    assert!(silence.take(entry(pod(1, 2), host(1)), back + LAG).is_some());
    assert!(!silence.waits());
    // With its node everything goes.
    assert_eq!(silence.take(gone(pod(1, 2)), back + RETURN), None);
    silence.is_silent("n1");
    silence.have(Living::new());
    assert_eq!(after(&mut silence, back + RETURN), [name(pod(1, 2)).to_string()]);
    assert!(silence.hosts.is_empty() && !silence.waits());
}

#[test]
fn a_successor_recalls_pods_of_silent_nodes() {
    let start = Instant::now();
    let mut silence = Silence::default();
    silence.have(living(&[1, 2].into()));
    silence.speaks("n1", None);
    silence.take(entry(pod(1, 1), host(1)), start);
    // n1 has given one of its pods up, n2 is silent, n3 is gone.
    let former: Vec<_> = [(1, 1), (1, 2), (2, 1), (3, 1)]
        .into_iter()
        .map(|(node, one)| {
            let tunnel = Some(host(node));
            (pod(node, one), RemoteEndpoint { identity: 300, tunnel, key: 0 })
        })
        .collect();
    let told = silence.recall(&former, start);
    assert_eq!(told, [entry(pod(1, 2), host(1)), entry(pod(2, 1), host(2))]);
    assert_eq!(after(&mut silence, start + LAG), [name(pod(1, 2)).to_string()]);
    assert_eq!(silence.due(start + Duration::from_hours(24)), (vec![], None));
}

/// What there is, and what the ipcache was told.
struct World {
    silence: Silence,
    now: Instant,
    living: BTreeSet<u8>,
    /// Nodes whose key is in the kvstore, and the addresses that are.
    speaking: BTreeSet<u8>,
    stored: BTreeSet<IpAddr>,
    /// What was lost with a lease, by node; it must stay until the agent is back for a while.
    lost: BTreeMap<u8, BTreeSet<IpAddr>>,
    told: BTreeSet<IpAddr>,
}

impl World {
    fn pass(&mut self, word: Option<Fed>) {
        match word {
            Some(Fed::Entry { prefix, .. }) => _ = self.told.insert(prefix.0),
            Some(Fed::Gone(name)) => {
                let address = name.strip_prefix("kvstore/").expect("a name").parse().expect("one");
                assert!(self.told.remove(&address), "{address} was not told of");
                assert!(!self.stored.contains(&address), "{address} is there");
                for (node, lost) in &self.lost {
                    assert!(!lost.contains(&address), "{address} of n{node}, which is silent");
                }
            }
            Some(Fed::Listed) | None => {}
        }
    }

    fn put(&mut self, node: u8, address: IpAddr) {
        self.stored.insert(address);
        let word = self.silence.take(entry(address, host(node)), self.now);
        self.pass(word);
    }

    fn delete(&mut self, address: IpAddr) {
        if self.stored.remove(&address) {
            let word = self.silence.take(Fed::Gone(name(address)), self.now);
            self.pass(word);
        }
    }

    fn own(&self, node: u8) -> BTreeSet<IpAddr> {
        (0..PODS).map(|one| pod(node, one)).filter(|one| self.stored.contains(one)).collect()
    }

    /// Its leases end: keys go in any order, the end of its own is heard of within the lag.
    fn expire(&mut self, node_number: u8, rng: &mut StdRng) {
        let own = self.own(node_number);
        let first = rng.random_bool(0.5);
        if first {
            self.silence.is_silent(&node(node_number));
        }
        self.speaking.remove(&node_number);
        let lost = self.lost.entry(node_number).or_default();
        lost.extend(&own);
        for address in own {
            self.delete(address);
        }
        if !first {
            self.pass_time(rng.random_range(0..LAG.as_secs()));
            self.silence.is_silent(&node(node_number));
        }
    }

    /// The agent is back: it says which of its pods live still.
    fn thaw(&mut self, node_number: u8, rng: &mut StdRng) {
        if !self.living.contains(&node_number) || !self.speaking.insert(node_number) {
            return;
        }
        self.silence.speaks(&node(node_number), Some(self.now));
        let lost = self.lost.get(&node_number).cloned().unwrap_or_default();
        for address in lost {
            self.pass_time(rng.random_range(0..RETURN.as_secs() / u64::from(PODS)));
            if rng.random_bool(0.8) {
                self.put(node_number, address);
            }
        }
        self.lost.remove(&node_number);
    }

    fn pass_time(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let (gone, next) = self.silence.due(self.now);
        assert!(next.is_none_or(|next| next > self.now), "nothing is late");
        for word in gone {
            self.pass(Some(word));
        }
    }

    fn joins(&mut self, node: u8, is: bool) {
        if is {
            self.living.insert(node);
        } else {
            self.living.remove(&node);
            self.lost.remove(&node);
        }
        self.silence.have(living(&self.living));
    }
}

#[test]
fn nobody_is_cut_off_and_nothing_stays_for_ever() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random());
    println!("CILIA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..200 {
        let mut world = World {
            silence: Silence::default(),
            now: Instant::now(),
            living: BTreeSet::new(),
            speaking: BTreeSet::new(),
            stored: BTreeSet::new(),
            lost: BTreeMap::new(),
            told: BTreeSet::new(),
        };
        for _ in 0..100 {
            let (node, one) = (rng.random_range(0..NODES), rng.random_range(0..PODS));
            match rng.random_range(0..8) {
                0 => world.joins(node, rng.random_bool(0.8)),
                1 | 2 => world.thaw(node, &mut rng),
                3 if world.living.contains(&node) => world.expire(node, &mut rng),
                4 | 5 if world.speaking.contains(&node) => world.put(node, pod(node, one)),
                6 if world.speaking.contains(&node) => world.delete(pod(node, one)),
                _ => world.pass_time(rng.random_range(0..30)),
            }
        }
        // Everybody is back, or gone: the ipcache has what the kvstore has, and nothing is remembered.
        for node in 0..NODES {
            let stays = rng.random_bool(0.5);
            world.joins(node, stays);
            world.thaw(node, &mut rng);
        }
        world.pass_time((LAG + RETURN).as_secs());
        assert_eq!(world.told, world.stored, "CILIA_SEED={seed}");
        assert_eq!(world.silence.hosts.len(), world.stored.len());
        assert!(!world.silence.waits());
    }
}
