//! Decides with which entries the keys of a peer identity say what rules with an order say.
//!
//! The order, priorities and passes are resolved here, so that the kernel's lookup knows nothing of
//! them. For each block of ports that a rule names the verdict is found by asking the rules in
//! their order; a trie of these verdicts is then written with few entries. Two facts make it hard:
//!
//! * A deny for everybody beats what an identity may in the kernel. So where a rule that comes
//!   earlier lets somebody pass, the deny for everybody is not written, and no allow that would
//!   cover the place either: the rest of such an allow is cut into blocks ([`Cell::Hole`]).
//! * Rules about addresses can't be decided by identity. Where one comes first, nothing is written
//!   for the identity; the kernel goes on with the block of the address ([`Tiers::block`]), and if
//!   that says nothing, with the same keys with the bit [`crate::map::WEAK`], which are computed as if
//!   there were no rules about addresses.

use std::collections::{BTreeMap, BTreeSet};

use cilia_crds::NumericIdentity;

use crate::blocks;
use crate::cidr;
use crate::column::{Column, Entry};
use crate::half::Half;
use crate::l4::{L4, protocol};
use crate::map::WILDCARD;
use crate::names::Names;
use crate::origin::NOBODY;
use crate::rule::Action;

/// The protocols that a cut allow is written for; packets of others are dropped then.
const PROTOCOLS: [u8; 7] = [
    protocol::ICMP,
    protocol::IGMP,
    protocol::TCP,
    protocol::UDP,
    protocol::ICMPV6,
    protocol::VRRP,
    protocol::SCTP,
];

/// Keys and the filters that name them, in the order of the filters.
type Said = Vec<(L4, usize)>;

/// The verdict for a block of ports, without the narrower blocks in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Allow(u32),
    Deny(u32),
    /// No rule allows it.
    Drop,
    /// Something else decides: there must be no entry.
    Hole,
}

