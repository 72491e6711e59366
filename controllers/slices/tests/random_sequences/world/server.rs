//! What the API server has: endpoints and slices, whoever writes them.

use std::collections::BTreeSet;

use cilia_crds::CoreCiliumEndpoint;
use cilia_slices::{Action, Outcome};
use rand::RngExt;

use super::{Cep, Ces, CesEvent, Key, NAMESPACES, Sent, World, entry};

impl World {
    pub(super) fn write_cep(&mut self, key: Key) {
        let version = self.rng.random_range(1..4);
        let cep = Cep { version, valid: self.rng.random_bool(0.85) };
        self.ceps.insert(key.clone(), cep.clone());
        self.cep_events.push_back((key, Some(cep)));
    }

    /// Somebody else writes or deletes a slice, or there are leftovers of a former operator.
    pub(super) fn foreign_slice(&mut self) {
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

    pub(super) fn store(
        &mut self,
        name: &str,
        namespace: String,
        endpoints: Vec<CoreCiliumEndpoint>,
    ) {
        self.version += 1;
        let version = self.version;
        let uid = self.slices.get(name).map_or(version, |ces| ces.uid);
        let ces = Ces { uid, version, namespace, endpoints };
        self.slices.insert(name.to_owned(), ces.clone());
        self.slice_events.push_back(CesEvent::Applied(name.to_owned(), ces));
    }

    /// What the API server makes of a write; here nobody may disappear.
    pub(super) fn land(&mut self, sent: &Sent) -> Outcome {
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

    pub(super) fn stored(&self, name: &str) -> Outcome {
        let ces = &self.slices[name];
        let (uid, resource_version) = (ces.uid.to_string(), ces.version.to_string());
        Outcome::Stored { uid, resource_version }
    }

    pub(super) fn visible(&self) -> BTreeSet<Key> {
        let entries = self.slices.values().flat_map(|ces| {
            let names = ces.endpoints.iter().filter_map(|entry| entry.name.clone());
            names.map(|name| (ces.namespace.clone(), name))
        });
        entries.collect()
    }
}
