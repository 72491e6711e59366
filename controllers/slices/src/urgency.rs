//! Decides which slice to write next.
//!
//! Writes are what is scarce, and one write serves everything that waits for its slice. So the
//! slice goes first for which most endpoints wait: that is what makes the sum of all delays fall fastest.
//! One for which an endpoint has waited for longer than a round, in which each slice is written once,
//! goes before these, so that none waits much longer than if all took turns. Endpoints that appear or
//! change come before those that go, which come first too once they have waited for [`REMOVAL_BOUND`];
//! moves come last. A priority namespace comes before everything.
//!
//! In a storm a slice that is written too early is soon written again. So while many slices have
//! things that appear, each waits until most of a round has passed, or until much waits for it, and
//! what goes is left to go along: the same delays then cost fewer writes.

use std::ops::RangeInclusive;

use crate::Millis;
use crate::endpoint::{EndpointId, SliceId};
use crate::slices::Slices;
use crate::text::Text;

/// For how long a removal, or a slice that is only to be tidied, may be passed over by appearances.
pub const REMOVAL_BOUND: Millis = 60_000;
/// The most that an endpoint waits in a storm so that others come along, and the least, however fast
/// writes are: half as long costs over a third more writes (`tests/storm.rs`).
const PATIENCE: RangeInclusive<Millis> = 2_500..=3_000;
/// Of endpoints that wait so that others come along, as many as have together waited for so many times that long
/// make up for the rest.
const MANY: u128 = 2;
/// A slice goes before all others after so many rounds. Fewer make the slowest endpoints faster, and the
/// median slower: at 1.2 both are well below what taking turns would give.
const LATE: f64 = 1.2;
/// For how long a removal lets appearances go first outside of storms, though there are tokens for both.
const GIVE_WAY: Millis = 2_000;
/// When to look again at what waits: the storm may have ended, or what went first may be done.
const LOOK_AGAIN: Millis = 250;

/// Whether it is a slice's turn to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It may be written now, and the most urgent of these should be.
    Now(Urgency),
    /// Not before this time has passed, unless something changes.
    Later(Millis),
}

/// How urgent a write is: the greater, the more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    class: Class,
    /// How many endpoints wait for it; not asked once something is overdue.
    waiting: u128,
    /// For how long the first of them has.
    longest: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Tidying,
    Removal,
    Appearance,
    OverdueAppearance,
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
    /// Since when there has been something to do about it, if only to tidy.
    pending_since: Millis,
    priority: bool,
}

/// Some endpoints that wait.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    count: u128,
    /// The sum of the moments since when they do.
    since: u128,
    oldest: Option<Millis>,
}

impl Waiting {
    fn of(moments: impl Iterator<Item = Millis>) -> Self {
        moments.fold(Self::default(), |waiting, since| Self {
            count: waiting.count + 1,
            since: waiting.since + u128::from(since),
            oldest: Some(waiting.oldest.map_or(since, |oldest| oldest.min(since))),
        })
    }

    /// For how long the first of them has.
    fn longest(self, now: Millis) -> Millis {
        self.oldest.map_or(0, |oldest| now.saturating_sub(oldest))
    }

    /// For how long all of them have, together.
    fn together(self, now: Millis) -> u128 {
        (self.count * u128::from(now)).saturating_sub(self.since)
    }
}

impl Need {
    /// How urgent it is when what appears is overdue after `late`.
    fn urgency(&self, now: Millis, late: Millis) -> Urgency {
        let appears = self.appear.count > 0;
        let goes = self.go.oldest.into_iter().chain(self.wrong_since).min();
        let changes = appears || goes.is_some();
        let oldest = goes.or((!changes).then_some(self.pending_since));
        let delayed = oldest.map_or(0, |since| now.saturating_sub(since));
        let overdue = delayed > REMOVAL_BOUND;
        let waiting = if appears { self.appear } else { self.go };
        let longest = if overdue { delayed } else { waiting.longest(now) };
        let class = match (changes && self.priority, overdue, appears, changes) {
            (true, ..) => Class::Priority,
            (_, true, ..) => Class::OverdueRemoval,
            (_, _, true, _) if longest > late => Class::OverdueAppearance,
            (_, _, true, _) => Class::Appearance,
            (_, _, _, true) => Class::Removal,
            _ => Class::Tidying,
        };
        let by_number = !matches!(class, Class::OverdueAppearance | Class::OverdueRemoval);
        Urgency { class, waiting: if by_number { waiting.count } else { 0 }, longest }
    }
}

