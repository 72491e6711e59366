//! Decides whether slices alone are read, or endpoints as well, where slices are switched on.
//!
//! Slices may not be there yet (the operator has still to write them) or not any more (it has been told to do
//! without). So endpoints are read as well while slices say less than they should, until they say it
//! all. What a slice said that is deleted is held for a while: if others follow, none may be left, and endpoints
//! have to be read before anything is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How long after the last deletion of a slice what it said is held.
const HOLD: Duration = Duration::from_secs(5);
/// How long that is held at most, and what endpoints said that no slice has listed yet.
const HOLD_AT_MOST: Duration = Duration::from_mins(1);
/// For so many looks in a row slices must have listed nearly all endpoints.
const SURE: u32 = 3;
/// Endpoints that have just come are in no slice yet; one in this many does not count.
const JUST_COME: usize = 50;

/// When something happened: the time since any fixed moment.
type Moment = Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Endpoints {
    #[default]
    NotRead,
    Listing,
    /// For so many looks in a row slices have listed what endpoints say.
    Read(u32),
}

#[derive(Debug, Clone, Copy)]
struct Held {
    until: Moment,
    at_most: Moment,
}

/// What is read, and what is held.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// How many endpoints each slice lists.
    slices: HashMap<Arc<str>, usize>,
    endpoints: Endpoints,
    /// What is forgotten later, by the name of its source.
    held: BTreeMap<Arc<str>, Held>,
}

impl Choice {
    /// A slice lists so many endpoints.
    pub(super) fn listed(&mut self, slice: Arc<str>, endpoints: usize) {
        self.held.remove(&slice);
        self.slices.insert(slice, endpoints);
    }

    /// A slice is gone. Whether to forget at once what it said; if it `alone` said it, it is held.
    pub(super) fn gone(&mut self, slice: &Arc<str>, alone: bool, now: Moment) -> bool {
        self.slices.remove(slice);
        for held in self.held.values_mut() {
            held.until = held.until.max(held.at_most.min(now + HOLD));
        }
        if alone {
            let held = Held { until: now + HOLD, at_most: now + HOLD_AT_MOST };
            self.held.insert(Arc::clone(slice), held);
        }
        self.without_slices();
        !alone
    }

    /// All slices have been heard of; so many endpoints there are, if that is known.
    pub(super) fn all_listed(&mut self, there_are: Option<usize>) {
        let listed: usize = self.slices.values().sum();
        if there_are.is_some_and(|endpoints| listed < endpoints) {
            self.read_endpoints();
        }
        self.without_slices();
    }

    /// All endpoints have been heard of: whatever is held and they do not say is not so.
    pub(super) fn endpoints_listed(&mut self) -> Vec<Arc<str>> {
        self.endpoints = Endpoints::Read(0);
        std::mem::take(&mut self.held).into_keys().collect()
    }

    /// An endpoint has been heard of: what is held of it is so.
    pub(super) fn heard(&mut self, endpoint: &Arc<str>) {
        self.held.remove(endpoint);
    }

    /// Whether endpoints are to be read.
    pub(super) fn reads_endpoints(&self) -> bool {
        self.endpoints != Endpoints::NotRead
    }

    /// Whether endpoints are to be read and have not all been heard of.
    pub(super) fn is_listing(&self) -> bool {
        self.endpoints == Endpoints::Listing
    }

    /// Whether it has to look now and then.
    pub(super) fn looks(&self) -> bool {
        self.reads_endpoints() || !self.held.is_empty()
    }

    /// What is to be forgotten now.
    pub(super) fn expired(&mut self, now: Moment) -> Vec<Arc<str>> {
        if self.is_listing() {
            return Vec::new();
        }
        self.held.extract_if(.., |_, held| held.until <= now).map(|(name, _)| name).collect()
    }

