//! Takes in events, and keeps what belongs where and what is listed where in step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::SeedableRng;
use rand::rngs::StdRng;
use slab::Slab;

use crate::content::Content;
use crate::endpoint::{Endpoint, EndpointId, SliceId};
use crate::event::{Event, Outcome, SliceObject};
use crate::namespace::Namespace;
use crate::slice::{Seen, Slice};
use crate::text::{Text, Texts};
use crate::{Millis, name};

/// Every endpoint, every slice, and what belongs where.
///
/// About 330 bytes an endpoint: 90 its content, 100 the endpoint, 60 its name, 80 where it is
/// found. About 300 bytes a slice.
#[derive(Debug)]
pub struct Slices {
    pub(crate) max: usize,
    pub(crate) started: bool,
    pub(crate) endpoints: Slab<Endpoint>,
    pub(crate) slices: Slab<Slice>,
    pub(crate) namespaces: BTreeMap<Text, Namespace>,
    by_name: HashMap<Text, SliceId>,
    texts: Texts,
    rng: StdRng,
    /// Slices about which something has changed since they were looked at.
    touched: BTreeSet<SliceId>,
    /// Slices that have to be written and are not being written.
    pub(crate) pending: BTreeSet<SliceId>,
    /// Slices to report by [`Slices::take_changed`].
    changed: BTreeSet<SliceId>,
}

/// A slice that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Its name.
    pub slice: Text,
    /// It belongs in the lane of priority namespaces.
    pub priority: bool,
}

