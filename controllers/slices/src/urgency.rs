//! Decides which slice to write next.
//!
//! Writes are what is scarce, and one write serves everything that waits for its slice. So the
//! slice goes first whose endpoints weigh most *together*, each by the square of the time it has
//! waited: many that have waited a little weigh as much as one that has waited long, and none waits
//! much longer than it would if all took turns. Endpoints that appear or change come before those that go, which
//! come first too once they have waited for [`REMOVAL_BOUND`]; moves come last. A priority
//! namespace comes before everything.
//!
//! In a storm a slice that is written too early is soon written again. So while many slices have
//! things that appear, each waits until most of a round has passed, or until much waits for it, and
//! what goes is left to go along: the same delays then cost fewer writes.

use crate::Millis;
use crate::endpoint::{EndpointId, SliceId};
use crate::slices::Slices;
use crate::text::Text;

/// For how long a removal, or a slice that is only to be tidied, may be passed over by appearances.
pub const REMOVAL_BOUND: Millis = 60_000;
/// It is a storm when more slices than are scarce have had things that appear for so long, …
const STORM_AFTER: Millis = 600;
/// … and endpoints go on to appear: in one such time at least one for each so many of these slices.
const ARRIVALS: Millis = 500;
const ONE_FOR: usize = 6;
/// The most that an endpoint waits in a storm so that others come along.
const PATIENCE: Millis = 4_000;
/// Of endpoints that have each waited for that long, how many make up for one: many that have waited
/// a little are written before one has waited long.
const MANY: u128 = 2;
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
        let changes = appears || goes.is_some();
        let oldest = goes.or((!changes).then_some(self.pending_since));
        let overdue = oldest.is_some_and(|since| now.saturating_sub(since) > REMOVAL_BOUND);
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

/// How many endpoints have come to wait, by stretches of time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrivals {
    stretch: Millis,
    now: usize,
    before: usize,
}

impl Arrivals {
    pub(crate) fn add(&mut self, now: Millis) {
        let stretch = now / ARRIVALS;
        if stretch != self.stretch {
            self.before = if stretch == self.stretch + 1 { self.now } else { 0 };
            (self.stretch, self.now) = (stretch, 0);
        }
        self.now += 1;
    }

    /// How many in the last whole stretch before `now`.
    fn last(self, now: Millis) -> usize {
        match (now / ARRIVALS).checked_sub(self.stretch) {
            Some(0) => self.before,
            Some(1) => self.now,
            _ => 0,
        }
    }
}

impl Slices {
    /// The slice to write next, if any is wrong and not being written.
    pub fn next(&mut self, now: Millis) -> Option<Text> {
        self.now = self.now.max(now);
        self.refresh();
        let urgent = self.pending.iter().max_by_key(|(_, need)| need.urgency(now))?;
        Some(self.slices[*urgent.0].name.clone())
    }

    /// Whether it is a slice's turn, with so many writes `per_second`; `None` if there is nothing to write.
    pub fn turn(&mut self, slice: &str, now: Millis, per_second: f64) -> Option<Turn> {
        self.now = self.now.max(now);
        self.refresh();
        let need = self.pending.get(&self.find_slice(slice)?)?;
        let urgency = need.urgency(now);
        let patience = self.patience(per_second);
        Some(match urgency.class {
            Class::Removal if patience.is_none() && self.appearing > 0 => {
                let oldest = need.go.oldest.map_or(Millis::MAX, |since| now.saturating_sub(since));
                if oldest >= GIVE_WAY { Turn::Now(urgency) } else { later(GIVE_WAY - oldest) }
            }
            Class::Removal | Class::Tidying if patience.is_some() => Turn::Later(LOOK_AGAIN),
            Class::Appearance => {
                let patience = patience.unwrap_or_default();
                let oldest = need.appear.oldest.map_or(0, |since| now.saturating_sub(since));
                let enough = MANY * u128::from(patience) * u128::from(patience);
                if oldest >= patience || urgency.weight >= enough {
                    Turn::Now(urgency)
                } else {
                    later(patience - oldest)
                }
            }
            _ => Turn::Now(urgency),
        })
    }

    /// How long an endpoint waits in a storm so that others come along; `None` if there is no storm.
    ///
    /// No longer than a round, in which each slice that waits is written once.
    fn patience(&self, per_second: f64) -> Option<Millis> {
        self.now.checked_sub(self.scarce_since?).filter(|long| *long >= STORM_AFTER)?;
        if self.arrivals.last(self.now) * ONE_FOR < self.appearing {
            return None;
        }
        let round = 1000.0 * f64::from(u32::try_from(self.appearing).ok()?) / per_second;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "floats saturate"
        )]
        Some((round as Millis).min(PATIENCE))
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
        if self.appearing > self.scarce_from {
            self.scarce_since.get_or_insert(self.now);
        } else {
            self.scarce_since = None;
        }
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
            pending_since: self.pending.get(&id).map_or(self.now, |need| need.pending_since),
            priority: self.namespaces.get(&slice.namespace).is_some_and(|n| n.priority),
        })
    }
}

/// In so long, but nothing tells of a storm's end.
fn later(wait: Millis) -> Turn {
    Turn::Later(wait.min(LOOK_AGAIN))
}
