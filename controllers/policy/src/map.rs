//! The entries of a policy map, and what the kernel's lookup makes of them.
//!
//! A map is a table of columns: all keys of one peer identity. A column depends on the rules that
//! select its identity and on the wildcard column, and on nothing else: that is why one identity
//! more or less touches one column, and why identities that the same rules select share one.
//!
//! Three lookups can follow one another, each with the wildcard column beside, until one finds
//! something: by the peer's identity; where [`DirectionPolicy::blocks`] is set, by the block of its
//! address ([`crate::blocks`]), seen through a view; and by its identity with the bit [`WEAK`].
//! An entry of the identity can say through which view, instead of deciding.

use serde::Serialize;

use crate::column::{Column, Entry};
use crate::columns::Columns;
use crate::l4::L4;
use crate::rule::Direction;

/// The identity of the keys that are for every peer.
pub const WILDCARD: u32 = 0;

/// Set in identities of keys that count only after those of blocks.
pub const WEAK: u32 = 1 << 31;

pub use crate::views::SHIFT as VIEW_SHIFT;

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
    /// Decides nothing, but sends on to the block of the peer's address, seen through this view less
    /// one. 0 for entries that decide.
    pub view: u8,
    /// Which rules it comes from: [`crate::Repository::origins`] knows. 0 is no rule, but a default.
    pub cookie: u32,
}

/// One direction of an endpoint's policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectionPolicy {
    /// Whether a rule restricts this direction.
    pub enforced: bool,
    /// Whether rules mean addresses, whoever has them: what the first lookup doesn't find is sought
    /// by block, and then with [`WEAK`].
    pub blocks: bool,
    /// By peer identity; the columns of identities that the same rules select are the same.
    pub(crate) columns: Columns,
}

/// What the policy map of an endpoint holds: about 40 bytes for each peer identity, and 12 for each
/// entry of each distinct column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointPolicy {
    /// To the endpoint.
    pub ingress: DirectionPolicy,
    /// From the endpoint.
    pub egress: DirectionPolicy,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
        columns.map(|(_, column)| column.entries().len()).sum()
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
                column.entries().iter().map(move |entry| kernel_entry(direction, identity, *entry))
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
                let entries =
                    |column: Option<&'_ Column>| column.map_or(&[][..], Column::entries).to_vec();
                let (now, before) = (entries(now), entries(before));
                let fresh = now.iter().filter(|entry| before.binary_search(entry).is_err());
                difference
                    .write
                    .extend(fresh.map(|entry| kernel_entry(direction, identity, *entry)));
                let has = |l4: L4| now.binary_search_by_key(&l4, |entry| entry.l4).is_ok();
                let gone = before.iter().filter(|entry| !has(entry.l4));
                difference
                    .remove
                    .extend(gone.map(|entry| kernel_entry(direction, identity, *entry).0));
            }
        }
        difference
    }

    /// The verdict for a packet, by the kernel's lookups; of a peer whose address
    /// is in no block.
    ///
    /// `port` is the receiver's port, or the type of an ICMP message.
    pub fn verdict(&self, direction: Direction, identity: u32, proto: u8, port: u16) -> Verdict {
        self.decide(direction, identity, None, proto, port).0
    }

    /// The verdict for a packet, and the cookie of the entry that makes it.
    ///
    /// `block` is what [`crate::Repository::block`] says of the peer's address.
    pub fn decide(
        &self,
        direction: Direction,
        identity: u32,
        block: Option<u32>,
        proto: u8,
        port: u16,
    ) -> (Verdict, Option<u32>) {
        let half = self.direction(direction);
        let packet = L4::port(proto, port);
        let first = half.lookup(identity, WILDCARD, packet);
        let decided = first.filter(|entry| entry.view == 0);
        let found = decided.or_else(|| {
            let block = block.filter(|_| half.blocks)?;
            let view = first.map_or(0, |entry| u32::from(entry.view) - 1);
            let block = block | view << VIEW_SHIFT;
            half.lookup(block, block, packet)
        });
        let found = found.or_else(|| {
            let weak = half.blocks.then_some(WEAK)?;
            half.lookup(identity | weak, WILDCARD | weak, packet)
        });
        match found {
            None => (Verdict::NotAllowed, None),
            Some(Entry { deny: true, cookie, .. }) => (Verdict::Denied, Some(cookie)),
            Some(Entry { cookie, .. }) => (Verdict::Allowed, Some(cookie)),
        }
    }
}

impl DirectionPolicy {
    /// One of the kernel's lookups: by an identity and for everybody.
    fn lookup(&self, identity: u32, everybody: u32, packet: L4) -> Option<Entry> {
        let find = |identity| self.columns.get(identity).and_then(|column| column.longest(packet));
        match (find(identity), find(everybody)) {
            (Some(own), _) if own.deny || own.view > 0 => Some(own),
            (_, Some(all)) if all.deny => Some(all),
            (Some(own), Some(all)) if all.l4.lpm_bits() > own.l4.lpm_bits() => Some(all),
            (own, all) => own.or(all),
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

fn kernel_entry(direction: Direction, identity: u32, entry: Entry) -> (PolicyKey, PolicyEntry) {
    let Entry { l4, deny, view, cookie } = entry;
    let egress = direction == Direction::Egress;
    let key =
        PolicyKey { identity, egress, proto: l4.proto, port: l4.port, port_prefix: l4.prefix };
    (key, PolicyEntry { deny, view, cookie })
}
