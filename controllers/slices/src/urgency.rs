//! Decides which slice to write next.
//!
//! Writes are what is scarce, and one write serves everything that waits for its slice. So the
//! slice goes first whose endpoints weigh most *together*, each by the square of the time it has
//! waited: many that have waited a little weigh as much as one that has waited long, and none waits
//! much longer than it would if all took turns. Endpoints that appear or change come before those that go, which
//! come first too once they have waited for [`REMOVAL_BOUND`]; moves come last. A priority
//! namespace comes before everything.

use crate::Millis;
use crate::endpoint::{EndpointId, SliceId};
use crate::slices::Slices;
use crate::text::Text;

/// For how long a removal may be passed over by appearances.
pub const REMOVAL_BOUND: Millis = 60_000;

/// How urgent a write is: the greater, the more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    class: Class,
    /// The squares of the milliseconds that its endpoints have waited, together.
    weight: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Tidying,
    Removal,
    Appearance,
    OverdueRemoval,
    Priority,
}

/// What waits for a slice to be written, as of when something about it last changed: the urgency at
/// any moment follows without another look at its endpoints.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Need {
    appear: Waiting,
    go: Waiting,
    /// Since when it is wrong for a reason that is no endpoint's.
    wrong_since: Option<Millis>,
    priority: bool,
}

/// Some endpoints that wait.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    count: u128,
    /// The sum of the moments since when they do.
    since: u128,
    /// The sum of the squares of these.
    squares: u128,
    oldest: Option<Millis>,
}

impl Waiting {
    fn of(moments: impl Iterator<Item = Millis>) -> Self {
        moments.fold(Self::default(), |waiting, since| Self {
            count: waiting.count + 1,
            since: waiting.since + u128::from(since),
            squares: waiting.squares + u128::from(since).pow(2),
            oldest: Some(waiting.oldest.map_or(since, |oldest| oldest.min(since))),
        })
    }

    /// The sum of the squares of how long they have waited.
    fn weight(self, now: Millis) -> u128 {
        let now = u128::from(now);
        (self.count * now * now + self.squares).saturating_sub(2 * now * self.since)
    }
}

impl Need {
    fn urgency(&self, now: Millis) -> Urgency {
        let appears = self.appear.count > 0;
        let goes = self.go.oldest.into_iter().chain(self.wrong_since).min();
        let overdue = goes.is_some_and(|since| now.saturating_sub(since) > REMOVAL_BOUND);
        let changes = appears || goes.is_some();
        let class = match (changes && self.priority, overdue, appears, changes) {
            (true, ..) => Class::Priority,
            (_, true, ..) => Class::OverdueRemoval,
            (_, _, true, _) => Class::Appearance,
            (_, _, _, true) => Class::Removal,
            _ => Class::Tidying,
        };
        let weight = if appears { self.appear } else { self.go }.weight(now);
        Urgency { class, weight }
    }
}

impl Slices {
    /// The slice to write next, if any is wrong and not being written.
    pub fn next(&mut self, now: Millis) -> Option<Text> {
        self.refresh();
        let urgent = self.pending.iter().max_by_key(|(_, need)| need.urgency(now))?;
        Some(self.slices[*urgent.0].name.clone())
    }

    /// How urgent it is to write a slice; `None` if there is nothing to write.
    pub fn urgency(&mut self, slice: &str, now: Millis) -> Option<Urgency> {
        self.refresh();
        let need = self.pending.get(&self.find_slice(slice)?)?;
        Some(need.urgency(now))
    }

    /// Whether the slice belongs in the lane of priority namespaces: moves do not.
    pub(crate) fn is_urgent(&self, id: SliceId) -> bool {
        self.pending.get(&id).is_some_and(|need| need.urgency(0).class == Class::Priority)
    }

    /// What waits for a slice; `None` if it is right.
    pub(crate) fn need(&self, id: SliceId) -> Option<Need> {
        let difference = self.difference(id);
        if !self.is_wrong(id, &difference) {
            return None;
        }
        let slice = &self.slices[id];
        // What waits for nothing but to be moved is listed elsewhere, and right.
        let since = |id: &EndpointId| self.endpoints[*id].waiting_since;
        Some(Need {
            appear: Waiting::of(difference.wanted.iter().filter_map(since)),
            go: Waiting::of(difference.unwanted.iter().filter_map(since)),
            wrong_since: slice.wrong_since,
            priority: self.namespaces.get(&slice.namespace).is_some_and(|n| n.priority),
        })
    }
}
