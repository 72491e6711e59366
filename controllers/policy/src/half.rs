//! Turns one direction of a subject's policy into columns, by peer identity.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cilia_crds::NumericIdentity;

use crate::blocks;
use crate::column::{Column, Entry};
use crate::columns::Columns;
use crate::l4::L4;
use crate::map::{DirectionPolicy, VIEW_SHIFT, WEAK, WILDCARD};
use crate::names::Names;
use crate::origin::Origins;
use crate::plan::{Plan, PortFilter};
use crate::rule::{Action, Peer};
use crate::selectors::{SelectorId, Selectors};
use crate::tiers::{self, Tiers};

/// A statement whose peer is ready to be looked up.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    pub(crate) tier: u8,
    pub(crate) action: Action,
    /// It is about addresses, whoever has them.
    pub(crate) by_address: bool,
    /// It is about addresses outside of what the cluster manages, whose identities tell them.
    pub(crate) outside: bool,
    /// Who; everybody without.
    pub(crate) peer: Option<SelectorId>,
    ports: Arc<[PortFilter]>,
    pub(crate) cookie: u32,
}

/// One direction of a subject's policy.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Half {
    enforced: bool,
    pub(crate) isolated: bool,
    tiered: bool,
    /// Some filters are about addresses, whoever has them.
    pub(crate) blocks: bool,
    pub(crate) filters: Vec<Filter>,
    /// The filters of a selector.
    users: BTreeMap<SelectorId, Vec<usize>>,
    /// Filters for everybody with names of ports, which pods may give as they like.
    pub(crate) named: Vec<usize>,
}

/// What each name of some filters stands for, in their order.
type Meanings = Vec<Vec<u16>>;

/// Columns with what their keys have beside the identity.
type Beside = Vec<(u32, Arc<Column>)>;

impl Half {
    /// Takes the selectors that a plan needs.
    pub(crate) fn new(plan: Plan, selectors: &mut Selectors) -> Self {
        let Plan { enforced, isolated, tiered, cidrs_match_nodes, statements, .. } = plan;
        let mut half = Self { enforced, isolated, tiered, ..Self::default() };
        for statement in statements {
            let by_address = matches!(statement.peer, Some(Peer::Block { .. }));
            let outside = matches!(statement.peer, Some(Peer::Cidr { .. })) && !cidrs_match_nodes;
            half.blocks |= by_address;
            let peer = statement.peer.map(|peer| selectors.acquire(&peer));
            if let Some(id) = peer {
                half.users.entry(id).or_default().push(half.filters.len());
            }
            let (tier, action, cookie) = (statement.tier, statement.action, statement.cookie);
            let by_name = |port: &PortFilter| matches!(port, PortFilter::Named(_));
            if peer.is_none() && statement.ports.iter().any(by_name) {
                half.named.push(half.filters.len());
            }
            half.filters.push(Filter {
                tier,
                action,
                by_address,
                outside,
                peer,
                ports: statement.ports,
                cookie,
            });
        }
        half
    }

    /// Gives up the selectors.
    pub(crate) fn release(&self, selectors: &mut Selectors) {
        self.filters
            .iter()
            .filter_map(|filter| filter.peer)
            .for_each(|peer| selectors.release(peer));
    }

    /// Whether a filter names ports by what others call them.
    pub(crate) fn is_named(&self, filter: usize) -> bool {
        self.filters[filter].ports.iter().any(|port| matches!(port, PortFilter::Named(_)))
    }

