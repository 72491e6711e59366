//! Keeps what belongs where and what is listed where in step, from both sides.

use crate::endpoint::{Endpoint, EndpointId, SliceId};
use crate::name;
use crate::namespace::Namespace;
use crate::slice::{Seen, Slice};
use crate::slices::Slices;
use crate::text::Text;

impl Slices {
    /// The object is this now.
    pub(crate) fn see(&mut self, id: SliceId, seen: Seen) {
        // Both lists hold on to their endpoints until both are in place.
        let before = self.slices[id].seen.take();
        for endpoint in before.iter().flat_map(|seen| seen.entries.keys()) {
            self.unlist(*endpoint, id);
        }
        for endpoint in seen.entries.keys() {
            let listed = &mut self.endpoints[*endpoint];
            listed.seen_in.insert(id);
            self.slices[id].lingering += usize::from(listed.lingers_in(id));
        }
        let now_listed: Vec<EndpointId> = seen.entries.keys().copied().collect();
        self.slices[id].seen = Some(seen);
        for endpoint in now_listed {
            // Where it lingers it may go now.
            let elsewhere = self.endpoints[endpoint].seen_in.as_slice();
            self.touched.extend(elsewhere.iter().filter(|other| **other != id));
            if self.started && self.endpoints[endpoint].home.is_none() {
                self.settle_down(endpoint);
            }
            self.contented(endpoint);
            let listed = &mut self.endpoints[endpoint];
            if !listed.lives() {
                listed.waiting_since.get_or_insert(self.now);
            }
        }
        for endpoint in before.iter().flat_map(|seen| seen.entries.keys()) {
            self.missed(*endpoint);
            self.forget_endpoint(*endpoint);
        }
        self.touched.insert(id);
    }

    /// A slice does not say any more what it said of an endpoint that lives: if none says the truth of it
    /// now, the endpoint waits as one that has just appeared.
    pub(crate) fn missed(&mut self, id: EndpointId) {
        let endpoint = &self.endpoints[id];
        let says_the_truth = |slice: &SliceId| {
            let said = self.slices[*slice].seen.as_ref().and_then(|seen| seen.entries.get(&id));
            said == Some(&endpoint.digest)
        };
        let visible = endpoint.seen_in.as_slice().iter().any(says_the_truth);
        if endpoint.lives() && endpoint.home.is_some() && !visible {
            self.endpoints[id].waiting_since.get_or_insert(self.now);
        }
    }

    pub(crate) fn unlist(&mut self, endpoint: EndpointId, id: SliceId) {
        let listed = &mut self.endpoints[endpoint];
        listed.seen_in.remove(id);
        self.slices[id].lingering -= usize::from(listed.lingers_in(id));
    }

    /// The endpoint waits no longer once its home says the truth of it.
    pub(crate) fn contented(&mut self, id: EndpointId) {
        let endpoint = &mut self.endpoints[id];
        let said = endpoint.home.and_then(|home| {
            self.slices[home].seen.as_ref().and_then(|seen| seen.entries.get(&id))
        });
        if said == Some(&endpoint.digest) {
            endpoint.waiting_since = None;
        }
    }

    /// Changes an endpoint, keeps the counts of where it lingers, and has its slices looked at.
    pub(crate) fn alter(&mut self, id: EndpointId, change: impl FnOnce(&mut Endpoint)) {
        let endpoint = &mut self.endpoints[id];
        for slice in endpoint.seen_in.as_slice() {
            self.slices[*slice].lingering -= usize::from(endpoint.lingers_in(*slice));
        }
        self.touched.extend(endpoint.home);
        let (home, excess) = (endpoint.home, endpoint.excess);
        change(endpoint);
        if let Some(home) = home.filter(|home| self.slices[*home].members.contains(&id)) {
            self.slices[home].excess += endpoint.excess;
            self.slices[home].excess -= excess;
        }
        for slice in endpoint.seen_in.as_slice() {
            self.slices[*slice].lingering += usize::from(endpoint.lingers_in(*slice));
        }
        self.touched.extend(endpoint.seen_in.as_slice());
        self.touched.extend(endpoint.home);
    }

