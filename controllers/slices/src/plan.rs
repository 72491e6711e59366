//! Decides what a slice should be, how that differs from what it is, and how to write it.
//!
//! A slice lists the endpoints that belong in it, and those that it lists already and that have
//! not been seen in the slice they belong in: an endpoint is taken from the old slice only once
//! it certainly is in the new one.

use cilia_crds::CoreCiliumEndpoint;

use crate::endpoint::{EndpointId, SliceId};
use crate::event::Outcome;
use crate::slice::InFlight;
use crate::slices::Slices;
use crate::text::Text;

/// A write to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The slice's name.
    pub slice: Text,
    /// What to do.
    pub action: Action,
    /// How many endpoints belong in the slice.
    pub mapped: usize,
    /// How many entries are new or say something new.
    pub inserted: usize,
    /// How many entries go.
    pub removed: usize,
}

/// What to do to a slice.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create it.
    Create {
        /// Its namespace.
        namespace: Text,
        /// Its entries.
        endpoints: Vec<CoreCiliumEndpoint>,
    },
    /// Update it, if it still is the object of this uid and resource version.
    Update {
        /// The object's uid.
        uid: String,
        /// Its resource version.
        resource_version: String,
        /// Its namespace.
        namespace: Text,
        /// All of its entries.
        endpoints: Vec<CoreCiliumEndpoint>,
    },
    /// Delete it, if it still is the object of this uid and resource version.
    Delete {
        /// The object's uid.
        uid: String,
        /// Its resource version.
        resource_version: String,
    },
    /// Read it and tell: nothing is known to be wrong, but it may be gone. Not a write.
    Read,
}

/// How a slice differs from what it should be.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) entries: Vec<EndpointId>,
    /// Entries that are missing or say what is not true.
    pub(crate) wanted: Vec<EndpointId>,
    /// Entries that should not be there.
    pub(crate) unwanted: Vec<EndpointId>,
}

impl Slices {
    /// What to write to a slice; `None` if it is right, being written, or unknown.
    ///
    /// The slice counts as being written until [`Slices::settle`] says how that went.
    pub fn plan(&mut self, slice: &str) -> Option<Write> {
        self.refresh();
        let id = self.find_slice(slice).filter(|id| self.pending.contains_key(id))?;
        let difference = self.difference(id);
        let endpoints = || -> Vec<CoreCiliumEndpoint> {
            let entries = difference.entries.iter().map(|id| &self.endpoints[*id]);
            entries.filter_map(|e| Some(e.content.as_ref()?.entry(&e.name))).collect()
        };
        let slice = &self.slices[id];
        let namespace = slice.namespace.clone();
        let action = match &slice.seen {
            _ if !self.differs(id, &difference) => Action::Read,
            None => Action::Create { namespace, endpoints: endpoints() },
            Some(seen) => {
                let uid = seen.uid.to_string();
                let resource_version = seen.resource_version.to_string();
                if difference.entries.is_empty() {
                    Action::Delete { uid, resource_version }
                } else {
                    Action::Update { uid, resource_version, namespace, endpoints: endpoints() }
                }
            }
        };
        let write = Write {
            slice: slice.name.clone(),
            action,
            mapped: slice.members.len(),
            inserted: difference.wanted.len(),
            removed: difference.unwanted.len(),
        };
        let entries = difference.entries.iter().map(|id| &self.endpoints[*id]);
        let entries = entries.map(|endpoint| (endpoint.name.clone(), endpoint.digest)).collect();
        let slice = &mut self.slices[id];
        slice.in_flight = Some(InFlight { entries, was_unsure: slice.unsure });
        slice.unsure |= write.action != Action::Read;
        self.set_pending(id, None);
        if let Some(namespace) = self.namespaces.get_mut(&self.slices[id].namespace) {
            namespace.open.take_if(|open| *open == id);
        }
        Some(write)
    }

    /// Gives up a write of [`Slices::plan`] before it was sent.
    pub fn abandon(&mut self, slice: &str) {
        self.settle(slice, Outcome::Refused);
    }

    /// Whether the slice has to be written, or read.
    pub(crate) fn is_wrong(&self, id: SliceId, difference: &Difference) -> bool {
        let slice = &self.slices[id];
        let doubtful = slice.doubted || (slice.unsure && slice.seen.is_none());
        doubtful || self.differs(id, difference)
    }

    fn differs(&self, id: SliceId, difference: &Difference) -> bool {
        let slice = &self.slices[id];
        match &slice.seen {
            None => !difference.entries.is_empty(),
            Some(_) if difference.entries.is_empty() => true,
            Some(seen) => {
                seen.faulty
                    || slice.unsure
                    || !difference.wanted.is_empty()
                    || !difference.unwanted.is_empty()
            }
        }
    }

    pub(crate) fn difference(&self, id: SliceId) -> Difference {
        let slice = &self.slices[id];
        let mut difference = Difference::default();
        for member in &slice.members {
            difference.entries.push(*member);
            let said = slice.seen.as_ref().and_then(|seen| seen.entries.get(member));
            if said != Some(&self.endpoints[*member].digest) {
                difference.wanted.push(*member);
            }
        }
        for (listed, said) in slice.seen.iter().flat_map(|seen| &seen.entries) {
            if slice.members.contains(listed) {
                continue;
            }
            if self.must_linger(*listed, id) {
                difference.entries.push(*listed);
                if *said != self.endpoints[*listed].digest {
                    difference.wanted.push(*listed);
                }
            } else {
                difference.unwanted.push(*listed);
            }
        }
        difference
    }

    /// Whether a slice has to go on listing an endpoint that does not belong in it.
    fn must_linger(&self, endpoint: EndpointId, slice: SliceId) -> bool {
        let (id, endpoint) = (endpoint, &self.endpoints[endpoint]);
        if !endpoint.lives() || endpoint.namespace != self.slices[slice].namespace {
            return false;
        }
        endpoint.home.is_some_and(|home| !self.certainly_lists(home, id))
    }

    /// Whether agents certainly see the endpoint in this slice: the object lists it, no write of
    /// ours is under way, and none of a former leader's can have come since.
    fn certainly_lists(&self, slice: SliceId, endpoint: EndpointId) -> bool {
        let slice = &self.slices[slice];
        let lists = || slice.seen.as_ref().is_some_and(|seen| seen.entries.contains_key(&endpoint));
        !slice.unsure && !slice.doubted && (self.confirmed || slice.written) && lists()
    }
}
