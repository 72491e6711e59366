//! Decides through which views peers see the rules about addresses, so that what is said of a block
//! is exact for each of them.
//!
//! A block tells the address, not who has it. Where a rule about others stands between two about
//! addresses, or passes somebody on before one, or is reached after one has passed the address on,
//! what becomes of a block depends on whom that rule selects. Such rules are few: each combination
//! of those that select a peer is a view, and blocks have a column for each view. The peer's own
//! column says which is its ([`crate::map::PolicyEntry::view`]).

use std::collections::BTreeMap;

use crate::half::Half;
use crate::l4::L4;
use crate::rule::Action;
use crate::selectors::SelectorId;
use crate::tiers::Said;

/// Where the number of a view starts in the identity of a block's key; views need five bits.
pub const SHIFT: u32 = 26;

/// The most selectors that can make views: each doubles the columns of blocks.
const MOST: usize = 5;

/// The most columns of blocks that views may make of rules about addresses.
const MOST_COLUMNS: usize = 4096;

/// The rules that peers see blocks differently by.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// Filters, and the bit of their selector.
    filters: Vec<(usize, u8)>,
    count: u8,
}

/// Where the rules about addresses are in the order, for one block of ports.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: usize,
    last: usize,
    first_pass: usize,
}

impl Views {
    /// The views of a direction; none, if they would be too many.
    ///
    /// `said` lists what filters about addresses, and what others, are about, in their order.
    pub(crate) fn new(half: &Half, by_address: &Said, specific: &Said) -> Option<Self> {
        let mut spans: BTreeMap<L4, Span> = BTreeMap::new();
        for (l4, at) in by_address {
            let passes = half.filters[*at].action == Action::Pass;
            let new = Span { first: *at, last: *at, first_pass: usize::MAX };
            let span = spans.entry(*l4).or_insert(new);
            span.last = *at;
            if passes {
                span.first_pass = span.first_pass.min(*at);
            }
        }
        let differs = |(l4, at): &(L4, usize)| {
            let meets = |other: &L4| other.covers(*l4) || l4.covers(*other);
            let (mut before, mut after, mut passed) =
                (half.filters[*at].action == Action::Pass, false, false);
            for (_, span) in spans.iter().filter(|(other, _)| meets(other)) {
                before |= span.first < *at;
                after |= span.last > *at;
                passed |= span.first_pass < *at;
            }
            passed || (before && after)
        };
        let mut bits: Vec<SelectorId> = Vec::new();
        let mut filters: Vec<(usize, u8)> = Vec::new();
        for said in specific.iter().filter(|said| differs(said)) {
            let filter = &half.filters[said.1];
            if filter.outside || filters.last().is_some_and(|(at, _)| *at == said.1) {
                continue;
            }
            // What a name stands for differs among those whom a filter selects.
            let peer = filter.peer.filter(|_| !half.is_named(said.1))?;
            let bit = bits.iter().position(|known| *known == peer).unwrap_or(bits.len());
            if bit == bits.len() {
                bits.push(peer);
            }
            filters.push((said.1, u8::try_from(bit).ok().filter(|_| bit < MOST)?));
        }
        let blocks = half.filters.iter().filter(|filter| filter.by_address).count();
        let count: u8 = 1 << bits.len();
        (count == 1 || blocks * usize::from(count) <= MOST_COLUMNS)
            .then_some(Self { filters, count })
    }

    /// The views that there are.
    pub(crate) fn all(&self) -> std::ops::Range<u8> {
        0..self.count
    }

    /// The view of whom these filters select.
    pub(crate) fn of(&self, filters: &[usize]) -> u8 {
        let own = self.filters.iter().filter(|(at, _)| filters.contains(at));
        own.fold(0, |view, (_, bit)| view | 1 << bit)
    }

    /// Whether a filter selects those of a view.
    pub(crate) fn has(&self, view: u8, filter: usize) -> bool {
        self.filters.iter().any(|(at, bit)| *at == filter && view & 1 << bit != 0)
    }
}
