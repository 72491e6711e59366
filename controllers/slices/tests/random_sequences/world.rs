//! An API server of a few lines, its watches, and an operator that crashes.

mod operator;
mod server;
mod watches;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::networking::{AddressPair, EndpointNetworking};
use cilia_crds::ciliumendpoint::{EndpointIdentity, EndpointStatus};
use cilia_slices::{Action, Event, Outcome, Slices, Write};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

type Key = (String, String);

#[derive(Debug, Clone, PartialEq)]
struct Cep {
    version: i64,
    valid: bool,
}

#[derive(Debug, Clone)]
struct Ces {
    uid: u64,
    version: u64,
    namespace: String,
    endpoints: Vec<CoreCiliumEndpoint>,
}

#[derive(Debug, Clone)]
enum CesEvent {
    Applied(String, Ces),
    Deleted(String, u64),
    Listed(BTreeSet<String>),
}

#[derive(Debug)]
struct Sent {
    write: Write,
    planned_at: u64,
}

pub struct World {
    pub rng: StdRng,
    foreign_writers: bool,
    max: usize,
    step: u64,
    // The API server.
    version: u64,
    ceps: BTreeMap<Key, Cep>,
    slices: BTreeMap<String, Ces>,
    priority: BTreeSet<String>,
    // What its watches have not delivered yet, and what they have.
    cep_events: VecDeque<(Key, Option<Cep>)>,
    slice_events: VecDeque<CesEvent>,
    delivered: BTreeMap<String, u64>,
    // The operator, the writes it waits for, those it has given up, and since when it knows of
    // each living endpoint.
    operator: Slices,
    /// A replica that hears the same and may take over.
    standby: Slices,
    /// It has heard of everything that there was when it began to follow.
    standby_ready: bool,
    sent: Vec<Sent>,
    late: Vec<Sent>,
    heard: BTreeMap<Key, u64>,
}

const NAMESPACES: [&str; 3] = ["a", "b", "c"];

impl World {
    pub fn new(seed: u64, foreign_writers: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let max = rng.random_range(1..5);
        let mut world = Self {
            rng,
            foreign_writers,
            max,
            step: 0,
            version: 1,
            ceps: BTreeMap::new(),
            slices: BTreeMap::new(),
            priority: BTreeSet::new(),
            cep_events: VecDeque::new(),
            slice_events: VecDeque::new(),
            delivered: BTreeMap::new(),
            operator: Slices::new(max, 0),
            standby: Slices::new(max, 0),
            standby_ready: false,
            sent: Vec::new(),
            late: Vec::new(),
            heard: BTreeMap::new(),
        };
        // What former operators left: anything, in any number of copies.
        for _ in 0..world.rng.random_range(0..12) {
            let key = world.key();
            world.write_cep(key);
        }
        for _ in 0..world.rng.random_range(0..5) {
            world.foreign_slice();
        }
        world.crash();
        world
    }

    pub fn step(&mut self) {
        self.step += 1;
        self.standby_ready |= self.cep_events.is_empty() && self.slice_events.is_empty();
        match self.rng.random_range(0..20) {
            0..=3 => {
                let key = self.key();
                self.write_cep(key);
            }
            4 | 5 => {
                let key = self.key();
                if self.ceps.remove(&key).is_some() {
                    self.cep_events.push_back((key, None));
                }
            }
            6 | 7 => {
                for _ in 0..self.rng.random_range(1..6) {
                    self.deliver_cep();
                }
            }
            8 | 9 => {
                for _ in 0..self.rng.random_range(1..4) {
                    self.deliver_slice();
                }
            }
            10..=12 => self.send(),
            13..=15 => {
                if !self.sent.is_empty() {
                    let index = self.rng.random_range(0..self.sent.len());
                    let sent = self.sent.swap_remove(index);
                    self.answer(sent);
                }
            }
            16 if self.rng.random_bool(0.2) => self.crash(),
            16 if self.standby_ready && self.rng.random_bool(0.3) => self.hand_over(),
            16 if self.rng.random_bool(0.3) => self.relist(),
            17 => {
                let name = NAMESPACES[self.rng.random_range(0..3)].to_owned();
                if !self.priority.remove(&name) {
                    self.priority.insert(name.clone());
                }
                let priority = self.priority.contains(&name);
                self.tell(Event::Namespace { name: &name, priority });
            }
            18 => {
                self.operator.tidy();
            }
            19 if self.foreign_writers => self.foreign_slice(),
            _ => {
                if let Some(late) = self.late.pop() {
                    self.land(&late);
                }
            }
        }
    }