    /// Makes a slice the endpoint's home, or none.
    pub(crate) fn set_home(&mut self, id: EndpointId, home: Option<SliceId>) {
        let before = self.endpoints[id].home;
        self.alter(id, |endpoint| endpoint.home = home);
        for (slice, belongs) in [(before, false), (home, true)] {
            let Some(slice_id) = slice else { continue };
            let slice = &mut self.slices[slice_id];
            let namespace = self.namespaces.entry(slice.namespace.clone()).or_default();
            namespace.slices.remove(&(slice.members.len(), slice_id));
            let excess = self.endpoints[id].excess;
            if belongs && slice.members.insert(id) {
                slice.excess += excess;
            } else if !belongs && slice.members.remove(&id) {
                slice.excess -= excess;
            }
            namespace.slices.insert((slice.members.len(), slice_id));
        }
    }

    /// A slice of which there is no object yet.
    pub(crate) fn new_slice(&mut self, namespace: &str) -> SliceId {
        loop {
            let name = name::draw(&mut self.rng);
            if !self.by_name.contains_key(name.as_str()) {
                return self.slice_id(&name, namespace);
            }
        }
    }

    pub(crate) fn find_slice(&self, name: &str) -> Option<SliceId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn slice_id(&mut self, name: &str, namespace: &str) -> SliceId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let (name, namespace) = (Text::from(name), self.texts.intern(namespace));
        let id = self.slices.insert(Slice::new(name.clone(), namespace.clone()));
        self.by_name.insert(name, id);
        self.namespaces.entry(namespace).or_default().slices.insert((0, id));
        id
    }

    /// Moves a slice that nothing belongs in to another namespace.
    pub(crate) fn rename(&mut self, id: SliceId, namespace: &str) {
        let namespace = self.texts.intern(namespace);
        let before = std::mem::replace(&mut self.slices[id].namespace, namespace.clone());
        if let Some(namespace) = self.namespaces.get_mut(&before) {
            namespace.open.take_if(|open| *open == id);
            namespace.slices.remove(&(0, id));
        }
        self.forget_namespace(&before);
        self.namespaces.entry(namespace).or_default().slices.insert((0, id));
    }

    pub(crate) fn forget_slice(&mut self, id: SliceId) {
        let slice = self.slices.remove(id);
        self.set_pending(id, None);
        self.by_name.remove(&slice.name);
        if let Some(namespace) = self.namespaces.get_mut(&slice.namespace) {
            namespace.open.take_if(|open| *open == id);
            namespace.slices.remove(&(0, id));
        }
        self.forget_namespace(&slice.namespace);
    }

    pub(crate) fn find_endpoint(&self, namespace: &str, name: &str) -> Option<EndpointId> {
        self.namespaces.get(namespace)?.endpoints.get(name).copied()
    }

    pub(crate) fn endpoint_id(&mut self, namespace: &str, name: &str) -> EndpointId {
        if let Some(id) = self.find_endpoint(namespace, name) {
            return id;
        }
        let (namespace, name) = (self.texts.intern(namespace), Text::from(name));
        let id = self.endpoints.insert(Endpoint::new(namespace.clone(), name.clone()));
        self.namespaces.entry(namespace).or_default().endpoints.insert(name, id);
        id
    }

    /// Forgets an endpoint that does not live and that no slice lists.
    pub(crate) fn forget_endpoint(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id) else { return };
        if endpoint.lives() || !endpoint.seen_in.is_empty() {
            return;
        }
        let endpoint = self.endpoints.remove(id);
        if let Some(namespace) = self.namespaces.get_mut(&endpoint.namespace) {
            namespace.endpoints.remove(&endpoint.name);
        }
        self.forget_namespace(&endpoint.namespace);
    }

    pub(crate) fn forget_namespace(&mut self, name: &str) {
        if self.namespaces.get(name).is_some_and(Namespace::is_empty) {
            self.namespaces.remove(name);
        }
    }
}
