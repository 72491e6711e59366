//! Takes in how things are and how writes went.

use std::collections::HashMap;

use crate::Millis;
use crate::content::Content;
use crate::endpoint::SliceId;
use crate::event::{Event, Outcome, SliceObject};
use crate::slice::Seen;
use crate::slices::Slices;

impl Slices {
    /// Takes in how something is.
    pub fn apply(&mut self, event: Event<'_>, now: Millis) {
        self.now = self.now.max(now);
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
                self.slices[id].written = true;
                self.slices[id].doubted = false;
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

    fn endpoint(
        &mut self,
        namespace: &str,
        name: &str,
        content: Content,
        valid: bool,
        now: Millis,
    ) {
        let id = self.endpoint_id(namespace, name);
        let (digest, excess) = (content.digest(), content.excess(name));
        let endpoint = &self.endpoints[id];
        if endpoint.lives() && endpoint.digest == digest && endpoint.valid == valid {
            return;
        }
        self.alter(id, |endpoint| {
            endpoint.content = Some(Box::new(content));
            endpoint.digest = digest;
            endpoint.excess = excess;
            endpoint.valid = valid;
            if valid || endpoint.home.is_some() {
                endpoint.waiting_since.get_or_insert(now);
            }
        });
        self.storm.arrived(now);
        if self.started && self.endpoints[id].home.is_none() {
            self.settle_down(id);
        } else if self.started {
            self.make_room(id);
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
        let slice = &mut self.slices[id];
        if !slice.is_news(object.resource_version) {
            if slice
                .seen
                .as_ref()
                .is_some_and(|seen| *seen.resource_version == *object.resource_version)
            {
                slice.doubted = false;
                self.touched.insert(id);
                self.look_where_members_linger(id);
            }
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
        self.slices[id].doubted = false;
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

    fn namespace(&mut self, name: &str, priority: bool) {
        if !priority && !self.namespaces.contains_key(name) {
            return;
        }
        let key = self.texts.intern(name);
        let namespace = self.namespaces.entry(key).or_default();
        if namespace.priority != priority {
            namespace.priority = priority;
            if priority {
                self.priorities += 1;
            } else {
                self.priorities -= 1;
            }
            self.touched.extend(namespace.slices.iter().map(|(_, id)| *id));
        }
        self.forget_namespace(name);
    }

    /// Whether what the object lists is certain; if it is, what belongs in it can go elsewhere.
    fn rely_on(&mut self, id: SliceId, certain: bool) {
        self.slices[id].unsure = !certain;
        if certain {
            self.look_where_members_linger(id);
        }
    }

    fn look_where_members_linger(&mut self, id: SliceId) {
        let members = self.slices[id].members.iter();
        self.touched.extend(members.flat_map(|m| self.endpoints[*m].seen_in.as_slice()));
    }

    /// There certainly is no object, though events of when there was may still be on their way.
    fn bury(&mut self, id: SliceId) {
        self.slices[id].unsure = false;
        self.slices[id].doubted = false;
        let Some(before) = self.slices[id].seen.take() else { return };
        self.slices[id].wrong_since = None;
        self.slices[id].buried = Some(before.resource_version);
        for endpoint in before.entries.keys() {
            self.unlist(*endpoint, id);
            self.missed(*endpoint);
            self.forget_endpoint(*endpoint);
        }
    }
}