impl Slices {
    /// Nothing known yet. No slice gets more than `max` endpoints; names are drawn from `seed`.
    pub fn new(max: usize, seed: u64) -> Self {
        Self {
            max: max.max(1),
            started: false,
            endpoints: Slab::new(),
            slices: Slab::new(),
            namespaces: BTreeMap::new(),
            by_name: HashMap::new(),
            texts: Texts::default(),
            rng: StdRng::seed_from_u64(seed),
            touched: BTreeSet::new(),
            pending: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Every endpoint and every slice that exists has been heard of: from now on endpoints get
    /// places.
    ///
    /// One that a slice lists stays there: in the slice that says the truth of it, if several
    /// list it, and else in the first by name.
    pub fn start(&mut self, _now: Millis) {
        self.started = true;
        let homeless = self.endpoints.iter().filter(|(_, endpoint)| endpoint.home.is_none());
        let mut homeless: Vec<(Text, Text, EndpointId)> = homeless
            .map(|(id, endpoint)| (endpoint.namespace.clone(), endpoint.name.clone(), id))
            .collect();
        homeless.sort_unstable();
        for (_, _, endpoint) in homeless {
            self.settle_down(endpoint);
        }
        self.touched.extend(self.slices.iter().map(|(id, _)| id));
    }

    /// Takes in how something is.
    pub fn apply(&mut self, event: Event<'_>, now: Millis) {
        match event {
            Event::Endpoint { namespace, name, status } => {
                let valid = status
                    .is_some_and(|status| status.identity.is_some() && status.networking.is_some());
                let content = status
                    .map(|status| Content::of_status(status, &mut self.texts))
                    .unwrap_or_default();
                self.endpoint(namespace, name, content, valid && !name.is_empty(), now);
            }
            Event::EndpointGone { namespace, name } => self.endpoint_gone(namespace, name, now),
            Event::Slice(object) => self.slice(object, now),
            Event::SliceGone { name, uid } => self.slice_gone(name, uid),
            Event::Namespace { name, priority } => self.namespace(name, priority),
        }
    }

    /// Takes in how a write of [`Slices::plan`] went.
    pub fn settle(&mut self, slice: &str, outcome: Outcome) {
        let Some(&id) = self.by_name.get(slice) else { return };
        let Some(in_flight) = self.slices[id].in_flight.take() else { return };
        self.touched.insert(id);
        match outcome {
            Outcome::Stored { uid, resource_version } => {
                self.rely_on(id, true);
                let slice = &self.slices[id];
                if !slice.is_news(&resource_version) {
                    return;
                }
                let namespace = slice.namespace.clone();
                let entries = in_flight.entries.into_iter();
                let entries: Vec<_> = entries
                    .map(|(name, digest)| (self.endpoint_id(&namespace, &name), digest))
                    .collect();
                self.see(
                    id,
                    Seen {
                        uid: uid.into(),
                        resource_version: resource_version.into(),
                        entries: entries.into_iter().collect(),
                        faulty: false,
                    },
                );
            }
            Outcome::Deleted => {
                // If somebody's finalizer keeps it, its next event tells.
                self.bury(id);
            }
            Outcome::Refused => self.rely_on(id, !in_flight.was_unsure),
            Outcome::Unknown => {}
        }
    }

    /// A watch of slices broke and all were listed again: these `exist`.
    ///
    /// A slice that is known only from the answer to a write may have been deleted meanwhile without
    /// an event. It is not relied on until a write has shown whether it is there.
    pub fn relisted(&mut self, exist: impl Fn(&str) -> bool) {
        for (id, slice) in &mut self.slices {
            if !exist(&slice.name) && slice.in_flight.is_none() {
                slice.buried = None;
                slice.unsure |= slice.seen.is_some();
                self.touched.insert(id);
            }
        }
    }

    /// The slices of which there is an object, as far as is known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let there = self.slices.iter().filter(|(_, slice)| slice.seen.is_some());
        there.map(|(_, slice)| &*slice.name)
    }

    /// The slices that have come to be wrong since the last call, or got worse.
    pub fn take_changed(&mut self) -> Vec<Changed> {
        self.refresh();
        let changed = std::mem::take(&mut self.changed);
        let changed = changed.into_iter().filter(|id| self.pending.contains(id));
        changed
            .map(|id| Changed { slice: self.slices[id].name.clone(), priority: self.is_urgent(id) })
            .collect()
    }

    /// How many endpoints live, and how many slices exist or are about to.
    pub fn len(&self) -> (usize, usize) {
        let live = self.endpoints.iter().filter(|(_, endpoint)| endpoint.lives()).count();
        (live, self.slices.len())
    }

    fn endpoint(
        &mut self,
        namespace: &str,
        name: &str,
        content: Content,
        valid: bool,
        now: Millis,
    ) {
        let id = self.endpoint_id(namespace, name);
        let digest = content.digest();
        let endpoint = &self.endpoints[id];
        if endpoint.lives() && endpoint.digest == digest && endpoint.valid == valid {
            return;
        }
        self.alter(id, |endpoint| {
            endpoint.content = Some(Box::new(content));
            endpoint.digest = digest;
            endpoint.valid = valid;
            if valid || endpoint.home.is_some() {
                endpoint.waiting_since.get_or_insert(now);
            }
        });
        if self.started && self.endpoints[id].home.is_none() {
            self.settle_down(id);
        }
        self.contented(id);
    }

    fn endpoint_gone(&mut self, namespace: &str, name: &str, now: Millis) {
        let Some(id) = self.find_endpoint(namespace, name) else { return };
        if !self.endpoints[id].lives() {
            return;
        }
        self.set_home(id, None);
        self.alter(id, |endpoint| {
            endpoint.content = None;
            endpoint.valid = false;
            endpoint.waiting_since = Some(now);
        });
        self.forget_endpoint(id);
    }

    fn slice(&mut self, object: SliceObject<'_>, now: Millis) {
        let id = self.slice_id(object.name, object.namespace);
        let slice = &self.slices[id];
        if !slice.is_news(object.resource_version) {
            return;
        }
        if slice.members.is_empty() && &*slice.namespace != object.namespace {
            self.rename(id, object.namespace);
        }
        let namespace = self.texts.intern(object.namespace);
        let mut faulty = namespace != self.slices[id].namespace;
        let mut entries = HashMap::with_capacity(object.endpoints.len());
        for entry in object.endpoints {
            let Some(name) = entry.name.as_deref().filter(|name| !name.is_empty()) else {
                faulty = true;
                continue;
            };
            let digest = Content::of_entry(entry, &mut self.texts).digest();
            let endpoint = self.endpoint_id(&namespace, name);
            faulty |= entries.insert(endpoint, digest).is_some();
        }
        self.slices[id].unsure = false;
        self.slices[id].buried = None;
        self.slices[id].wrong_since = faulty.then_some(now);
        let uid = object.uid.into();
        let resource_version = object.resource_version.into();
        self.see(id, Seen { uid, resource_version, entries, faulty });
    }

    fn slice_gone(&mut self, name: &str, uid: Option<&str>) {
        let Some(&id) = self.by_name.get(name) else { return };
        let slice = &mut self.slices[id];
        self.touched.insert(id);
        match (&slice.seen, uid) {
            (_, None) => self.bury(id),
            (Some(seen), Some(uid)) if *seen.uid == *uid => {
                self.bury(id);
                self.slices[id].buried = None;
            }
            // That was another object of that name, before.
            (_, Some(_)) => slice.buried = None,
        }
    }

    /// Whether what the object lists is certain; if it is, what belongs in it can go elsewhere.
    fn rely_on(&mut self, id: SliceId, certain: bool) {
        self.slices[id].unsure = !certain;
        if certain {
            let members = self.slices[id].members.iter();
            self.touched.extend(members.flat_map(|m| self.endpoints[*m].seen_in.as_slice()));
        }
    }

    /// There certainly is no object, though events of when there was may still be on their way.
    fn bury(&mut self, id: SliceId) {
        self.slices[id].unsure = false;
        let Some(before) = self.slices[id].seen.take() else { return };
        self.slices[id].wrong_since = None;
        self.slices[id].buried = Some(before.resource_version);
        for endpoint in before.entries.keys() {
            self.unlist(*endpoint, id);
            self.forget_endpoint(*endpoint);
        }
    }

    fn namespace(&mut self, name: &str, priority: bool) {
        if !priority && !self.namespaces.contains_key(name) {
            return;
        }
        let key = self.texts.intern(name);
        let namespace = self.namespaces.entry(key).or_default();
        if namespace.priority != priority {
            namespace.priority = priority;
            self.touched.extend(namespace.slices.iter().map(|(_, id)| *id));
        }
        self.forget_namespace(name);
    }

    /// The object is this now.
    fn see(&mut self, id: SliceId, seen: Seen) {
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
        }
        for endpoint in before.iter().flat_map(|seen| seen.entries.keys()) {
            self.forget_endpoint(*endpoint);
        }
        self.touched.insert(id);
    }

