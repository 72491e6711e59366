//! Who is selected by what: every peer selector in use with the identities it selects.
//!
//! A selector is stored once however many rules use it, and is found for a new identity through a
//! label that it insists on, or its prefix, so an identity costs the selectors it might match, not
//! all of them. The other way round, a new selector looks at the identities of its namespace, or
//! inside of its prefix. About 100 bytes for each selector, and 20 for each identity that it selects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::config::Config;
use crate::rule::Peer;
use crate::selector::{K8S, NAMESPACE, RESERVED};

/// A selector's place in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SelectorId(u32);

/// An identity, as selectors see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) labels: Arc<Labels>,
    pub(crate) place: Place,
}

/// What is known of the addresses of an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing that policy asks for.
    #[default]
    Anywhere,
    /// They are those of a prefix, outside of what the cluster manages.
    Prefix(IpNet),
    /// They are a node's, and address ranges mean them.
    Node(Box<[IpNet]>),
    /// They are those of a block, whoever has them (`crate::blocks`).
    Block(IpNet),
}

impl Member {
    /// An identity of labels alone.
    pub(crate) fn new(labels: Arc<Labels>) -> Self {
        Self { labels, place: Place::Anywhere }
    }
}

#[derive(Debug, Clone)]
struct Slot {
    peer: Peer,
    users: u32,
    selected: BTreeSet<NumericIdentity>,
}

type Anchor = (Box<str>, Box<str>);

/// Which families of addresses there are outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Families {
    #[default]
    V4,
    V6,
    Both,
}

impl Families {
    pub(crate) fn of(config: &Config) -> Self {
        match (config.dual_stack, config.ipv6_only) {
            (true, _) => Self::Both,
            (false, true) => Self::V6,
            (false, false) => Self::V4,
        }
    }

