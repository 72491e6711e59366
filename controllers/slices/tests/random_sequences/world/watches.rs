//! What the watches tell the operator and its standby, sooner or later, once or twice.

use cilia_slices::{Event, SliceObject};
use rand::RngExt;

use super::{Cep, Ces, CesEvent, Key, World, status};

impl World {
    pub(super) fn deliver_cep(&mut self) {
        let Some((key, cep)) = self.cep_events.pop_front() else { return };
        self.hear_cep(&key, cep.as_ref());
        if self.rng.random_bool(0.1) {
            self.hear_cep(&key, cep.as_ref());
        }
    }

    pub(super) fn hear_cep(&mut self, key: &Key, cep: Option<&Cep>) {
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

    pub(super) fn deliver_slice(&mut self) {
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

    pub(super) fn hear_slice(&mut self, name: &str, ces: &Ces) {
        let object = SliceObject {
            name,
            uid: &ces.uid.to_string(),
            resource_version: &ces.version.to_string(),
            namespace: &ces.namespace,
            endpoints: &ces.endpoints,
        };
        self.tell(Event::Slice(object));
    }

    /// Both replicas hear what the watches say.
    pub(super) fn tell(&mut self, event: Event<'_>) {
        self.operator.apply(event, self.step);
        self.standby.apply(event, self.step);
    }

    /// The watches broke: everything is listed again.
    pub(super) fn relist(&mut self) {
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
}
