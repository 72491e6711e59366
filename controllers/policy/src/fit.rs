//! Decides with how few entries a map can say the same, for when they don't fit otherwise.
//!
//! For each key of a peer identity the fewest blocks of ports are found that lead to the verdicts
//! that the entries at hand lead to, those for everybody considered. What is lost is which rule an
//! entry comes from, where entries of several become one, and why a packet is dropped: where a
//! hole in an allow is cheaper as a deny, it is counted as denied.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::blocks;
use crate::column::{Column, Entry};
use crate::columns::Columns;
use crate::l4::{L4, protocol};
use crate::map::{DirectionPolicy, EndpointPolicy, WEAK, WILDCARD};
use crate::origin::NOBODY;
use crate::rule::Direction;

/// From this share of the room on somebody should be told.
const TIGHT: (usize, usize) = (9, 10);

/// Whether a policy has room in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// It has.
    Fits,
    /// It has, but more than nine tenths of the map are needed.
    Tight,
    /// It has not, but this one has, which says the same.
    Aggregated(Arc<EndpointPolicy>),
    /// It has not, however it is said.
    Overflow {
        /// How many entries are needed at least.
        needed: usize,
    },
}

impl EndpointPolicy {
    /// Whether this has room in a map of `most` entries.
    pub fn fit(&self, most: usize) -> Fit {
        let needed = self.len();
        if needed * TIGHT.1 <= most * TIGHT.0 {
            return Fit::Fits;
        }
        if needed <= most {
            return Fit::Tight;
        }
        let aggregated = self.aggregated();
        match aggregated.len() {
            needed if needed <= most => Fit::Aggregated(Arc::new(aggregated)),
            needed => Fit::Overflow { needed },
        }
    }

    /// The same verdicts with as few entries as possible for each peer.
    #[must_use]
    pub fn aggregated(&self) -> Self {
        let mut policy = self.clone();
        for direction in Direction::BOTH {
            let half = policy.direction_mut(direction);
            half.columns = aggregated(half);
        }
        policy
    }
}

fn aggregated(half: &DirectionPolicy) -> Columns {
    let mut done: HashMap<(*const Column, bool, bool), Arc<Column>> = HashMap::new();
    let mut columns = Columns::default();
    for (identity, column) in half.columns.iter() {
        let weak = identity & WEAK;
        let column = if identity & !WEAK == WILDCARD {
            // A deny for everybody would beat what an identity may.
            Arc::new(fewest(column, None, false))
        } else {
            // For a block the kernel asks nobody else.
            let block = identity >> 24 & 3 == blocks::SCOPE >> 24;
            let everybody = half.columns.get(WILDCARD | weak).filter(|_| !block);
            let everybody = everybody.map(AsRef::as_ref);
            let key = (Arc::as_ptr(column), weak != 0, block);
            let same = || Arc::new(fewest(column, everybody, !half.blocks));
            done.entry(key).or_insert_with(same).clone()
        };
        columns.set(identity, column);
    }
    columns
}

/// What an own entry may say of a block, so that the verdict is right.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct May {
    allow: bool,
    deny: bool,
    /// Sends on to the block of the address.
    block: bool,
    nothing: bool,
}

/// What an entry above says: nothing, an allow, a deny, that the block of the address decides.
const SAID: usize = 4;

/// For each of [`SAID`] the fewest entries, if it is possible at all.
type Best = [Option<Vec<Entry>>; SAID];

struct Fewest<'a> {
    own: &'a Column,
    everybody: Option<&'a Column>,
    /// What no rule allows may be denied.
    drops: bool,
    keys: BTreeSet<L4>,
}

fn fewest(own: &Column, everybody: Option<&Column>, drops: bool) -> Column {
    let keys = own.entries().iter().chain(everybody.into_iter().flat_map(Column::entries));
    let keys = keys.map(|entry| entry.l4).collect();
    let [best, ..] = Fewest { own, everybody, drops, keys }.whole();
    // The entries at hand are a way to say it: there is one.
    best.map_or_else(|| own.clone(), Column::of)
}

impl Fewest<'_> {
    fn whole(&self) -> Best {
        let protocols: BTreeSet<u8> = self.keys.iter().map(|key| key.proto).collect();
        let parts = protocols.into_iter().filter(|proto| *proto != protocol::ANY);
        let mut below = self.leaf(L4::ALL);
        for proto in parts {
            below = both(below, self.block(L4::proto(proto)));
        }
        self.with_entry(L4::ALL, &below)
    }

    fn block(&self, key: L4) -> Best {
        let last = L4 { prefix: 16, port: key.last(), ..key };
        let inside = self.keys.range(key..=last).any(|one| *one != key && key.covers(*one));
        if !inside || key.prefix == 16 {
            return self.with_entry(key, &self.leaf(key));
        }
        let prefix = key.prefix + 1;
        let upper = L4 { port: key.port | 1 << (16 - prefix), prefix, ..key };
        let below = both(self.block(L4 { prefix, ..key }), self.block(upper));
        self.with_entry(key, &below)
    }

    /// A block in which the verdict is everywhere the same: nothing to write, if what is above fits.
    fn leaf(&self, key: L4) -> Best {
        let said = |column: &Column| column.longest(key).map(|entry| entry.deny);
        let (own, all) = (said(self.own), self.everybody.and_then(said));
        let none = May { allow: false, deny: false, block: false, nothing: false };
        let may = match (own, all) {
            _ if self.own.longest(key).is_some_and(|entry| entry.view > 0) => {
                May { block: true, ..none }
            }
            (_, Some(true)) => May { allow: true, deny: true, nothing: true, ..none },
            (Some(true), _) => May { deny: true, ..none },
            (_, Some(false)) => May { allow: true, nothing: true, ..none },
            (Some(false), None) => May { allow: true, ..none },
            (None, None) => May { deny: self.drops, nothing: true, ..none },
        };
        [may.nothing, may.allow, may.deny, may.block].map(|may| may.then(Vec::new))
    }

    /// The same, where an entry for the whole block may be written.
    fn with_entry(&self, key: L4, below: &Best) -> Best {
        std::array::from_fn(|above| {
            let mut best = below[above].clone();
            for (at, deny, view) in [(1, false, 0), (2, true, 0), (3, false, self.view())] {
                if let Some(rest) = &below[at]
                    && best.as_ref().is_none_or(|best| rest.len() + 1 < best.len())
                {
                    let cookie = if view > 0 { NOBODY } else { self.cookie(key, deny) };
                    let entry = Entry { l4: key, deny, view, cookie };
                    best = Some(rest.iter().copied().chain([entry]).collect());
                }
            }
            best
        })
    }

    /// Through which view the peer sees blocks.
    fn view(&self) -> u8 {
        self.own.entries().iter().map(|entry| entry.view).max().unwrap_or_default()
    }

    /// The rules of an entry that says this of the block, or of a part of it.
    fn cookie(&self, key: L4, deny: bool) -> u32 {
        let covering = key.broader().find_map(|key| self.own.exactly(key));
        let inside = self.own.entries().iter().filter(|entry| key.covers(entry.l4)).copied();
        let fits = |entry: &Entry| entry.deny == deny && entry.view == 0;
        covering.into_iter().chain(inside).find(fits).map_or(NOBODY, |entry| entry.cookie)
    }
}

/// Two blocks beside each other.
fn both(one: Best, other: Best) -> Best {
    let mut one = one.into_iter();
    other.map(|other| {
        let (mut one, other) = (one.next().flatten()?, other?);
        one.extend(other);
        Some(one)
    })
}
