//! Decides with which entries the keys of a peer identity say what rules with an order say.
//!
//! The order, priorities and passes are resolved here, so that the kernel's lookup knows nothing of
//! them. For each block of ports that a rule names the verdict is found by asking the rules in
//! their order; a trie of these verdicts is then written with few entries. Two facts make it hard:
//!
//! * A deny for everybody beats what an identity may in the kernel. So where a rule that comes
//!   earlier lets somebody pass, the deny for everybody is not written, and no allow that would
//!   cover the place either: the rest of such an allow is cut into blocks ([`Cell::Hole`]).
//! * Rules about addresses can't be decided by identity. Where one comes first, the identity's
//!   entry sends the packet on ([`Cell::Block`]): the kernel asks the block of the address, as the
//!   identity sees it ([`crate::views`]), and if that says nothing, the same keys with the bit
//!   [`crate::map::WEAK`], which are computed as if there were no rules about addresses.

use std::collections::BTreeSet;

use cilia_crds::NumericIdentity;

use crate::blocks;
use crate::cidr;
use crate::column::Column;
use crate::half::Half;
use crate::l4::L4;
use crate::map::{WEAK, WILDCARD};
use crate::names::Names;
use crate::origin::NOBODY;
use crate::rule::Action;
use crate::trie::{Cell, Trie};
use crate::views::{self, Views};

/// Keys and the filters that name them, in the order of the filters.
pub(crate) type Said = Vec<(L4, usize)>;

/// The filters of one direction, in their order.
#[derive(Debug)]
pub(crate) struct Tiers<'a> {
    half: &'a Half,
    names: Names<'a>,
    /// What is said of everybody, of addresses, and of others.
    everybody: Said,
    by_address: Said,
    specific: Said,
    /// How blocks are seen; nothing, if it is in too many ways.
    views: Option<Views>,
}

/// How an identity's verdicts are found; identities of different kinds share no columns.
pub(crate) fn kind(identity: NumericIdentity) -> u32 {
    match identity.0 >> 24 << 24 {
        blocks::SCOPE => blocks::SCOPE,
        cidr::SCOPE => cidr::SCOPE,
        // Whose address is in no prefix that is named.
        _ if matches!(
            identity,
            NumericIdentity::WORLD | NumericIdentity::WORLD_IPV4 | NumericIdentity::WORLD_IPV6
        ) =>
        {
            cidr::SCOPE
        }
        _ => 0,
    }
}

impl<'a> Tiers<'a> {
    pub(crate) fn new(half: &'a Half, names: Names<'a>) -> Self {
        let (mut everybody, mut by_address, mut specific) = (Vec::new(), Vec::new(), Vec::new());
        for (index, filter) in half.filters.iter().enumerate() {
            let list = match filter.peer {
                None => &mut everybody,
                Some(_) if filter.by_address => &mut by_address,
                Some(_) => &mut specific,
            };
            let whose = filter.peer.is_none().then_some(NumericIdentity(WILDCARD));
            list.extend(half.keys(index, names, whose));
        }
        // What a name stands for may depend on who is asked.
        specific.extend(half.named.iter().flat_map(|index| half.keys(*index, names, None)));
        specific.sort_by_key(|(_, filter)| *filter);
        let views = Views::new(half, &by_address, &specific);
        Self { half, names, everybody, by_address, specific, views }
    }

    /// The wildcard column; the weak one is as if there were no rules about addresses.
    pub(crate) fn everybody(&self, weak: bool) -> Column {
        let none = Vec::new();
        let by_address = if weak { &none } else { &self.by_address };
        let keys = keys([&self.everybody, by_address, &self.specific]);
        let cell = |key: L4| {
            let (cell, at) = self.walk(&self.everybody, key, None);
            let earlier = |said: &Said, counts: &dyn Fn(usize) -> bool| {
                said.iter().any(|(l4, filter)| *filter < at && counts(*filter) && l4.covers(key))
            };
            let passes = |filter: usize| self.half.filters[filter].action != Action::Deny;
            match cell {
                Cell::Drop => Cell::Hole,
                _ if earlier(by_address, &|filter| self.met(filter, key)) => Cell::Hole,
                Cell::Deny(_) if earlier(&self.specific, &passes) => Cell::Hole,
                cell => cell,
            }
        };
        Trie::new(&keys, cell).column(None, false)
    }

    /// The columns of an identity that these filters select, beside the wildcard columns, and what
    /// their keys have beside the identity: what counts first and what counts after blocks; of a
    /// block, what counts in each view.
    pub(crate) fn columns(
        &self,
        filters: &[usize],
        identity: NumericIdentity,
        wildcards: [Option<&Column>; 2],
    ) -> Vec<(u32, Column)> {
        let own: Said = filters
            .iter()
            .flat_map(|filter| self.half.keys(*filter, self.names, Some(identity)))
            .collect();
        let kind = kind(identity);
        if kind == blocks::SCOPE {
            let Some(views) = &self.views else { return vec![(0, self.block(&own))] };
            let of = |view| (u32::from(view) << views::SHIFT, self.seen(views, view, &own));
            return views.all().map(of).collect();
        }
        let [first, weak] = wildcards;
        let said = merged([&self.everybody, &own]);
        let trie = Trie::new(&keys([&said]), |key| self.walk(&said, key, None).0);
        if kind == cidr::SCOPE || !self.half.blocks {
            // Its addresses are known, or nobody asks for them.
            return vec![(0, trie.column(first, self.half.blocks))];
        }
        let view = self.views.as_ref().map_or(0, |views| views.of(filters));
        let known = merged([&self.everybody, &own, &self.by_address]);
        let first_of = Trie::new(&keys([&known]), |key| self.walk(&known, key, Some(view)).0);
        vec![(0, first_of.column(first, true)), (WEAK, trie.column(weak, false))]
    }

