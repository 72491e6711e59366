//! Decides with which entries verdicts for blocks of ports are said, beside what is said of everybody.
//!
//! A deny for everybody beats what an identity may in the kernel. So where something else decides of a
//! part of a block ([`Cell::Hole`]), the block is not written as a whole, but cut.

use std::collections::{BTreeMap, BTreeSet};

use crate::column::{Column, Entry};
use crate::l4::{L4, protocol};
use crate::origin::NOBODY;

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

/// The verdict for a block of ports, without the narrower blocks in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Allow(u32),
    Deny(u32),
    /// No rule allows it.
    Drop,
    /// Something else decides: there must be no entry.
    Hole,
    /// The block of the peer's address decides, seen through this view.
    Block(u8),
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Says {
    deny: bool,
    view: u8,
}

impl Says {
    const ALLOW: Self = Self { deny: false, view: 0 };
    const DENY: Self = Self { deny: true, view: 0 };

    fn of(entry: &Entry) -> Self {
        Self { deny: entry.deny, view: entry.view }
    }
}

/// Blocks of ports, each inside of its parent.
pub(crate) struct Trie {
    cells: BTreeMap<L4, Cell>,
    children: BTreeMap<L4, Vec<L4>>,
}

impl Trie {
    pub(crate) fn new(keys: &BTreeSet<L4>, cell: impl Fn(L4) -> Cell) -> Self {
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
    pub(crate) fn column(&self, wildcard: Option<&Column>, drops: bool) -> Column {
        let mut entries = Vec::new();
        self.write(L4::ALL, None, wildcard, drops, &mut entries);
        Column::of(entries)
    }

    /// Writes a block and what is in it; `inherited` is what an own entry says of the whole.
    fn write(
        &self,
        key: L4,
        inherited: Option<Says>,
        wildcard: Option<&Column>,
        drops: bool,
        entries: &mut Vec<Entry>,
    ) {
        let children = self.children.get(&key).map_or(&[][..], Vec::as_slice);
        let wanted = match self.cells.get(&key).copied().unwrap_or(Cell::Hole) {
            Cell::Allow(cookie) => Some((Says::ALLOW, cookie)),
            Cell::Deny(cookie) => Some((Says::DENY, cookie)),
            Cell::Drop => {
                let passes = inherited.is_some_and(|says| says != Says::DENY)
                    || wildcard.is_some_and(|all| speaks(all, key, |entry| !entry.deny));
                (drops || passes).then_some((Says::DENY, NOBODY))
            }
            // Without an entry it is so for the first view.
            Cell::Block(view) => {
                let answered = wildcard.is_some_and(|all| speaks(all, key, |_| true));
                let needed = view > 0 || inherited.is_some() || answered;
                needed.then_some((Says { deny: false, view: view + 1 }, NOBODY))
            }
            Cell::Hole => None,
        };
        let mut below = inherited;
        if let Some((says, cookie)) = wanted {
            let said = wildcard.and_then(|all| key.broader().find_map(|key| all.exactly(key)));
            let said = inherited.is_none() && said.is_some_and(|entry| Says::of(&entry) == says);
            if inherited != Some(says) && !said {
                let Says { deny, view } = says;
                let entry = |l4| Entry { l4, deny, view, cookie };
                if self.holes_below(key) {
                    entries.extend(tiles(key, children).into_iter().map(entry));
                } else {
                    entries.push(entry(key));
                    below = Some(says);
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

/// Whether a column has such an entry for a block, or for something of it.
fn speaks(column: &Column, key: L4, such: impl Fn(&Entry) -> bool) -> bool {
    let covering = key.broader().find_map(|key| column.exactly(key));
    covering.is_some_and(|entry| such(&entry))
        || column.entries().iter().any(|entry| such(entry) && key.covers(entry.l4))
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