    /// Lets everything that is under way arrive, and holds the end against the laws.
    pub fn finish(&mut self) {
        while let Some(sent) = self.sent.pop() {
            self.answer(sent);
        }
        for late in std::mem::take(&mut self.late) {
            self.land(&late);
        }
        self.settle();
        let settled = self.slices.values().map(|ces| ces.version).collect::<Vec<_>>();
        self.check_end();
        self.crash();
        self.settle();
        let after = self.slices.values().map(|ces| ces.version).collect::<Vec<_>>();
        assert_eq!(settled, after, "a restart at rest writes nothing");
    }

    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1_000, "it never comes to rest");
            while !self.cep_events.is_empty() || !self.slice_events.is_empty() {
                self.deliver_cep();
                self.deliver_slice();
            }
            self.send();
            match self.sent.pop() {
                Some(sent) if sent.write.action == Action::Read => {
                    self.operator.settle(&sent.write.slice, Outcome::Refused);
                    self.read(&sent.write.slice);
                }
                Some(sent) => {
                    let outcome = self.land(&sent);
                    self.settled(&sent.write, outcome);
                }
                None if self.operator.tidy() => {}
                None => break,
            }
        }
    }

    fn check_end(&self) {
        let mut listed: BTreeMap<Key, Vec<&CoreCiliumEndpoint>> = BTreeMap::new();
        let mut per_namespace: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (name, ces) in &self.slices {
            let count = ces.endpoints.len();
            assert!((1..=self.max).contains(&count), "{name} lists {count} of {}", self.max);
            let (slices, members) = per_namespace.entry(&ces.namespace).or_default();
            (*slices, *members) = (*slices + 1, *members + count);
            for entry in &ces.endpoints {
                let name = entry.name.clone().expect("every entry has a name");
                listed.entry((ces.namespace.clone(), name)).or_default().push(entry);
            }
        }
        for (namespace, (slices, members)) in per_namespace {
            assert_eq!(slices, members.div_ceil(self.max), "slices of {namespace}");
        }
        for (key, entries) in &listed {
            assert_eq!(entries.len(), 1, "{key:?} is listed more than once");
            let cep = self.ceps.get(key).unwrap_or_else(|| panic!("{key:?} is dead but listed"));
            assert_eq!(*entries[0], entry(&key.1, cep), "what is said of {key:?}");
        }
        for (key, cep) in &self.ceps {
            assert!(!cep.valid || listed.contains_key(key), "{key:?} is in no slice");
        }
    }

    fn key(&mut self) -> Key {
        let namespace = NAMESPACES[self.rng.random_range(0..NAMESPACES.len())];
        (namespace.to_owned(), format!("pod-{}", self.rng.random_range(0..6)))
    }
}

fn status(cep: &Cep) -> EndpointStatus {
    let identity = EndpointIdentity { id: Some(1000 + cep.version), ..Default::default() };
    EndpointStatus {
        identity: cep.valid.then_some(identity),
        networking: Some(networking(cep)),
        ..Default::default()
    }
}

fn entry(name: &str, cep: &Cep) -> CoreCiliumEndpoint {
    CoreCiliumEndpoint {
        name: Some(name.to_owned()),
        id: cep.valid.then_some(1000 + cep.version),
        networking: Some(networking(cep)),
        encryption: Some(cilia_crds::ciliumendpoint::networking::EncryptionSpec::default()),
        ..Default::default()
    }
}

fn networking(cep: &Cep) -> EndpointNetworking {
    let pair = AddressPair { ipv4: Some(format!("10.0.0.{}", cep.version)), ipv6: None };
    EndpointNetworking { addressing: vec![pair], node: Some("192.0.2.1".to_owned()) }
}
