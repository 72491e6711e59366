//! An API server of a few lines, its watches, and an operator that crashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cilia_crds::CoreCiliumEndpoint;
use cilia_crds::ciliumendpoint::networking::{AddressPair, EndpointNetworking};
use cilia_crds::ciliumendpoint::{EndpointIdentity, EndpointStatus};
use cilia_slices::{Action, Event, Outcome, SliceObject, Slices, Write};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
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

    fn write_cep(&mut self, key: Key) {
        let version = self.rng.random_range(1..4);
        let cep = Cep { version, valid: self.rng.random_bool(0.85) };
        self.ceps.insert(key.clone(), cep.clone());
        self.cep_events.push_back((key, Some(cep)));
    }

    /// Somebody else writes or deletes a slice, or there are leftovers of a former operator.
    fn foreign_slice(&mut self) {
        let mut names: Vec<String> = self.slices.keys().cloned().collect();
        names.push(format!("foreign-{}", self.rng.random_range(0..3)));
        let name = names.swap_remove(self.rng.random_range(0..names.len()));
        if self.rng.random_bool(0.3) {
            if let Some(ces) = self.slices.remove(&name) {
                self.version += 1;
                self.slice_events.push_back(CesEvent::Deleted(name, ces.uid));
            }
            return;
        }
        let namespace = NAMESPACES[self.rng.random_range(0..3)].to_owned();
        let count = self.rng.random_range(0..7);
        let endpoints = (0..count).map(|_| {
            let (_, name) = self.key();
            let cep = Cep { version: self.rng.random_range(1..4), valid: true };
            entry(&name, &cep)
        });
        let endpoints = endpoints.collect();
        self.store(&name, namespace, endpoints);
    }

    fn store(&mut self, name: &str, namespace: String, endpoints: Vec<CoreCiliumEndpoint>) {
        self.version += 1;
        let version = self.version;
        let uid = self.slices.get(name).map_or(version, |ces| ces.uid);
        let ces = Ces { uid, version, namespace, endpoints };
        self.slices.insert(name.to_owned(), ces.clone());
        self.slice_events.push_back(CesEvent::Applied(name.to_owned(), ces));
    }

    fn deliver_cep(&mut self) {
        let Some((key, cep)) = self.cep_events.pop_front() else { return };
        self.hear_cep(&key, cep.as_ref());
        if self.rng.random_bool(0.1) {
            self.hear_cep(&key, cep.as_ref());
        }
    }

    fn hear_cep(&mut self, key: &Key, cep: Option<&Cep>) {
        let (namespace, name) = (key.0.as_str(), key.1.as_str());
        if let Some(cep) = cep {
            let status = status(cep);
            self.tell(Event::Endpoint { namespace, name, status: Some(&status) });
            self.heard.entry(key.clone()).or_insert(self.step);
        } else {
            self.tell(Event::EndpointGone { namespace, name });
            self.heard.remove(key);
        }
    }

    fn deliver_slice(&mut self) {
        match self.slice_events.pop_front() {
            None => {}
            Some(CesEvent::Applied(name, ces)) => {
                self.delivered.insert(name.clone(), ces.uid);
                self.hear_slice(&name, &ces);
                if self.rng.random_bool(0.1) {
                    self.hear_slice(&name, &ces);
                }
            }
            Some(CesEvent::Deleted(name, uid)) => {
                self.delivered.remove(&name);
                let uid = uid.to_string();
                self.tell(Event::SliceGone { name: &name, uid: Some(&uid) });
            }
            Some(CesEvent::Listed(names)) => {
                for replica in [&mut self.operator, &mut self.standby] {
                    replica.relisted(|name| names.contains(name));
                }
                // A hand-over drops what was under way: this list is from after it.
                self.operator.confirm();
            }
        }
    }

    /// Both replicas hear what the watches say.
    fn tell(&mut self, event: Event<'_>) {
        self.operator.apply(event, self.step);
        self.standby.apply(event, self.step);
    }

    fn hear_slice(&mut self, name: &str, ces: &Ces) {
        let object = SliceObject {
            name,
            uid: &ces.uid.to_string(),
            resource_version: &ces.version.to_string(),
            namespace: &ces.namespace,
            endpoints: &ces.endpoints,
        };
        self.tell(Event::Slice(object));
    }

    /// The operator is killed, and another starts.
    fn crash(&mut self) {
        self.die();
        self.cep_events.clear();
        self.slice_events.clear();
        self.heard.clear();
        self.delivered.clear();
        self.operator = self.replica();
        self.standby = self.replica();
        for name in self.priority.clone() {
            self.tell(Event::Namespace { name: &name, priority: true });
        }
        let mut slices: Vec<_> = self.slices.clone().into_iter().collect();
        let mut ceps: Vec<_> = self.ceps.clone().into_iter().collect();
        slices.shuffle(&mut self.rng);
        ceps.shuffle(&mut self.rng);
        while !slices.is_empty() || !ceps.is_empty() {
            if self.rng.random_bool(0.5) {
                if let Some((name, ces)) = slices.pop() {
                    self.delivered.insert(name.clone(), ces.uid);
                    self.hear_slice(&name, &ces);
                }
            } else if let Some((key, cep)) = ceps.pop() {
                self.hear_cep(&key, Some(&cep));
            }
        }
        self.operator.start();
        self.operator.confirm();
    }

    /// The operator dies, and the standby goes on from what it has followed so far.
    fn hand_over(&mut self) {
        self.die();
        let standby = self.replica();
        self.operator = std::mem::replace(&mut self.standby, standby);
        self.operator.start();
        for name in self.priority.clone() {
            self.standby.apply(Event::Namespace { name: &name, priority: true }, self.step);
        }
        // Another one starts to follow: it lists what there is, and hears what is still to come.
        self.standby_ready = false;
        self.relist();
    }

    /// Of the writes under way some are done.
    fn die(&mut self) {
        for sent in std::mem::take(&mut self.sent) {
            if self.rng.random_bool(0.5) {
                self.land(&sent);
            }
        }
        self.late.clear();
    }

    fn replica(&mut self) -> Slices {
        Slices::new(self.max, self.rng.random()).scarce_from(self.rng.random_range(0..4))
    }

    /// The watches broke: everything is listed again.
    fn relist(&mut self) {
        self.slice_events.clear();
        self.cep_events.clear();
        for (name, uid) in self.delivered.clone() {
            if !self.slices.contains_key(&name) {
                self.slice_events.push_back(CesEvent::Deleted(name, uid));
            }
        }
        for (name, ces) in &self.slices {
            self.slice_events.push_back(CesEvent::Applied(name.clone(), ces.clone()));
        }
        let names = self.slices.keys().cloned().collect();
        self.slice_events.push_back(CesEvent::Listed(names));
        for key in self.heard.keys().filter(|key| !self.ceps.contains_key(*key)) {
            self.cep_events.push_back((key.clone(), None));
        }
        for (key, cep) in &self.ceps {
            self.cep_events.push_back((key.clone(), Some(cep.clone())));
        }
    }

    fn send(&mut self) {
        let Some(slice) = self.operator.next(self.step) else { return };
        let Some(write) = self.operator.plan(&slice) else { panic!("{slice} had to be written") };
        assert_eq!(self.operator.plan(&slice), None, "{slice} is being written");
        self.sent.push(Sent { write, planned_at: self.step });
    }

    /// A write arrives, or does not, and so does its answer.
    fn answer(&mut self, sent: Sent) {
        if sent.write.action == Action::Read {
            self.operator.settle(&sent.write.slice, Outcome::Refused);
            if self.rng.random_bool(0.8) {
                self.read(&sent.write.slice);
            }
            return;
        }
        match self.rng.random_range(0..10) {
            0 => self.settled(&sent.write, Outcome::Refused),
            1 => {
                self.settled(&sent.write, Outcome::Unknown);
                self.late.push(sent);
            }
            2 => {
                self.land(&sent);
                self.settled(&sent.write, Outcome::Unknown);
            }
            _ => {
                let outcome = self.land(&sent);
                self.settled(&sent.write, outcome);
            }
        }
    }

    fn settled(&mut self, write: &Write, outcome: Outcome) {
        let unknown = outcome == Outcome::Unknown;
        self.operator.settle(&write.slice, outcome);
        if unknown && self.rng.random_bool(0.8) {
            self.read(&write.slice);
        }
    }

    /// The operator reads a slice.
    fn read(&mut self, name: &str) {
        if let Some(ces) = self.slices.get(name).cloned() {
            self.hear_slice(name, &ces);
        } else {
            self.operator.apply(Event::SliceGone { name, uid: None }, self.step);
        }
    }

    /// What the API server makes of a write; here nobody may disappear.
    fn land(&mut self, sent: &Sent) -> Outcome {
        let before = self.visible();
        let name = sent.write.slice.to_string();
        let is_the_one = |uid: &str, version: &str| {
            self.slices
                .get(&name)
                .is_some_and(|ces| ces.uid.to_string() == uid && ces.version.to_string() == version)
        };
        let outcome = match &sent.write.action {
            Action::Create { namespace, endpoints } if !self.slices.contains_key(&name) => {
                self.store(&name, namespace.to_string(), endpoints.clone());
                self.stored(&name)
            }
            Action::Update { uid, resource_version, namespace, endpoints }
                if is_the_one(uid, resource_version) =>
            {
                self.store(&name, namespace.to_string(), endpoints.clone());
                self.stored(&name)
            }
            Action::Delete { uid, resource_version } if is_the_one(uid, resource_version) => {
                self.version += 1;
                if let Some(ces) = self.slices.remove(&name) {
                    self.slice_events.push_back(CesEvent::Deleted(name, ces.uid));
                }
                Outcome::Deleted
            }
            _ => Outcome::Unknown,
        };
        if !self.foreign_writers {
            for key in before.difference(&self.visible()) {
                let known = self.heard.get(key).is_some_and(|since| *since <= sent.planned_at);
                let lives = known && self.ceps.contains_key(key);
                assert!(!lives, "{key:?} is in no slice any more, after {:?}", sent.write);
            }
        }
        outcome
    }

    fn stored(&self, name: &str) -> Outcome {
        let ces = &self.slices[name];
        let (uid, resource_version) = (ces.uid.to_string(), ces.version.to_string());
        Outcome::Stored { uid, resource_version }
    }

    fn visible(&self) -> BTreeSet<Key> {
        let entries = self.slices.values().flat_map(|ces| {
            let names = ces.endpoints.iter().filter_map(|entry| entry.name.clone());
            names.map(|name| (ces.namespace.clone(), name))
        });
        entries.collect()
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
