//! Decides with which entries the keys of one peer identity say what rules say, when a deny beats
//! every allow. (For rules with an order see [`crate::tiers`].)

use std::collections::BTreeMap;

use crate::l4::L4;
use crate::origin::Origins;

/// An entry, without its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) l4: L4,
    pub(crate) deny: bool,
    /// Decides nothing: the block of the peer's address does, seen through this view less one
    /// ([`crate::views`]). 0 for entries that decide.
    pub(crate) view: u8,
    /// Which rules it comes from.
    pub(crate) cookie: u32,
}

/// The entries for one peer identity, by protocol and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Column(Box<[Entry]>);

impl Column {
    /// The fewest entries that say `said` beside the wildcard column.
    ///
    /// A deny beats every allow that it covers, so such an allow is not written at all; with that
    /// the longest match is always right. What a broader entry says already is left out too.
    pub(crate) fn new(
        wildcard: Option<&Self>,
        said: impl IntoIterator<Item = Entry>,
        origins: &mut Origins,
    ) -> Self {
        let (mut denies, mut allows) =
            (BTreeMap::<L4, Vec<u32>>::new(), BTreeMap::<L4, Vec<u32>>::new());
        for Entry { l4, deny, cookie, .. } in said {
            let side = if deny { &mut denies } else { &mut allows };
            side.entry(l4).or_default().push(cookie);
        }
        let everyone = |key: L4, deny: bool| {
            wildcard.and_then(|column| column.exactly(key)).is_some_and(|entry| entry.deny == deny)
        };
        let denied_more_broadly = |key: L4| {
            key.broader().skip(1).any(|broad| denies.contains_key(&broad))
                || key.broader().any(|broad| everyone(broad, true))
        };
        let allowed_more_broadly = |key: L4| {
            key.broader().skip(1).any(|broad| allows.contains_key(&broad))
                || key.broader().any(|broad| everyone(broad, false))
        };
        let kept_denies = denies.iter().filter(|(key, _)| !denied_more_broadly(**key));
        let kept_allows = allows.iter().filter(|(key, _)| {
            !denies.contains_key(key) && !denied_more_broadly(**key) && !allowed_more_broadly(**key)
        });
        let kept: Vec<(L4, bool, Vec<u32>)> = kept_denies
            .map(|(l4, cookies)| (*l4, true, cookies.clone()))
            .chain(kept_allows.map(|(l4, cookies)| (*l4, false, cookies.clone())))
            .collect();
        let entry =
            |(l4, deny, cookies)| Entry { l4, deny, view: 0, cookie: origins.union(cookies) };
        Self::of(kept.into_iter().map(entry))
    }

    /// A column of just these entries, one of each key.
    pub(crate) fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        entries.sort_unstable();
        Self(entries.into())
    }

    /// The entries by key.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Whether the column says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry of this key.
    pub(crate) fn exactly(&self, key: L4) -> Option<Entry> {
        let at = self.0.binary_search_by_key(&key, |entry| entry.l4).ok()?;
        Some(self.0[at])
    }

    /// The longest match, as an LPM trie finds it.
    pub(crate) fn longest(&self, packet: L4) -> Option<Entry> {
        packet.broader().find_map(|key| self.exactly(key))
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Entry};
    use crate::l4::{L4, protocol::TCP};
    use crate::origin::Origins;

    const HTTP: L4 = L4::port(TCP, 80);
    const BLOCK: L4 = L4 { proto: TCP, port: 64, prefix: 10 };

    #[test]
    fn says_it_with_the_fewest() {
        type Said = &'static [(L4, bool)];
        let cases: &[(&str, Said, Said, Said)] = &[
            ("alone", &[], &[(HTTP, false)], &[(HTTP, false)]),
            ("deny replaces allow", &[], &[(HTTP, false), (HTTP, true)], &[(HTTP, true)]),
            ("a deny takes what it covers", &[], &[(HTTP, false), (BLOCK, true)], &[(BLOCK, true)]),
            (
                "a narrow deny in an allow",
                &[],
                &[(L4::ALL, false), (HTTP, true)],
                &[(L4::ALL, false), (HTTP, true)],
            ),
            ("a broad allow is enough", &[], &[(BLOCK, false), (HTTP, false)], &[(BLOCK, false)]),
            ("everybody may already", &[(L4::ALL, false)], &[(HTTP, false)], &[]),
            ("nobody may anyway", &[(BLOCK, true)], &[(HTTP, false), (HTTP, true)], &[]),
            (
                "a deny beside everybody's allow",
                &[(L4::ALL, false)],
                &[(HTTP, true)],
                &[(HTTP, true)],
            ),
        ];
        let mut origins = Origins::default();
        for (name, wildcard, said, want) in cases {
            let entries = |said: Said| {
                said.iter().map(|(l4, deny)| Entry { l4: *l4, deny: *deny, view: 0, cookie: 0 })
            };
            let wildcard = Column::new(None, entries(wildcard), &mut origins);
            let column = Column::new(Some(&wildcard), entries(said), &mut origins);
            assert_eq!(column.entries(), entries(want).collect::<Vec<_>>(), "{name}");
        }
    }
}
