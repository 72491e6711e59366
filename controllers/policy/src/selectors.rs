//! Who is selected by what: every peer selector in use with the identities it selects.
//!
//! A selector is stored once however many rules use it, and is found for a new identity through a
//! label that it insists on, so an identity costs the selectors it might match, not all of them.
//! About 100 bytes for each selector, and 20 for each identity that it selects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::rule::Peer;

/// A selector's place in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SelectorId(u32);

/// An identity, as selectors see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) labels: Arc<Labels>,
    /// For the identity of a prefix.
    pub(crate) prefix: Option<IpNet>,
}

#[derive(Debug)]
struct Slot {
    peer: Peer,
    users: u32,
    selected: BTreeSet<NumericIdentity>,
}

type Anchor = (Box<str>, Box<str>);

#[derive(Debug, Default)]
pub(crate) struct Selectors {
    dual_stack: bool,
    members: BTreeMap<NumericIdentity, Member>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    by_peer: HashMap<Peer, SelectorId>,
    anchored: HashMap<Anchor, BTreeSet<SelectorId>>,
    unanchored: BTreeSet<SelectorId>,
}

impl Selectors {
    pub(crate) fn new(dual_stack: bool) -> Self {
        Self { dual_stack, ..Self::default() }
    }

    pub(crate) fn member(&self, identity: NumericIdentity) -> Option<&Member> {
        self.members.get(&identity)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_peer.len()
    }

    /// The selector for `peer`, for one more user.
    pub(crate) fn acquire(&mut self, peer: &Peer) -> SelectorId {
        if let Some(id) = self.by_peer.get(peer) {
            if let Some(slot) = &mut self.slots[id.0 as usize] {
                slot.users += 1;
            }
            return *id;
        }
        let dual_stack = self.dual_stack;
        let selects = |(id, member): (&NumericIdentity, &Member)| {
            matches(peer, *id, member, dual_stack).then_some(*id)
        };
        let selected = self.members.iter().filter_map(selects).collect();
        let slot = Some(Slot { peer: peer.clone(), users: 1, selected });
        let id = if let Some(index) = self.free.pop() {
            self.slots[index as usize] = slot;
            SelectorId(index)
        } else {
            self.slots.push(slot);
            SelectorId(
                u32::try_from(self.slots.len() - 1).expect("fewer selectors than bytes of memory"),
            )
        };
        self.by_peer.insert(peer.clone(), id);
        match anchor(peer) {
            Some(anchor) => self.anchored.entry(anchor).or_default().insert(id),
            None => self.unanchored.insert(id),
        };
        id
    }

    /// One user less; without any the selector goes.
    pub(crate) fn release(&mut self, id: SelectorId) {
        let Some(slot) = self.slots[id.0 as usize].as_mut() else { return };
        slot.users -= 1;
        if slot.users > 0 {
            return;
        }
        let Some(slot) = self.slots[id.0 as usize].take() else { return };
        self.free.push(id.0);
        self.by_peer.remove(&slot.peer);
        if let Some(anchor) = anchor(&slot.peer) {
            if let Some(ids) = self.anchored.get_mut(&anchor) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.anchored.remove(&anchor);
                }
            }
        } else {
            self.unanchored.remove(&id);
        }
    }

    /// The identities that a selector selects.
    pub(crate) fn selected(&self, id: SelectorId) -> impl Iterator<Item = NumericIdentity> {
        self.slots[id.0 as usize].iter().flat_map(|slot| slot.selected.iter().copied())
    }

    /// What selectors there are, each with its users and how many identities it selects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Peer, u32, &BTreeSet<NumericIdentity>)> {
        self.slots.iter().flatten().map(|slot| (&slot.peer, slot.users, &slot.selected))
    }

    /// Adds an identity that isn't there; the selectors that select it.
    pub(crate) fn insert(&mut self, identity: NumericIdentity, member: Member) -> Vec<SelectorId> {
        let mut selecting = Vec::new();
        for id in self.candidates(&member.labels) {
            let Some(slot) = &mut self.slots[id.0 as usize] else { continue };
            if matches(&slot.peer, identity, &member, self.dual_stack) {
                slot.selected.insert(identity);
                selecting.push(id);
            }
        }
        self.members.insert(identity, member);
        selecting
    }

    /// Removes an identity; the selectors that selected it.
    pub(crate) fn remove(&mut self, identity: NumericIdentity) -> Vec<SelectorId> {
        let Some(member) = self.members.remove(&identity) else { return Vec::new() };
        let mut selecting = self.candidates(&member.labels);
        selecting.retain(|id| {
            self.slots[id.0 as usize].as_mut().is_some_and(|slot| slot.selected.remove(&identity))
        });
        selecting
    }

    /// The selectors that might select an identity with these labels.
    fn candidates(&self, labels: &Labels) -> Vec<SelectorId> {
        let of_label = |(label, value): (&cilia_crds::LabelKey, &str)| {
            self.anchored.get(&(label.key.as_str().into(), value.into()))
        };
        let anchored = labels.iter().filter_map(of_label).flatten();
        let mut found: Vec<SelectorId> = anchored.chain(&self.unanchored).copied().collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// A label that all selected identities have.
fn anchor(peer: &Peer) -> Option<Anchor> {
    match peer {
        Peer::Endpoints(selector) => {
            selector.anchor().map(|(key, value)| (key.into(), value.into()))
        }
        // One entity requires one reserved label, without a value.
        Peer::Entity(selector) => match selector.requirements() {
            [one] if &*one.key.source == crate::selector::RESERVED => {
                Some((one.key.name.clone(), "".into()))
            }
            _ => selector.anchor().map(|(key, value)| (key.into(), value.into())),
        },
        Peer::Cidr { .. } => None,
    }
}

/// Whether `peer` selects the identity.
pub(crate) fn matches(
    peer: &Peer,
    identity: NumericIdentity,
    member: &Member,
    dual_stack: bool,
) -> bool {
    match peer {
        Peer::Endpoints(selector) | Peer::Entity(selector) => selector.matches(&member.labels),
        Peer::Cidr { prefix, except } => {
            if let Some(held) = &member.prefix {
                return prefix.contains(held) && !except.iter().any(|except| except.contains(held));
            }
            let whole = |prefix: &IpNet| prefix.prefix_len() == 0;
            whole(prefix) && !except.iter().any(whole) && identity == world(prefix, dual_stack)
        }
    }
}

/// The identity of an address outside that no prefix holds.
pub(crate) fn world(family: &IpNet, dual_stack: bool) -> NumericIdentity {
    match (dual_stack, family) {
        (false, _) => NumericIdentity::WORLD,
        (true, IpNet::V4(_)) => NumericIdentity::WORLD_IPV4,
        (true, IpNet::V6(_)) => NumericIdentity::WORLD_IPV6,
    }
}