    /// The column of a block, as it is seen through a view: what the rules about addresses decide.
    /// What others decide is left to the peer's own columns, if no address was passed on before.
    fn seen(&self, views: &Views, view: u8, own: &Said) -> Column {
        let others = self.specific.iter().filter(|(_, at)| views.has(view, *at));
        let others: Said = others.copied().collect();
        let said = merged([&self.everybody, &others, own]);
        let cell = |key: L4| {
            let (mut passed, mut by_block) = (None, false);
            for (_, at) in said.iter().filter(|(l4, _)| l4.covers(key)) {
                let filter = &self.half.filters[*at];
                if passed == Some(filter.tier) {
                    continue;
                }
                match filter.action {
                    Action::Pass => {
                        passed = Some(filter.tier);
                        by_block |= filter.by_address;
                    }
                    _ if !filter.by_address && !by_block => return Cell::Hole,
                    Action::Allow => return Cell::Allow(filter.cookie),
                    _ => return Cell::Deny(filter.cookie),
                }
            }
            if by_block { self.last() } else { Cell::Hole }
        };
        Trie::new(&keys([&said]), cell).column(None, true)
    }

    /// Whether a filter is asked about a key at all: no pass for everybody comes before.
    fn met(&self, at: usize, key: L4) -> bool {
        let filters = &self.half.filters;
        let passes = |one: usize| {
            one < at && filters[one].action == Action::Pass && filters[one].tier == filters[at].tier
        };
        !self.everybody.iter().any(|(l4, one)| passes(*one) && l4.covers(key))
    }

    /// The column of a block where there are too many views: what the rules about addresses say of
    /// it that come first for its key.
    ///
    /// Who has the address isn't known then. Where it depends on that, because a rule about others
    /// stands between two of addresses, or passes some on, the block is denied.
    fn block(&self, own: &Said) -> Column {
        let mut all = merged([&self.everybody, &self.specific, &self.by_address]);
        all.dedup();
        Trie::new(&keys([&all]), |key| self.block_cell(&all, own, key)).column(None, false)
    }

    fn block_cell(&self, all: &Said, own: &Said, key: L4) -> Cell {
        let filters = &self.half.filters;
        let everybodys =
            |at: usize| self.everybody.iter().any(|(l4, one)| *one == at && l4.covers(key));
        let others = |at: usize| !everybodys(at);
        let asked = |(l4, at): &&(L4, usize)| l4.covers(key) && self.met(*at, key);
        // Somebody may have been passed on before.
        let passed = |at: usize| {
            all.iter().filter(asked).any(|(_, one)| {
                let filter = &filters[*one];
                *one < at
                    && others(*one)
                    && filter.action == Action::Pass
                    && filter.tier == filters[at].tier
            })
        };
        let later = |at: usize| {
            let mut by_address = self.by_address.iter().filter(asked);
            by_address.any(|(_, one)| filters[*one].tier > filters[at].tier)
        };
        let (mut between, mut met, mut uncertain) = (BTreeSet::new(), false, false);
        for (_, at) in all.iter().filter(asked) {
            let filter = &filters[*at];
            if filter.by_address {
                met = true;
                if !own.iter().any(|(l4, one)| one == at && l4.covers(key)) {
                    continue;
                }
                let agreed = between.iter().all(|action| *action == filter.action);
                return match filter.action {
                    Action::Allow if uncertain => Cell::Hole,
                    Action::Allow if agreed && !(passed(*at) && later(*at)) => {
                        Cell::Allow(filter.cookie)
                    }
                    _ => Cell::Deny(filter.cookie),
                };
            } else if others(*at) {
                if met {
                    between.insert(filter.action);
                }
            } else if filter.action != Action::Pass {
                if !passed(*at) {
                    return Cell::Hole;
                }
                uncertain = true;
            }
        }
        Cell::Hole
    }

    /// Asks the filters of a list in their order about a key; and the one that answers.
    ///
    /// Those about addresses, which may be any, are left to the block, seen through a view, if one is
    /// given.
    fn walk(&self, said: &Said, key: L4, view: Option<u8>) -> (Cell, usize) {
        let mut passed = None;
        for (_, at) in said.iter().filter(|(l4, _)| l4.covers(key)) {
            let filter = &self.half.filters[*at];
            if passed == Some(filter.tier) {
                continue;
            }
            if let Some(view) = view.filter(|_| filter.by_address) {
                return (Cell::Block(view), *at);
            }
            match filter.action {
                Action::Allow => return (Cell::Allow(filter.cookie), *at),
                Action::Deny | Action::Inspect | Action::Authenticate => {
                    return (Cell::Deny(filter.cookie), *at);
                }
                Action::Pass => passed = Some(filter.tier),
            }
        }
        (self.last(), usize::MAX)
    }

    /// What becomes of what no filter decides.
    fn last(&self) -> Cell {
        if self.half.isolated { Cell::Drop } else { Cell::Allow(NOBODY) }
    }
}

/// The lists as one, in the order of the filters.
fn merged<const N: usize>(lists: [&Said; N]) -> Said {
    let mut all: Said = lists.into_iter().flatten().copied().collect();
    all.sort_by_key(|(_, filter)| *filter);
    all
}

/// The keys of some lists, and the protocols of these keys, and everything.
fn keys<const N: usize>(lists: [&Said; N]) -> BTreeSet<L4> {
    let named = lists.into_iter().flatten().map(|(l4, _)| *l4);
    named.flat_map(|l4| [l4, L4::proto(l4.proto)]).chain([L4::ALL]).collect()
}