    /// The ports of all filters.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &PortFilter> {
        self.filters.iter().flat_map(|filter| filter.ports.iter())
    }

    /// The filters of selectors that select an identity, and those whose ports it names itself.
    pub(crate) fn of(
        &self,
        selecting: &[SelectorId],
        names: Names<'_>,
        identity: NumericIdentity,
    ) -> BTreeSet<usize> {
        let selecting = selecting.iter().filter_map(|id| self.users.get(id)).flatten().copied();
        let own = self.named(names).filter(|(_, one)| *one == identity);
        selecting.chain(own.map(|(filter, _)| filter)).collect()
    }

    /// Filters for everybody with the identities that name one of their ports themselves.
    fn named<'a>(
        &'a self,
        names: Names<'a>,
    ) -> impl Iterator<Item = (usize, NumericIdentity)> + 'a {
        self.named.iter().flat_map(move |filter| {
            let ports = self.filters[*filter].ports.iter();
            let who = ports.flat_map(move |port| match port {
                PortFilter::Block(_) => Vec::new(),
                PortFilter::Named(name) => names.who(name),
            });
            who.map(|identity| (*filter, identity))
        })
    }

    /// The keys that a filter is about when `identity` is the other side; any side without.
    pub(crate) fn keys(
        &self,
        filter: usize,
        names: Names<'_>,
        identity: Option<NumericIdentity>,
    ) -> Vec<(L4, usize)> {
        let ports = self.filters[filter].ports.iter();
        let keys = ports.flat_map(|port| match port {
            PortFilter::Block(l4) => vec![*l4],
            PortFilter::Named(name) => {
                let numbers = match identity {
                    Some(identity) => names.numbers(identity, name),
                    None => names.all(name),
                };
                numbers.into_iter().map(|number| L4::port(name.1, number)).collect()
            }
        });
        keys.map(|l4| (l4, filter)).collect()
    }

    /// What the filters say about ports when `identity` is the other side.
    fn said(
        &self,
        filters: impl Iterator<Item = usize>,
        names: Names<'_>,
        identity: NumericIdentity,
    ) -> Vec<Entry> {
        let keys = filters.flat_map(|filter| self.keys(filter, names, Some(identity)));
        let entry = |(l4, filter): (L4, usize)| {
            let Filter { action, cookie, .. } = self.filters[filter];
            Entry { l4, deny: action == Action::Deny, view: 0, cookie }
        };
        keys.map(entry).collect()
    }

    /// What the names in these filters stand for.
    fn numbers(&self, filters: &[usize], names: Names<'_>, identity: NumericIdentity) -> Meanings {
        let ports = filters.iter().flat_map(|index| self.filters[*index].ports.iter());
        let number = |port: &PortFilter| match port {
            PortFilter::Block(_) => None,
            PortFilter::Named(name) => Some(names.numbers(identity, name)),
        };
        ports.filter_map(number).collect()
    }

    /// The columns of all identities that are selected, and of everybody.
    pub(crate) fn policy(
        &self,
        names: Names<'_>,
        selectors: &Selectors,
        origins: &mut Origins,
    ) -> DirectionPolicy {
        let mut of_identity: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, filter) in self.filters.iter().enumerate() {
            for identity in filter.peer.into_iter().flat_map(|peer| selectors.selected(peer)) {
                of_identity.entry(identity.0).or_default().push(index);
            }
        }
        for (filter, identity) in self.named(names) {
            if selectors.member(identity).is_some() {
                let filters = of_identity.entry(identity.0).or_default();
                filters.push(filter);
                filters.sort_unstable();
                filters.dedup();
            }
        }
        let mut policy = DirectionPolicy {
            enforced: self.enforced,
            blocks: self.blocks,
            columns: Columns::default(),
        };
        let tiers = self.tiered.then(|| Tiers::new(self, names));
        let columns = &mut policy.columns;
        if let Some(tiers) = &tiers {
            columns.set(WILDCARD, Arc::new(tiers.everybody(false)));
            if self.blocks {
                columns.set(WILDCARD | WEAK, Arc::new(tiers.everybody(true)));
            }
        } else {
            let everyone = (0..self.filters.len()).filter(|at| self.filters[*at].peer.is_none());
            let said = self.said(everyone, names, NumericIdentity(WILDCARD));
            columns.set(WILDCARD, Arc::new(Column::new(None, said, origins)));
        }
        // Those of whom the same filters say the same share a column. (Those of a kind, if the
        // filters have an order.)
        let mut shared: HashMap<(Vec<usize>, Meanings, u32), Beside> = HashMap::new();
        for (identity, filters) in of_identity {
            let number = NumericIdentity(identity);
            let meanings = self.numbers(&filters, names, number);
            let kind = tiers.as_ref().map_or(0, |_| tiers::kind(number));
            let all =
                shared.entry((filters, meanings, kind)).or_insert_with_key(|(filters, ..)| {
                    let all = self.column(&policy, tiers.as_ref(), filters, names, number, origins);
                    all.into_iter().map(|(bits, column)| (bits, Arc::new(column))).collect()
                });
            for (bits, column) in all {
                policy.columns.set(identity | *bits, column.clone());
            }
        }
        policy
    }

    /// The columns of one identity that aren't right, which `filters` select now.
    pub(crate) fn update(
        &self,
        policy: &DirectionPolicy,
        filters: &BTreeSet<usize>,
        names: Names<'_>,
        identity: NumericIdentity,
        origins: &mut Origins,
    ) -> Vec<(u32, Arc<Column>)> {
        let mut all: BTreeMap<u32, Column> = if filters.is_empty() {
            BTreeMap::new()
        } else {
            let tiers = self.tiered.then(|| Tiers::new(self, names));
            let filters: Vec<usize> = filters.iter().copied().collect();
            self.column(policy, tiers.as_ref(), &filters, names, identity, origins)
                .into_iter()
                .collect()
        };
        let mut changed = Vec::new();
        for bits in beside(identity) {
            let (key, column) = (identity.0 | bits, all.remove(&bits).unwrap_or_default());
            let known = policy.columns.get(key).map(AsRef::as_ref);
            if known.map_or(&[][..], Column::entries) != column.entries() {
                changed.push((key, Arc::new(column)));
            }
        }
        changed
    }

    /// The columns of an identity, with what their keys have beside it ([`Tiers::columns`]).
    fn column(
        &self,
        policy: &DirectionPolicy,
        tiers: Option<&Tiers<'_>>,
        filters: &[usize],
        names: Names<'_>,
        identity: NumericIdentity,
        origins: &mut Origins,
    ) -> Vec<(u32, Column)> {
        let wildcard = |key| policy.columns.get(key).map(AsRef::as_ref);
        if let Some(tiers) = tiers {
            let wildcards = [wildcard(WILDCARD), wildcard(WILDCARD | WEAK)];
            return tiers.columns(filters, identity, wildcards);
        }
        let said = self.said(filters.iter().copied(), names, identity);
        vec![(0, Column::new(wildcard(WILDCARD), said, origins))]
    }

    /// Whether `columns` have something to do with an identity.
    pub(crate) fn knows(policy: &DirectionPolicy, identity: NumericIdentity) -> bool {
        beside(identity).any(|bits| policy.columns.get(identity.0 | bits).is_some())
    }
}

/// What keys of an identity may have beside it.
fn beside(identity: NumericIdentity) -> impl Iterator<Item = u32> {
    let block = tiers::kind(identity) == blocks::SCOPE;
    let views = (0..1 << (31 - VIEW_SHIFT)).map(|view| view << VIEW_SHIFT);
    let of_block = views.filter(move |bits| block || *bits == 0);
    of_block.chain((!block).then_some(WEAK))
}
