//! Decides where an endpoint without a home belongs.
//!
//! Where it is listed already, if there is room; else in the fullest slice of its namespace that
//! is not full; else in one that is about to be deleted for being empty; else in a new one.
//!
//! While many slices wait for their write, what a namespace gets goes into one slice, the one with
//! most room, or a new one if there are but holes: then one write shows all of it.

use std::cmp::Reverse;

use crate::endpoint::{EndpointId, SliceId};
use crate::slice::MOST_EXCESS;
use crate::slices::Slices;

/// Room of up to this part of a slice is a hole, which is soon full.
const HOLE: usize = 8;

impl Slices {
    /// Gives an endpoint that lives a home, if it is valid or was so when it was listed.
    pub(crate) fn settle_down(&mut self, id: EndpointId) {
        let endpoint = &self.endpoints[id];
        let here = self.listing(id);
        if !endpoint.lives() || (!endpoint.valid && here.is_none()) {
            return;
        }
        let here = here.filter(|slice| {
            let slice = &self.slices[*slice];
            slice.members.len() < self.max && !slice.is_too_large_with(endpoint.excess)
        });
        let home = here.or_else(|| self.roomy(id)).unwrap_or_else(|| {
            let namespace = self.endpoints[id].namespace.clone();
            self.new_slice(&namespace)
        });
        self.set_home(id, Some(home));
        if here.is_none()
            && let Some(namespace) = self.namespaces.get_mut(&self.endpoints[id].namespace)
        {
            namespace.open = Some(home);
        }
    }

    /// Finds another home for an endpoint that has made its slice too large.
    pub(crate) fn make_room(&mut self, id: EndpointId) {
        let endpoint = &self.endpoints[id];
        let Some(home) = endpoint.home.map(|home| &self.slices[home]) else { return };
        if endpoint.excess == 0 || home.excess <= MOST_EXCESS || home.members.len() == 1 {
            return;
        }
        let namespace = endpoint.namespace.clone();
        let home = self.roomy(id).unwrap_or_else(|| self.new_slice(&namespace));
        self.set_home(id, Some(home));
    }

    /// The slice that lists the endpoint and should go on doing so: one with room before a full
    /// one, one that says the truth before one that does not, the first by name.
    fn listing(&self, id: EndpointId) -> Option<SliceId> {
        let endpoint = &self.endpoints[id];
        let slices = endpoint.seen_in.as_slice().iter().copied();
        let fit = slices.filter(|slice| self.slices[*slice].namespace == endpoint.namespace);
        fit.min_by_key(|id_of_slice| {
            let slice = &self.slices[*id_of_slice];
            let full = slice.members.len() >= self.max;
            let said = slice.seen.as_ref().and_then(|seen| seen.entries.get(&id));
            (full, Reverse(said == Some(&endpoint.digest)), slice.name.clone())
        })
    }

    fn roomy(&self, id: EndpointId) -> Option<SliceId> {
        let namespace = self.namespaces.get(&self.endpoints[id].namespace)?;
        let excess = self.endpoints[id].excess;
        let has_room = |id: &SliceId| {
            let slice = &self.slices[*id];
            slice.occupancy() < self.max && !slice.is_too_large_with(excess)
        };
        let open = namespace.open.filter(|id| !self.slices[*id].members.is_empty());
        if let Some(open) = open.filter(has_room) {
            return Some(open);
        }
        let usable =
            |id: &SliceId| !self.slices[*id].members.is_empty() || self.slices[*id].reusable();
        let by_count = namespace.slices.range(..(self.max, 0)).map(|(_, id)| *id).filter(usable);
        if self.pending.len() > self.scarce_from {
            let is_no_hole =
                |id: &SliceId| self.slices[*id].occupancy() + self.max / HOLE < self.max;
            by_count.filter(is_no_hole).find(has_room)
        } else {
            by_count.rev().find(has_room)
        }
    }
}