impl Slices {
    /// The slice to write next, if any is wrong and not being written.
    pub fn next(&mut self, now: Millis) -> Option<Text> {
        self.now = self.now.max(now);
        self.refresh();
        let urgent = self.pending.iter().max_by_key(|(_, need)| need.urgency(now, Millis::MAX))?;
        Some(self.slices[*urgent.0].name.clone())
    }

    /// Whether it is a slice's turn, with so many writes `per_second`; `None` if there is nothing to write.
    pub fn turn(&mut self, slice: &str, now: Millis, per_second: f64) -> Option<Turn> {
        self.now = self.now.max(now);
        self.refresh();
        let need = self.pending.get(&self.find_slice(slice)?)?;
        let round = self.round(per_second);
        let patience = self.patience(round);
        let urgency = need.urgency(now, millis(LATE * round).max(patience.unwrap_or_default()));
        Some(match urgency.class {
            Class::Removal if patience.is_none() && self.appearing > 0 => {
                let oldest = need.go.oldest.map_or(Millis::MAX, |since| now.saturating_sub(since));
                if oldest >= GIVE_WAY { Turn::Now(urgency) } else { later(GIVE_WAY - oldest) }
            }
            Class::Removal | Class::Tidying if patience.is_some() => Turn::Later(LOOK_AGAIN),
            Class::Appearance => {
                let patience = patience.unwrap_or_default();
                let longest = need.appear.longest(now);
                let together = need.appear.together(now);
                if longest >= patience || together >= MANY * u128::from(patience) {
                    Turn::Now(urgency)
                } else {
                    later(patience - longest)
                }
            }
            _ => Turn::Now(urgency),
        })
    }

    /// How many milliseconds it takes to write each slice once for which something appears.
    fn round(&self, per_second: f64) -> f64 {
        1000.0 * f64::from(u32::try_from(self.appearing).unwrap_or(u32::MAX)) / per_second
    }

    /// How long an endpoint waits in a storm so that others come along; `None` if there is no storm.
    fn patience(&self, round: f64) -> Option<Millis> {
        let storm = self.storm.goes_on(self.appearing, self.now);
        storm.then(|| millis(round).clamp(*PATIENCE.start(), *PATIENCE.end()))
    }

    /// Writes this slice down as one to write, or as one that is right.
    pub(crate) fn set_pending(&mut self, id: SliceId, need: Option<Need>) {
        let appears =
            |need: Option<Need>| usize::from(need.is_some_and(|need| need.appear.count > 0));
        self.appearing += appears(need);
        let before = match need {
            Some(need) => self.pending.insert(id, need),
            None => self.pending.remove(&id),
        };
        self.appearing -= appears(before);
        self.storm.many(self.appearing > self.scarce_from, self.now);
    }

    /// Whether the slice belongs in the lane of priority namespaces: moves do not.
    pub(crate) fn is_urgent(&self, id: SliceId) -> bool {
        self.pending
            .get(&id)
            .is_some_and(|need| need.urgency(0, Millis::MAX).class == Class::Priority)
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
            pending_since: self.pending.get(&id).map_or(self.now, |need| need.pending_since),
            priority: self.namespaces.get(&slice.namespace).is_some_and(|n| n.priority),
        })
    }
}

/// In so long, but nothing tells of a storm's end.
fn later(wait: Millis) -> Turn {
    Turn::Later(wait.min(LOOK_AGAIN))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floats saturate")]
fn millis(millis: f64) -> Millis {
    millis as Millis
}