    fn has(self, prefix: &IpNet) -> bool {
        matches!(
            (self, prefix),
            (Self::Both, _) | (Self::V4, IpNet::V4(_)) | (Self::V6, IpNet::V6(_))
        )
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Selectors {
    families: Families,
    members: BTreeMap<NumericIdentity, Member>,
    of_namespace: HashMap<Box<str>, BTreeSet<NumericIdentity>>,
    of_prefix: BTreeSet<(IpNet, NumericIdentity)>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    by_peer: HashMap<Peer, SelectorId>,
    anchored: HashMap<Anchor, BTreeSet<SelectorId>>,
    by_prefix: HashMap<IpNet, BTreeSet<SelectorId>>,
    unanchored: BTreeSet<SelectorId>,
}

/// Where an index finds a selector.
enum Index {
    Label(Anchor),
    Prefix(IpNet),
    Nowhere,
}

impl Selectors {
    pub(crate) fn new(families: Families) -> Self {
        Self { families, ..Self::default() }
    }

    pub(crate) fn member(&self, identity: NumericIdentity) -> Option<&Member> {
        self.members.get(&identity)
    }

    /// The selector for `peer`, for one more user.
    pub(crate) fn acquire(&mut self, peer: &Peer) -> SelectorId {
        if let Some(id) = self.by_peer.get(peer) {
            if let Some(slot) = &mut self.slots[id.0 as usize] {
                slot.users += 1;
            }
            return *id;
        }
        let selected = self.select(peer);
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
        match index(peer) {
            Index::Label(anchor) => self.anchored.entry(anchor).or_default().insert(id),
            Index::Prefix(prefix) => self.by_prefix.entry(prefix).or_default().insert(id),
            Index::Nowhere => self.unanchored.insert(id),
        };
        id
    }

    /// The identities that `peer` selects, sought only where they can be.
    fn select(&self, peer: &Peer) -> BTreeSet<NumericIdentity> {
        let families = self.families;
        let selects = |(id, member): (&NumericIdentity, &Member)| {
            matches(peer, *id, member, families).then_some(*id)
        };
        if let Index::Prefix(prefix) = index(peer) {
            let last = IpNet::from(prefix.broadcast());
            let inside = self
                .of_prefix
                .range((prefix, NumericIdentity(0))..=(last, NumericIdentity(u32::MAX)));
            let worlds =
                [NumericIdentity::WORLD, NumericIdentity::WORLD_IPV4, NumericIdentity::WORLD_IPV6];
            let there = inside.map(|(_, id)| *id).chain(worlds);
            return there.filter_map(|id| selects(self.members.get_key_value(&id)?)).collect();
        }
        if let Some((NAMESPACE, namespace)) = anchor(peer) {
            let there = self.of_namespace.get(namespace).into_iter().flatten();
            return there.filter_map(|id| selects(self.members.get_key_value(id)?)).collect();
        }
        self.members.iter().filter_map(selects).collect()
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
        match index(&slot.peer) {
            Index::Label(anchor) => leave(&mut self.anchored, &anchor, &id),
            Index::Prefix(prefix) => leave(&mut self.by_prefix, &prefix, &id),
            Index::Nowhere => {
                self.unanchored.remove(&id);
            }
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
        for id in self.candidates(&member) {
            let Some(slot) = &mut self.slots[id.0 as usize] else { continue };
            if matches(&slot.peer, identity, &member, self.families) {
                slot.selected.insert(identity);
                selecting.push(id);
            }
        }
        if let Some(namespace) = member.labels.get(K8S, NAMESPACE) {
            self.of_namespace.entry(namespace.into()).or_default().insert(identity);
        }
        let prefixes = prefixes(&member.place);
        self.of_prefix.extend(prefixes.iter().map(|prefix| (*prefix, identity)));
        self.members.insert(identity, member);
        selecting
    }

    /// Removes an identity; the selectors that selected it.
    pub(crate) fn remove(&mut self, identity: NumericIdentity) -> Vec<SelectorId> {
        let Some(member) = self.members.remove(&identity) else { return Vec::new() };
        if let Some(namespace) = member.labels.get(K8S, NAMESPACE) {
            leave(&mut self.of_namespace, namespace, &identity);
        }
        for prefix in prefixes(&member.place) {
            self.of_prefix.remove(&(*prefix, identity));
        }
        let mut selecting = self.candidates(&member);
        selecting.retain(|id| {
            self.slots[id.0 as usize].as_mut().is_some_and(|slot| slot.selected.remove(&identity))
        });
        selecting
    }

    /// The selectors that might select an identity.
    fn candidates(&self, member: &Member) -> Vec<SelectorId> {
        let of_label = |(label, value): (&cilia_crds::LabelKey, &str)| {
            self.anchored.get(&(label.key.as_str().into(), value.into()))
        };
        let mut found: Vec<SelectorId> = member
            .labels
            .iter()
            .filter_map(of_label)
            .flatten()
            .chain(&self.unanchored)
            .copied()
            .collect();
        for prefix in prefixes(&member.place) {
            let broader = std::iter::successors(Some(*prefix), IpNet::supernet);
            found.extend(broader.filter_map(|prefix| self.by_prefix.get(&prefix)).flatten());
        }
        // The world is what every prefix of length 0 means.
        if member.place == Place::Anywhere
            && member.labels.iter().any(|(label, _)| label.source == RESERVED)
        {
            let whole = ["0.0.0.0/0", "::/0"].into_iter().filter_map(|text| text.parse().ok());
            found.extend(whole.filter_map(|prefix: IpNet| self.by_prefix.get(&prefix)).flatten());
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Removes from a set of an index, and the set if nothing is left.
fn leave<K, Q, V>(index: &mut HashMap<K, BTreeSet<V>>, key: &Q, value: &V)
where
    K: std::borrow::Borrow<Q> + std::hash::Hash + Eq,
    Q: std::hash::Hash + Eq + ?Sized,
    V: Ord,
{
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

fn prefixes(place: &Place) -> &[IpNet] {
    match place {
        Place::Anywhere => &[],
        Place::Prefix(prefix) | Place::Block(prefix) => std::slice::from_ref(prefix),
        Place::Node(addresses) => addresses,
    }
}

/// A label that all selected identities have.
fn anchor(peer: &Peer) -> Option<(&str, &str)> {
    match peer {
        // One entity requires one reserved label, without a value.
        Peer::Entity(selector) => match selector.requirements() {
            [one] if &*one.key.source == RESERVED => Some((&one.key.name, "")),
            _ => selector.anchor(),
        },
        Peer::Endpoints(selector) | Peer::Nodes(selector) => selector.anchor(),
        Peer::Cidr { .. } | Peer::Block { .. } | Peer::Groups { .. } | Peer::Services(_) => None,
    }
}

fn index(peer: &Peer) -> Index {
    match peer {
        Peer::Cidr { prefix, .. } | Peer::Block { prefix, .. } => Index::Prefix(*prefix),
        peer => anchor(peer)
            .map_or(Index::Nowhere, |(key, value)| Index::Label((key.into(), value.into()))),
    }
}

/// Whether `peer` selects the identity.
pub(crate) fn matches(
    peer: &Peer,
    identity: NumericIdentity,
    member: &Member,
    families: Families,
) -> bool {
    let labels = &member.labels;
    let block = matches!(member.place, Place::Block(_));
    match peer {
        Peer::Endpoints(selector) | Peer::Entity(selector) => !block && selector.matches(labels),
        Peer::Nodes(selector) => {
            let node =
                ["host", "remote-node"].iter().any(|name| labels.get(RESERVED, name).is_some());
            node && selector.matches(labels)
        }
        Peer::Cidr { .. } if block => false,
        Peer::Cidr { prefix, except } | Peer::Block { prefix, except } => {
            let inside = |held: &IpNet| {
                prefix.contains(held) && !except.iter().any(|except| except.contains(held))
            };
            let whole = |prefix: &IpNet| prefix.prefix_len() == 0;
            // Cilium takes all of a family that there is none of for the world; Kubernetes doesn't.
            let there = || matches!(peer, Peer::Cidr { .. }) || families.has(prefix);
            match &member.place {
                Place::Anywhere => {
                    whole(prefix)
                        && !except.iter().any(whole)
                        && identity == world(prefix, families == Families::Both)
                        && there()
                }
                place => prefixes(place).iter().any(inside),
            }
        }
        // They are resolved before they get here.
        Peer::Groups { .. } | Peer::Services(_) => false,
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
