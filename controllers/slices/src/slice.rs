//! One slice: what belongs in it, and what the API server has of it.

use std::collections::{BTreeSet, HashMap};

use crate::Millis;
use crate::endpoint::EndpointId;
use crate::text::Text;

/// The entries of a slice may have so many bytes more than usual, together: etcd takes no object of more than
/// 1.5 MiB, and a request has no room for more than that either.
pub(crate) const MOST_EXCESS: usize = 768 * 1024;

/// No slice gets more endpoints, whatever it is set to: an entry of usual size takes up to 750 bytes or so, and
/// this many of these have room beside the excess.
pub const MOST_ENDPOINTS: usize = 1_000;

#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) name: Text,
    /// The namespace of the endpoints that belong in it.
    pub(crate) namespace: Text,
    /// The endpoints whose home it is.
    pub(crate) members: BTreeSet<EndpointId>,
    /// How many bytes more than usual the entries of those have, together.
    pub(crate) excess: usize,
    /// The object, if there is one.
    pub(crate) seen: Option<Seen>,
    /// How many live endpoints it lists whose home is elsewhere: they take up room until they
    /// have moved.
    pub(crate) lingering: usize,
    /// A write was sent and it is not known yet whether it was done: what the object lists is not
    /// to be relied on.
    pub(crate) unsure: bool,
    /// The object may have gone without an event: to be read before it is relied on.
    pub(crate) doubted: bool,
    /// This process has written it since it leads, so nobody else's write can be under way.
    pub(crate) written: bool,
    /// What the write under way will have made it.
    pub(crate) in_flight: Option<InFlight>,
    /// The resource version of an object that was deleted and whose end has not been heard of:
    /// what is heard of it up to that version is history.
    pub(crate) buried: Option<Box<str>>,
    /// Since when it is wrong for a reason that is no endpoint's.
    pub(crate) wrong_since: Option<Millis>,
}

/// An object as the API server has it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) uid: Box<str>,
    pub(crate) resource_version: Box<str>,
    /// Its entries, with what they say.
    pub(crate) entries: HashMap<EndpointId, u64>,
    /// Something about it is wrong that the entries do not show: the namespace, a name twice,
    /// an entry without name.
    pub(crate) faulty: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// Name and digest of each entry.
    pub(crate) entries: Vec<(Text, u64)>,
    /// Whether the slice was to be relied on before.
    pub(crate) was_unsure: bool,
}

impl Slice {
    pub(crate) fn new(name: Text, namespace: Text) -> Self {
        Self {
            name,
            namespace,
            members: BTreeSet::new(),
            excess: 0,
            seen: None,
            lingering: 0,
            unsure: false,
            doubted: false,
            written: false,
            in_flight: None,
            buried: None,
            wrong_since: None,
        }
    }

    /// How many entries it has to have room for.
    pub(crate) fn occupancy(&self) -> usize {
        self.members.len() + self.lingering
    }

    /// Whether an endpoint with so many bytes more than usual would make it too large. One alone may be
    /// of any size: it cannot be helped.
    pub(crate) fn is_too_large_with(&self, excess: usize) -> bool {
        excess > 0 && !self.members.is_empty() && self.excess + excess > MOST_EXCESS
    }

    /// Whether an object that nothing belongs in any more can be filled again.
    pub(crate) fn reusable(&self) -> bool {
        self.seen.is_some() && !self.unsure && !self.doubted && self.in_flight.is_none()
    }
}

impl Slice {
    /// Whether an object of this version is news.
    pub(crate) fn is_news(&self, resource_version: &str) -> bool {
        let seen = self.seen.as_ref().map(|seen| &seen.resource_version);
        let known = seen.into_iter().chain(&self.buried);
        known.into_iter().all(|known| later(resource_version, known))
    }
}

/// Whether one resource version is later than another, as far as can be told.
pub(crate) fn later(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}