/// The filters of one direction, in their order.
#[derive(Debug)]
pub(crate) struct Tiers<'a> {
    half: &'a Half,
    names: Names<'a>,
    /// What is said of everybody, of addresses, and of others.
    everybody: Said,
    by_address: Said,
    specific: Said,
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
        Self { half, names, everybody, by_address, specific }
    }

    /// The wildcard column; the weak one is as if there were no rules about addresses.
    pub(crate) fn everybody(&self, weak: bool) -> Column {
        let none = Vec::new();
        let by_address = if weak { &none } else { &self.by_address };
        let keys = keys([&self.everybody, by_address, &self.specific]);
        let cell = |key: L4| {
            let (cell, at) = self.walk(&self.everybody, key, false);
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

    /// The columns of an identity that these filters select, beside the wildcard columns: what
    /// counts first, and what counts after blocks.
    pub(crate) fn columns(
        &self,
        filters: &[usize],
        identity: NumericIdentity,
        wildcards: [Option<&Column>; 2],
    ) -> [Column; 2] {
        let own: Said = filters
            .iter()
            .flat_map(|filter| self.half.keys(*filter, self.names, Some(identity)))
            .collect();
        let kind = kind(identity);
        if kind == blocks::SCOPE {
            return [self.block(&own), Column::default()];
        }
        let [first, weak] = wildcards;
        if kind == cidr::SCOPE || !self.half.blocks {
            // Its addresses are known, or nobody asks for them.
            let said = merged([&self.everybody, &own]);
            let trie = Trie::new(&keys([&said]), |key| self.walk(&said, key, false).0);
            return [trie.column(first, self.half.blocks), Column::default()];
        }
        let known = merged([&self.everybody, &own, &self.by_address]);
        let first_of = Trie::new(&keys([&known]), |key| self.walk(&known, key, true).0);
        let column = first_of.column(first, true);
        let said = merged([&self.everybody, &own]);
        let trie = Trie::new(&keys([&said]), |key| self.walk(&said, key, false).0);
        [column, trie.column(weak, false)]
    }

    /// Whether a filter is asked about a key at all: no pass for everybody comes before.
    fn met(&self, at: usize, key: L4) -> bool {
        let filters = &self.half.filters;
        let passes = |one: usize| {
            one < at && filters[one].action == Action::Pass && filters[one].tier == filters[at].tier
        };
        !self.everybody.iter().any(|(l4, one)| passes(*one) && l4.covers(key))
    }

    /// The column of a block: what the rules about addresses say of it that come first for its key.
    ///
    /// Who has the address isn't known here. Where it depends on that, because a rule about others
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
    /// If there is a hole where rules about addresses are to be asked, these may be any.
    fn walk(&self, said: &Said, key: L4, holes: bool) -> (Cell, usize) {
        let mut passed = None;
        for (_, at) in said.iter().filter(|(l4, _)| l4.covers(key)) {
            let filter = &self.half.filters[*at];
            if passed == Some(filter.tier) {
                continue;
            }
            if holes && filter.by_address {
                return (Cell::Hole, *at);
            }
            match filter.action {
                Action::Allow => return (Cell::Allow(filter.cookie), *at),
                Action::Deny | Action::Inspect | Action::Authenticate => {
                    return (Cell::Deny(filter.cookie), *at);
                }
                Action::Pass => passed = Some(filter.tier),
            }
        }
        let last = if self.half.isolated { Cell::Drop } else { Cell::Allow(NOBODY) };
        (last, usize::MAX)
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

/// Blocks of ports, each inside of its parent.
struct Trie {
    cells: BTreeMap<L4, Cell>,
    children: BTreeMap<L4, Vec<L4>>,
}

impl Trie {
    fn new(keys: &BTreeSet<L4>, cell: impl Fn(L4) -> Cell) -> Self {
        let mut children: BTreeMap<L4, Vec<L4>> = BTreeMap::new();
        for key in keys {
            if let Some(parent) = key.broader().skip(1).find(|broad| keys.contains(broad)) {
                children.entry(parent).or_default().push(*key);
            }
        }
        let cells = keys.iter().map(|key| (*key, cell(*key))).collect();
        Self { cells, children }
    }

    /// The entries, beside those of a wildcard column. What is dropped gets an entry where it is
    /// asked for, else only where it would pass without.
    fn column(&self, wildcard: Option<&Column>, drops: bool) -> Column {
        let mut entries = Vec::new();
        self.write(L4::ALL, None, wildcard, drops, &mut entries);
        Column::of(entries)
    }

    /// Writes a block and what is in it; `inherited` is what an own entry says of the whole.
    fn write(
        &self,
        key: L4,
        inherited: Option<bool>,
        wildcard: Option<&Column>,
        drops: bool,
        entries: &mut Vec<Entry>,
    ) {
        let children = self.children.get(&key).map_or(&[][..], Vec::as_slice);
        let wanted = match self.cells.get(&key).copied().unwrap_or(Cell::Hole) {
            Cell::Allow(cookie) => Some((false, cookie)),
            Cell::Deny(cookie) => Some((true, cookie)),
            Cell::Drop => {
                let passes =
                    inherited == Some(false) || wildcard.is_some_and(|all| allows(all, key));
                (drops || passes).then_some((true, NOBODY))
            }
            Cell::Hole => None,
        };
        let mut below = inherited;
        if let Some((deny, cookie)) = wanted {
            let said = wildcard.and_then(|all| key.broader().find_map(|key| all.exactly(key)));
            let said = inherited.is_none() && said.is_some_and(|entry| entry.deny == deny);
            if inherited != Some(deny) && !said {
                if self.holes_below(key) {
                    let cut = |l4| Entry { l4, deny, cookie };
                    entries.extend(tiles(key, children).into_iter().map(cut));
                } else {
                    entries.push(Entry { l4: key, deny, cookie });
                    below = Some(deny);
                }
            }
        }
        for child in children {
            self.write(*child, below, wildcard, drops, entries);
        }
    }

    fn holes_below(&self, key: L4) -> bool {
        let children = self.children.get(&key).into_iter().flatten();
        children
            .into_iter()
            .any(|child| self.cells.get(child) == Some(&Cell::Hole) || self.holes_below(*child))
    }
}

/// Whether a column lets something of a block pass.
fn allows(column: &Column, key: L4) -> bool {
    let covering = key.broader().find_map(|key| column.exactly(key));
    covering.is_some_and(|entry| !entry.deny)
        || column.entries().iter().any(|entry| !entry.deny && key.covers(entry.l4))
}

/// The largest blocks that make up `key` without `children`.
fn tiles(key: L4, children: &[L4]) -> Vec<L4> {
    let inside: Vec<L4> = children.iter().copied().filter(|child| key.covers(*child)).collect();
    if inside.is_empty() {
        return vec![key];
    }
    if inside.contains(&key) {
        return Vec::new();
    }
    if key.proto == protocol::ANY {
        let protocols = PROTOCOLS.into_iter().map(L4::proto);
        return protocols.flat_map(|proto| tiles(proto, &inside)).collect();
    }
    let prefix = key.prefix + 1;
    let upper = key.port | 1 << (16 - prefix);
    [key.port, upper]
        .into_iter()
        .flat_map(|port| tiles(L4 { proto: key.proto, port, prefix }, &inside))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::tiles;
    use crate::l4::{
        L4,
        protocol::{TCP, UDP},
    };

    #[test]
    fn tiles_are_what_is_left_exactly() {
        let child = L4 { proto: TCP, port: 64, prefix: 10 };
        let found = tiles(L4::proto(TCP), &[child, L4::port(TCP, 80), L4::port(TCP, 9)]);
        for port in 0..=u16::MAX {
            let held = found.iter().filter(|tile| tile.covers(L4::port(TCP, port))).count();
            assert_eq!(held, usize::from(!(64..128).contains(&port) && port != 9), "{port}");
        }
        let all = tiles(L4::ALL, &[L4::proto(TCP)]);
        assert!(all.contains(&L4::proto(UDP)) && !all.contains(&L4::proto(TCP)));
    }
}
