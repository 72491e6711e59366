//! All that is known, and which slices of it have to be written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::SeedableRng;
use rand::rngs::StdRng;
use slab::Slab;

use crate::Millis;
use crate::endpoint::{Endpoint, EndpointId, SliceId};
use crate::namespace::Namespace;
use crate::slice::{MOST_ENDPOINTS, Slice};
use crate::storm::Storm;
use crate::text::{Text, Texts};
use crate::urgency::Need;

/// With more slices than this to write, writes are scarce.
const SCARCE_FROM: usize = 12;

/// Every endpoint, every slice, and what belongs where.
///
/// About 330 bytes an endpoint: 90 its content, 100 the endpoint, 60 its name, 80 where it is
/// found. About 300 bytes a slice.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "slices are what it has")]
pub struct Slices {
    pub(crate) max: usize,
    /// With more slices than this to write, writes are scarce.
    pub(crate) scarce_from: usize,
    pub(crate) started: bool,
    pub(crate) endpoints: Slab<Endpoint>,
    pub(crate) slices: Slab<Slice>,
    pub(crate) namespaces: BTreeMap<Text, Namespace>,
    pub(crate) by_name: HashMap<Text, SliceId>,
    pub(crate) texts: Texts,
    pub(crate) rng: StdRng,
    /// Slices about which something has changed since they were looked at.
    pub(crate) touched: BTreeSet<SliceId>,
    /// Slices that have to be written and are not being written, and what waits for that.
    pub(crate) pending: BTreeMap<SliceId, Need>,
    /// How many of them have endpoints that appear or change.
    pub(crate) appearing: usize,
    /// How many namespaces have priority.
    pub(crate) priorities: usize,
    /// Whether there is a storm.
    pub(crate) storm: Storm,
    /// The latest moment that has been told.
    pub(crate) now: Millis,
    /// Slices to report by [`Slices::take_changed`].
    changed: BTreeSet<SliceId>,
    /// All that is known of slices is as of a moment since the start, or newer.
    pub(crate) confirmed: bool,
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
    /// Nothing known yet. No slice gets more than `max` endpoints, nor more than [`MOST_ENDPOINTS`]; names are
    /// drawn from `seed`.
    pub fn new(max: usize, seed: u64) -> Self {
        Self {
            max: max.clamp(1, MOST_ENDPOINTS),
            scarce_from: SCARCE_FROM,
            started: false,
            endpoints: Slab::new(),
            slices: Slab::new(),
            namespaces: BTreeMap::new(),
            by_name: HashMap::new(),
            texts: Texts::default(),
            rng: StdRng::seed_from_u64(seed),
            touched: BTreeSet::new(),
            pending: BTreeMap::new(),
            appearing: 0,
            priorities: 0,
            storm: Storm::default(),
            now: 0,
            changed: BTreeSet::new(),
            confirmed: false,
        }
    }

    /// Writes count as scarce, not as of 12, but with more slices than this to write.
    #[must_use]
    pub fn scarce_from(self, slices: usize) -> Self {
        Self { scarce_from: slices, ..self }
    }

    /// Every endpoint and every slice that exists has been heard of: from now on endpoints get
    /// places. Until then it only follows, as a standby does.
    ///
    /// One that a slice lists stays there: in the slice that says the truth of it, if several
    /// list it, and else in the first by name.
    ///
    /// What a follower has heard may be older than the last writes of the leader before, so no
    /// endpoint is taken out of a slice for being in another one until [`Slices::confirm`].
    pub fn start(&mut self) {
        self.started = true;
        self.confirmed = false;
        let homeless = self.endpoints.iter().filter(|(_, endpoint)| endpoint.home.is_none());
        let mut homeless: Vec<(Text, Text, EndpointId)> = homeless
            .map(|(id, endpoint)| (endpoint.namespace.clone(), endpoint.name.clone(), id))
            .collect();
        homeless.sort_unstable();
        for (_, _, endpoint) in homeless {
            self.settle_down(endpoint);
            self.contented(endpoint);
        }
        self.touched.extend(self.slices.iter().map(|(id, _)| id));
    }

    /// Every slice has been heard of as it was at some moment after the start.
    pub fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.touched.extend(self.slices.iter().map(|(id, _)| id));
        }
    }

    /// The slices that have come to be wrong since the last call, or got worse.
    pub fn take_changed(&mut self) -> Vec<Changed> {
        self.refresh();
        let changed = std::mem::take(&mut self.changed);
        let changed = changed.into_iter().filter(|id| self.pending.contains_key(id));
        changed
            .map(|id| Changed { slice: self.slices[id].name.clone(), priority: self.is_urgent(id) })
            .collect()
    }

    /// A watch of slices broke and all were listed again: these `exist`.
    ///
    /// A slice that is known only from the answer to a write may have been deleted meanwhile without
    /// an event. It is not relied on until it has been read or written again.
    pub fn relisted(&mut self, exist: impl Fn(&str) -> bool) {
        for (id, slice) in &mut self.slices {
            if !exist(&slice.name) && slice.in_flight.is_none() {
                slice.buried = None;
                slice.doubted |= slice.seen.is_some();
                self.touched.insert(id);
            }
        }
    }

    /// Every slice, to be looked at once.
    pub fn all(&self) -> Vec<Changed> {
        let prioritized =
            |name: &Text| self.namespaces.get(name).is_some_and(|namespace| namespace.priority);
        let changed = |(_, slice): (SliceId, &Slice)| Changed {
            slice: slice.name.clone(),
            priority: prioritized(&slice.namespace),
        };
        self.slices.iter().map(changed).collect()
    }

    /// Whether the object of this name and version says what is not known yet; if not, its entries
    /// don't matter to [`Slices::apply`].
    pub fn is_news(&self, slice: &str, resource_version: &str) -> bool {
        let slice = self.find_slice(slice).map(|id| &self.slices[id]);
        slice.is_none_or(|slice| slice.is_news(resource_version))
    }

    /// How many endpoints belong in a slice that needs no write, and whether there is an object.
    pub fn at_rest(&self, slice: &str) -> (usize, bool) {
        let slice = self.find_slice(slice).map(|id| &self.slices[id]);
        slice.map_or((0, false), |slice| (slice.members.len(), slice.seen.is_some()))
    }

    /// Whether any namespace has priority.
    pub fn has_priorities(&self) -> bool {
        self.priorities > 0
    }

    /// The slices of which there is an object, as far as is known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let there = self.slices.iter().filter(|(_, slice)| slice.seen.is_some());
        there.map(|(_, slice)| &*slice.name)
    }

    /// How many endpoints live, and how many slices exist or are about to.
    pub fn len(&self) -> (usize, usize) {
        let live = self.endpoints.iter().filter(|(_, endpoint)| endpoint.lives()).count();
        (live, self.slices.len())
    }

    /// Looks at every slice that something has changed about: what is to be written, what is over.
    pub(crate) fn refresh(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            let Some(slice) = self.slices.get(id) else { continue };
            let idle = slice.in_flight.is_none();
            let none = slice.seen.is_none() && slice.buried.is_none();
            if idle && none && !slice.unsure && slice.members.is_empty() {
                self.forget_slice(id);
            } else if let Some(need) = (idle && self.started).then(|| self.need(id)).flatten() {
                self.set_pending(id, Some(need));
                self.changed.insert(id);
            } else {
                self.set_pending(id, None);
            }
        }
    }
}
