//! Says whose maps are looked at next: those of all endpoints, or only of those that have been ordered.
//!
//! A node's endpoints are ordered one by one when the labels of their namespace change, and each order has its answer
//! only when the maps are right: looking at all of them each time would make that the square of their number.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cilia_crds::NumericIdentity;

/// Endpoints whose maps may not be as wanted.
#[derive(Debug, Default)]
pub(super) struct Stale {
    all: bool,
    some: BTreeSet<u16>,
}

impl Stale {
    pub(super) fn everybody(&mut self) {
        self.all = true;
    }

    pub(super) fn add(&mut self, id: u16) {
        self.some.insert(id);
    }

    /// Of these endpoints, those to look at.
    pub(super) fn among<T>(&self, endpoints: &BTreeMap<u16, T>) -> Vec<u16> {
        if self.all {
            return endpoints.keys().copied().collect();
        }
        self.some.iter().filter(|id| endpoints.contains_key(id)).copied().collect()
    }
}

/// How many of this node's endpoints have each identity.
#[derive(Debug, Default)]
pub(super) struct Bearers(HashMap<NumericIdentity, usize>);

impl Bearers {
    pub(super) fn has(&self, identity: NumericIdentity) -> bool {
        self.0.contains_key(&identity)
    }

    pub(super) fn more(&mut self, identity: NumericIdentity) {
        *self.0.entry(identity).or_default() += 1;
    }

    /// One endpoint less has it. True if none is left.
    pub(super) fn less(&mut self, identity: NumericIdentity) -> bool {
        let Some(count) = self.0.get_mut(&identity) else { return true };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return false;
        }
        self.0.remove(&identity);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, Bearers, NumericIdentity, Stale};

    #[test]
    fn only_what_is_there_is_looked_at() {
        let endpoints = BTreeMap::from([(1, 'a'), (5, 'b'), (7, 'c')]);
        let mut stale = Stale::default();
        assert!(stale.among(&endpoints).is_empty());
        stale.add(7);
        stale.add(6);
        stale.add(1);
        assert_eq!(stale.among(&endpoints), [1, 7]);
        stale.everybody();
        assert_eq!(stale.among(&endpoints), [1, 5, 7]);
    }

    #[test]
    fn the_last_one_to_leave_is_known() {
        let (mut bearers, web) = (Bearers::default(), NumericIdentity(300));
        bearers.more(web);
        bearers.more(web);
        assert!(!bearers.less(web) && bearers.has(web));
        assert!(bearers.less(web) && !bearers.has(web));
        assert!(bearers.less(web));
    }
}
