//! The entries of a policy map, and what the kernel's lookup makes of them.
//!
//! A map is a table of columns: all keys of one peer identity. A column depends on the rules that
//! select its identity and on the wildcard column, and on nothing else: that is why one identity
//! more or less touches one column, and why identities that the same rules select share one.

use std::collections::BTreeSet;

use crate::columns::Columns;
use crate::l4::L4;
use crate::rule::Direction;

/// The identity of the keys that are for every peer.
pub const WILDCARD: u32 = 0;

/// A key of an endpoint's policy map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyKey {
    /// The peer; 0 for every one.
    pub identity: u32,
    /// From the endpoint, not to it.
    pub egress: bool,
    /// The protocol; 0 for every one.
    pub proto: u8,
    /// The first port of the block.
    pub port: u16,
    /// How many bits of the port count.
    pub port_prefix: u8,
}

/// What a policy map says about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyEntry {
    /// Drops instead of passing.
    pub deny: bool,
    /// Given back in verdict events.
    pub cookie: u32,
}

/// The entries for one peer identity, by protocol and port; true denies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Column(Box<[(L4, bool)]>);

impl Column {
    /// The fewest entries that say `said` beside the wildcard column.
    ///
    /// A deny beats every allow that it covers, so such an allow is not written at all; with that
    /// the longest match is always right. What a broader entry says already is left out too.
    pub fn new(wildcard: Option<&Self>, said: impl IntoIterator<Item = (L4, bool)>) -> Self {
        let (mut denies, mut allows) = (BTreeSet::new(), BTreeSet::new());
        for (l4, deny) in said {
            if deny {
                denies.insert(l4)
            } else {
                allows.insert(l4)
            };
        }
        let everyone = |key: L4, deny: bool| {
            wildcard.is_some_and(|column| column.0.binary_search(&(key, deny)).is_ok())
        };
        let denied_more_broadly = |key: L4| {
            key.broader().skip(1).any(|broad| denies.contains(&broad))
                || key.broader().any(|broad| everyone(broad, true))
        };
        let allowed_more_broadly = |key: L4| {
            key.broader().skip(1).any(|broad| allows.contains(&broad))
                || key.broader().any(|broad| everyone(broad, false))
        };
        let kept_denies =
            denies.iter().filter(|key| !denied_more_broadly(**key)).map(|key| (*key, true));
        let kept_allows = allows
            .iter()
            .filter(|key| {
                !denies.contains(key) && !denied_more_broadly(**key) && !allowed_more_broadly(**key)
            })
            .map(|key| (*key, false));
        let mut entries: Vec<(L4, bool)> = kept_denies.chain(kept_allows).collect();
        entries.sort_unstable();
        Self(entries.into())
    }

    /// Whether the column says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest match, as an LPM trie finds it: how long it is, and whether it denies.
    fn longest(&self, packet: L4) -> Option<(L4, bool)> {
        packet.broader().find_map(|key| {
            let at = self.0.binary_search_by_key(&key, |entry| entry.0).ok()?;
            Some(self.0[at])
        })
    }
}

/// One direction of an endpoint's policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectionPolicy {
    /// Whether a rule restricts this direction.
    pub enforced: bool,
    /// By peer identity; the columns of identities that the same rules select are the same.
    pub(crate) columns: Columns,
}

/// What the policy map of an endpoint holds: about 40 bytes for each peer identity, and 6 for each
/// entry of each distinct column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointPolicy {
    /// To the endpoint.
    pub ingress: DirectionPolicy,
    /// From the endpoint.
    pub egress: DirectionPolicy,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Allowed,
    /// A rule denies it (drop reason 181).
    Denied,
    /// No rule allows it (drop reason 133).
    NotAllowed,
}

impl EndpointPolicy {
    /// One direction.
    pub fn direction(&self, direction: Direction) -> &DirectionPolicy {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// One direction, to change it.
    pub(crate) fn direction_mut(&mut self, direction: Direction) -> &mut DirectionPolicy {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }

    /// How many entries the map needs.
    pub fn len(&self) -> usize {
        let columns = Direction::BOTH.iter().flat_map(|d| self.direction(*d).columns.iter());
        columns.map(|(_, column)| column.0.len()).sum()
    }

    /// Whether nothing is allowed or denied by name: all is dropped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every entry.
    pub fn entries(&self) -> impl Iterator<Item = (PolicyKey, PolicyEntry)> {
        Direction::BOTH.into_iter().flat_map(|direction| {
            let columns = self.direction(direction).columns.iter();
            columns.flat_map(move |(identity, column)| {
                column.0.iter().map(move |entry| kernel_entry(direction, identity, *entry))
            })
        })
    }

    /// What must be written and what removed to get here from `old`.
    pub fn difference(&self, old: &Self) -> Difference {
        let mut difference = Difference::default();
        for direction in Direction::BOTH {
            let (new, old) =
                (&self.direction(direction).columns, &old.direction(direction).columns);
            for (identity, now, before) in new.changed(old) {
                let entries = |column: Option<&Column>| {
                    column.map_or_else(Box::default, |column| column.0.clone())
                };
                let (now, before) = (entries(now), entries(before));
                let fresh = now.iter().filter(|entry| before.binary_search(entry).is_err());
                difference
                    .write
                    .extend(fresh.map(|entry| kernel_entry(direction, identity, *entry)));
                let has = |l4: L4| now.binary_search_by_key(&l4, |entry| entry.0).is_ok();
                let gone = before.iter().filter(|entry| !has(entry.0));
                difference
                    .remove
                    .extend(gone.map(|entry| kernel_entry(direction, identity, *entry).0));
            }
        }
        difference
    }

    /// The verdict for a packet, by the kernel's two lookups (datapath.md 4).
    ///
    /// `port` is the receiver's port, or the type of an ICMP message.
    pub fn verdict(&self, direction: Direction, identity: u32, proto: u8, port: u16) -> Verdict {
        let columns = &self.direction(direction).columns;
        let packet = L4::port(proto, port);
        let find = |identity| columns.get(identity).and_then(|column| column.longest(packet));
        match (find(identity), find(WILDCARD)) {
            (Some((_, true)), _) | (_, Some((_, true))) => Verdict::Denied,
            (None, None) => Verdict::NotAllowed,
            _ => Verdict::Allowed,
        }
    }
}

/// Writes that lead from one policy to another; the additions are to be done first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Entries that are new or say something else.
    pub write: Vec<(PolicyKey, PolicyEntry)>,
    /// Keys that are gone.
    pub remove: Vec<PolicyKey>,
}

fn kernel_entry(
    direction: Direction,
    identity: u32,
    (l4, deny): (L4, bool),
) -> (PolicyKey, PolicyEntry) {
    let egress = direction == Direction::Egress;
    let key =
        PolicyKey { identity, egress, proto: l4.proto, port: l4.port, port_prefix: l4.prefix };
    (key, PolicyEntry { deny, cookie: 0 })
}

#[cfg(test)]
mod tests {
    use super::Column;
    use crate::l4::{L4, protocol::TCP};

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
        for (name, wildcard, said, want) in cases {
            let wildcard = Column::new(None, wildcard.iter().copied());
            let column = Column::new(Some(&wildcard), said.iter().copied());
            assert_eq!(&*column.0, *want, "{name}");
        }
    }
}