    fn unlist(&mut self, endpoint: EndpointId, id: SliceId) {
        let listed = &mut self.endpoints[endpoint];
        listed.seen_in.remove(id);
        self.slices[id].lingering -= usize::from(listed.lingers_in(id));
    }

    /// The endpoint waits no longer once its home says the truth of it.
    fn contented(&mut self, id: EndpointId) {
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
        change(endpoint);
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
            if belongs {
                slice.members.insert(id);
            } else {
                slice.members.remove(&id);
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

    /// Looks at every slice that something has changed about: what is to be written, what is over.
    pub(crate) fn refresh(&mut self) {
        if !self.started {
            return;
        }
        for id in std::mem::take(&mut self.touched) {
            let Some(slice) = self.slices.get(id) else { continue };
            let idle = slice.in_flight.is_none();
            let none = slice.seen.is_none() && slice.buried.is_none();
            if idle && none && slice.members.is_empty() {
                self.forget_slice(id);
            } else if idle && self.is_wrong(id) {
                self.pending.insert(id);
                self.changed.insert(id);
            } else {
                self.pending.remove(&id);
            }
        }
    }

    pub(crate) fn find_slice(&self, name: &str) -> Option<SliceId> {
        self.by_name.get(name).copied()
    }

    fn slice_id(&mut self, name: &str, namespace: &str) -> SliceId {
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
    fn rename(&mut self, id: SliceId, namespace: &str) {
        let namespace = self.texts.intern(namespace);
        let before = std::mem::replace(&mut self.slices[id].namespace, namespace.clone());
        if let Some(namespace) = self.namespaces.get_mut(&before) {
            namespace.slices.remove(&(0, id));
        }
        self.forget_namespace(&before);
        self.namespaces.entry(namespace).or_default().slices.insert((0, id));
    }

    fn forget_slice(&mut self, id: SliceId) {
        let slice = self.slices.remove(id);
        self.pending.remove(&id);
        self.by_name.remove(&slice.name);
        if let Some(namespace) = self.namespaces.get_mut(&slice.namespace) {
            namespace.slices.remove(&(0, id));
        }
        self.forget_namespace(&slice.namespace);
    }

    fn find_endpoint(&self, namespace: &str, name: &str) -> Option<EndpointId> {
        self.namespaces.get(namespace)?.endpoints.get(name).copied()
    }

    fn endpoint_id(&mut self, namespace: &str, name: &str) -> EndpointId {
        if let Some(id) = self.find_endpoint(namespace, name) {
            return id;
        }
        let (namespace, name) = (self.texts.intern(namespace), Text::from(name));
        let id = self.endpoints.insert(Endpoint::new(namespace.clone(), name.clone()));
        self.namespaces.entry(namespace).or_default().endpoints.insert(name, id);
        id
    }

    /// Forgets an endpoint that does not live and that no slice lists.
    fn forget_endpoint(&mut self, id: EndpointId) {
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

    fn forget_namespace(&mut self, name: &str) {
        if self.namespaces.get(name).is_some_and(Namespace::is_empty) {
            self.namespaces.remove(name);
        }
    }
}