    /// Of `addresses` that endpoints have, so many are in no slice. Whether endpoints need not be read any more.
    pub(super) fn enough(&mut self, in_no_slice: usize, addresses: usize) -> bool {
        let Endpoints::Read(looks) = &mut self.endpoints else { return false };
        let good = !self.slices.is_empty() && in_no_slice * JUST_COME <= addresses;
        *looks = if good { *looks + 1 } else { 0 };
        if *looks < SURE {
            return false;
        }
        self.endpoints = Endpoints::NotRead;
        true
    }

    /// An endpoint is not read any more that no slice lists: the slice will come, or the endpoint has gone.
    pub(super) fn hold(&mut self, endpoint: Arc<str>, now: Moment) {
        let until = now + HOLD_AT_MOST;
        self.held.insert(endpoint, Held { until, at_most: until });
    }

    fn without_slices(&mut self) {
        if self.slices.is_empty() {
            self.read_endpoints();
        }
    }

    fn read_endpoints(&mut self) {
        if self.endpoints == Endpoints::NotRead {
            self.endpoints = Endpoints::Listing;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;
    use std::time::Duration;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn endpoints_are_read_while_slices_say_too_little() {
        let mut choice = Choice::default();
        choice.listed("a".into(), 3);
        choice.all_listed(Some(3));
        assert!(!choice.reads_endpoints(), "slices say it all");
        choice.all_listed(Some(4));
        assert!(choice.is_listing());
        choice.endpoints_listed();
        for (look, in_no_slice) in [1, 0, 0].into_iter().enumerate() {
            assert!(!choice.enough(in_no_slice, 4), "look {look}");
        }
        assert!(choice.enough(0, 4) && !choice.reads_endpoints());

        let mut empty = Choice::default();
        empty.all_listed(Some(0));
        assert!(empty.is_listing(), "there are no slices");
        empty.endpoints_listed();
        assert!((0..9).all(|_| !empty.enough(0, 0)), "nor have there been any since");
    }

    #[test]
    fn what_a_deleted_slice_said_is_held_for_as_long_as_others_follow() {
        let mut choice = Choice::default();
        for slice in ["a", "b", "c"] {
            choice.listed(slice.into(), 1);
        }
        assert!(choice.gone(&"a".into(), false, s(0)), "others say it, too");
        assert!(!choice.gone(&"b".into(), true, s(1)));
        assert!(choice.expired(s(5)).is_empty());
        assert!(!choice.gone(&"c".into(), true, s(5)));
        assert!(choice.is_listing(), "there is no slice left");
        assert!(choice.expired(s(500)).is_empty(), "not before endpoints have been heard");
        assert_eq!(choice.endpoints_listed(), ["b".into(), "c".into()]);

        let mut choice = Choice::default();
        for number in 0..100 {
            choice.listed(number.to_string().into(), 1);
        }
        choice.gone(&"0".into(), true, s(0));
        for second in 1..59 {
            choice.gone(&second.to_string().into(), true, s(second));
            assert!(choice.expired(s(second)).is_empty());
        }
        choice.gone(&"59".into(), true, s(59));
        assert_eq!(choice.expired(s(60)), ["0".into()], "but not for ever");
        choice.listed("1".into(), 1);
        assert!(!choice.expired(s(64)).contains(&"1".into()), "it has come back");
    }

    #[test]
    fn an_endpoint_that_no_slice_lists_yet_is_held_its_time() {
        let mut choice = Choice::default();
        for slice in ["a", "b"] {
            choice.listed(slice.into(), 1);
        }
        choice.hold("endpoint:x".into(), s(0));
        choice.hold("endpoint:y".into(), s(0));
        choice.gone(&"a".into(), false, s(1));
        assert!(choice.expired(s(59)).is_empty(), "another slice's end does not shorten it");

        // No slice is left, so endpoints are read again: the list says x, and not y.
        choice.gone(&"b".into(), false, s(59));
        assert!(choice.is_listing());
        choice.heard(&"endpoint:x".into());
        assert_eq!(choice.endpoints_listed(), ["endpoint:y".into()]);
        assert!(choice.expired(s(100)).is_empty());
    }
}
