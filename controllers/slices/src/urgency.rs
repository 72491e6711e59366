//! Decides which slice to write next.
//!
//! Writes are what is scarce, and one write serves everything that waits for its slice. So the
//! slice goes first whose endpoints have waited longest *together*: many that have waited a little
//! weigh as much as one that has waited long, and none waits for ever, for its weight grows while
//! others' are written off. Endpoints that appear or change come before those that go, which
//! come first too once they have waited for [`REMOVAL_BOUND`]; moves come last. A priority
//! namespace comes before everything.

use crate::Millis;
use crate::endpoint::SliceId;
use crate::slices::Slices;
use crate::text::Text;

/// For how long a removal may be passed over by appearances.
pub const REMOVAL_BOUND: Millis = 5_000;

/// How urgent a write is: the greater, the more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    class: Class,
    /// Milliseconds that its endpoints have waited, together.
    waited: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Tidying,
    Removal,
    Appearance,
    OverdueRemoval,
    Priority,
}

impl Slices {
    /// The slice to write next, if any is wrong and not being written.
    pub fn next(&mut self, now: Millis) -> Option<Text> {
        self.refresh();
        let urgent = self.pending.iter().max_by_key(|id| self.urgency_of(**id, now))?;
        Some(self.slices[*urgent].name.clone())
    }

    /// How urgent it is to write a slice; `None` if there is nothing to write.
    pub fn urgency(&mut self, slice: &str, now: Millis) -> Option<Urgency> {
        self.refresh();
        let id = self.find_slice(slice).filter(|id| self.pending.contains(id))?;
        Some(self.urgency_of(id, now))
    }

    /// Whether the slice belongs in the lane of priority namespaces: moves do not.
    pub(crate) fn is_urgent(&self, id: SliceId) -> bool {
        self.urgency_of(id, 0).class == Class::Priority
    }

    fn urgency_of(&self, id: SliceId, now: Millis) -> Urgency {
        let slice = &self.slices[id];
        let difference = self.difference(id);
        let since = |id: &usize| self.endpoints[*id].waiting_since;
        let age = |since: Millis| now.saturating_sub(since);
        let total = |ids: &[usize]| ids.iter().filter_map(since).map(age).sum::<u64>();
        // What waits for nothing but to be moved is listed elsewhere, and right.
        let appears = difference.wanted.iter().any(|id| since(id).is_some());
        let goes = difference.unwanted.iter().filter_map(since).chain(slice.wrong_since).min();
        let waited = total(&difference.wanted) + total(&difference.unwanted);
        let overdue = goes.is_some_and(|since| age(since) > REMOVAL_BOUND);
        let changes = appears || goes.is_some();
        let priority = self.namespaces.get(&slice.namespace).is_some_and(|n| n.priority);
        let class = match (changes && priority, overdue, appears, changes) {
            (true, ..) => Class::Priority,
            (_, true, ..) => Class::OverdueRemoval,
            (_, _, true, _) => Class::Appearance,
            (_, _, _, true) => Class::Removal,
            _ => Class::Tidying,
        };
        Urgency { class, waited }
    }
}
