//! Turns the rules that concern one subject into the entries of its policy map.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use crate::columns::Columns;
use crate::config::{Config, Mode};
use crate::l4::{L4, blocks};
use crate::map::{Column, DirectionPolicy, EndpointPolicy, WILDCARD};
use crate::names::{ClusterPorts, NamedPorts, Names, PortName};
use crate::rule::{Direction, Item, Peer, Peers, Port, Ports, Rule, Section};
use crate::selector::{RESERVED, Requirement, Selector};
use crate::selectors::{SelectorId, Selectors};

/// A statement about a peer and ports, ready to be looked up.
#[derive(Debug, Clone)]
struct Filter {
    deny: bool,
    /// Who; everybody without.
    peer: Option<SelectorId>,
    ports: Vec<PortFilter>,
}

#[derive(Debug, Clone)]
enum PortFilter {
    Block(L4),
    Named(PortName),
}

#[derive(Debug, Default)]
struct Half {
    enforced: bool,
    filters: Vec<Filter>,
    /// The filters of a selector.
    users: BTreeMap<SelectorId, Vec<usize>>,
}

/// What each name of some filters stands for, in their order.
type Meanings = Vec<Vec<u16>>;

/// The policy of one subject identity, and the maps of its endpoints.
///
/// Endpoints of one identity differ only in how they name their ports.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    halves: [Half; 2],
    names: BTreeSet<PortName>,
    prefixes: Vec<IpNet>,
    maps: HashMap<NamedPorts, Arc<EndpointPolicy>>,
}

/// The prefixes that a rule names, the excepted ones too.
pub(crate) fn prefixes<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<IpNet> {
    let sections = rules.into_iter().flat_map(|rule| [&rule.ingress, &rule.egress]).flatten();
    let mut found = BTreeSet::new();
    for item in sections.flat_map(|section| &section.items) {
        let Peers::Of(peers) = &item.peers else { continue };
        for peer in peers {
            if let Peer::Cidr { prefix, except } = peer {
                found.insert(*prefix);
                found.extend(except);
            }
        }
    }
    found
}

impl Subject {
    /// The policy that `rules`, all of which select the subject, make for it.
    pub(crate) fn new(
        config: &Config,
        labels: &Labels,
        rules: &[&Rule],
        selectors: &mut Selectors,
    ) -> Self {
        let mut subject = Self {
            prefixes: prefixes(rules.iter().copied()).into_iter().collect(),
            ..Self::default()
        };
        for direction in Direction::BOTH {
            let sections: Vec<&Section> =
                rules.iter().filter_map(|rule| rule.section(direction)).collect();
            subject.halves[direction as usize] =
                half(config, labels, direction, &sections, selectors);
        }
        for port in
            subject.halves.iter().flat_map(|half| &half.filters).flat_map(|filter| &filter.ports)
        {
            if let PortFilter::Named(name) = port {
                subject.names.insert(name.clone());
            }
        }
        subject
    }

    /// The prefixes that the subject's rules name.
    pub(crate) fn prefixes(&self) -> &[IpNet] {
        &self.prefixes
    }

    /// Gives up the subject's selectors.
    pub(crate) fn release(&self, selectors: &mut Selectors) {
        let peers =
            self.halves.iter().flat_map(|half| &half.filters).filter_map(|filter| filter.peer);
        peers.for_each(|peer| selectors.release(peer));
    }

    /// The map of an endpoint with these port names.
    pub(crate) fn map(
        &mut self,
        own: &NamedPorts,
        known: &ClusterPorts,
        selectors: &Selectors,
    ) -> Arc<EndpointPolicy> {
        let used = |(name, number): (&PortName, &u16)| {
            self.names.contains(name).then(|| (name.clone(), *number))
        };
        let own: NamedPorts = own.iter().filter_map(used).collect();
        if let Some(map) = self.maps.get(&own) {
            return map.clone();
        }
        let mut policy = EndpointPolicy::default();
        for direction in Direction::BOTH {
            let names = names(direction, &own, known);
            *policy.direction_mut(direction) =
                self.halves[direction as usize].columns(names, selectors);
        }
        let policy = Arc::new(policy);
        self.maps.insert(own, policy.clone());
        policy
    }

    /// Forgets the maps, because port names of other pods have changed. True if that matters.
    pub(crate) fn forget_names(&mut self) -> bool {
        let egress = &self.halves[Direction::Egress as usize].filters;
        let named = egress
            .iter()
            .flat_map(|filter| &filter.ports)
            .any(|port| matches!(port, PortFilter::Named(..)));
        if named {
            self.maps.clear();
        }
        named
    }

    /// Makes the column of one identity right, which `selecting` select now.
    ///
    /// True if the subject's rules have to do with it.
    pub(crate) fn update(
        &mut self,
        identity: NumericIdentity,
        selecting: &[SelectorId],
        known: &ClusterPorts,
    ) -> bool {
        let mut touched = false;
        for direction in Direction::BOTH {
            let half = &self.halves[direction as usize];
            let filters: BTreeSet<usize> =
                selecting.iter().filter_map(|id| half.users.get(id)).flatten().copied().collect();
            for (own, map) in &mut self.maps {
                let columns = &map.direction(direction).columns;
                if filters.is_empty() && columns.get(identity.0).is_none() {
                    continue;
                }
                touched = true;
                let names = names(direction, own, known);
                let wildcard = columns.get(WILDCARD).cloned();
                let said = half.said(filters.iter().copied(), names, identity);
                let column = Column::new(wildcard.as_deref(), said);
                if columns.get(identity.0).map(AsRef::as_ref) != Some(&column) {
                    let columns = &mut Arc::make_mut(map).direction_mut(direction).columns;
                    columns.set(identity.0, Arc::new(column));
                }
            }
        }
        touched
    }
}

/// Whose port names count in a direction.
fn names<'a>(direction: Direction, own: &'a NamedPorts, known: &'a ClusterPorts) -> Names<'a> {
    match direction {
        Direction::Ingress => Names::Own(own),
        Direction::Egress => Names::Cluster(known),
    }
}

impl Half {
    /// What the filters say about ports when `identity` is the other side.
    fn said(
        &self,
        filters: impl Iterator<Item = usize>,
        names: Names<'_>,
        identity: NumericIdentity,
    ) -> Vec<(L4, bool)> {
        let mut said = Vec::new();
        for filter in filters.map(|index| &self.filters[index]) {
            for port in &filter.ports {
                match port {
                    PortFilter::Block(l4) => said.push((*l4, filter.deny)),
                    PortFilter::Named(name) => {
                        let numbers = names.numbers(identity, name).into_iter();
                        said.extend(numbers.map(|number| (L4::port(name.1, number), filter.deny)));
                    }
                }
            }
        }
        said
    }

    /// What the names in these filters stand for.
    fn numbers(&self, filters: &[usize], names: Names<'_>, identity: NumericIdentity) -> Meanings {
        let ports = filters.iter().flat_map(|index| &self.filters[*index].ports);
        let number = |port: &PortFilter| match port {
            PortFilter::Block(_) => None,
            PortFilter::Named(name) => Some(names.numbers(identity, name)),
        };
        ports.filter_map(number).collect()
    }

    fn columns(&self, names: Names<'_>, selectors: &Selectors) -> DirectionPolicy {
        let mut of_everyone = Vec::new();
        let mut of_identity: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, filter) in self.filters.iter().enumerate() {
            let Some(peer) = filter.peer else {
                of_everyone.push(index);
                continue;
            };
            for identity in selectors.selected(peer) {
                of_identity.entry(identity.0).or_default().push(index);
            }
        }
        let everyone = NumericIdentity(WILDCARD);
        let of_everyone = self.said(of_everyone.into_iter(), names, everyone);
        let wildcard = Arc::new(Column::new(None, of_everyone));
        // Those of whom the same filters say the same share a column.
        let mut shared: HashMap<(Vec<usize>, Meanings), Arc<Column>> = HashMap::new();
        let mut columns = Columns::default();
        for (identity, filters) in of_identity {
            let number = NumericIdentity(identity);
            let numbers = self.numbers(&filters, names, number);
            let column = shared.entry((filters, numbers)).or_insert_with_key(|(filters, _)| {
                let said = self.said(filters.iter().copied(), names, number);
                Arc::new(Column::new(Some(&wildcard), said))
            });
            columns.set(identity, column.clone());
        }
        columns.set(WILDCARD, wildcard);
        DirectionPolicy { enforced: self.enforced, columns }
    }
}

/// One direction of a subject's policy, with its default (policy.md 2).
fn half(
    config: &Config,
    labels: &Labels,
    direction: Direction,
    sections: &[&Section],
    selectors: &mut Selectors,
) -> Half {
    let strict = config.mode == Mode::Always || labels.get(RESERVED, "init").is_some();
    let mut half = Half { enforced: strict || !sections.is_empty(), ..Half::default() };
    if config.mode == Mode::Never || !half.enforced {
        half.enforced = false;
        half.filters.push(Filter {
            deny: false,
            peer: None,
            ports: vec![PortFilter::Block(L4::ALL)],
        });
        return half;
    }
    let gathered = |pick: fn(&Section) -> &Vec<Requirement>| -> Vec<Requirement> {
        sections.iter().flat_map(|section| pick(section)).cloned().collect()
    };
    let requires =
        [gathered(|section| &section.requires), gathered(|section| &section.deny_requires)];
    for item in sections.iter().flat_map(|section| &section.items) {
        half.add(item, &requires[usize::from(item.deny)], selectors);
    }
    let allow = |peers| Item { deny: false, peers, ports: Ports::Any };
    if !strict && !sections.iter().any(|section| section.default_deny) {
        half.add(&allow(Peers::Any), &[], selectors);
    }
    if direction == Direction::Ingress && config.allow_localhost {
        half.add(&allow(Peers::Of(vec![Peer::Entity(Selector::reserved("host"))])), &[], selectors);
    }
    half
}

impl Half {
    fn add(&mut self, item: &Item, requires: &[Requirement], selectors: &mut Selectors) {
        let ports: Vec<PortFilter> = match &item.ports {
            Ports::Any => vec![PortFilter::Block(L4::ALL)],
            Ports::Of(ports) => ports.iter().flat_map(port_filters).collect(),
        };
        let deny = item.deny;
        match &item.peers {
            Peers::Any => self.filters.push(Filter { deny, peer: None, ports }),
            Peers::Of(peers) => {
                for peer in peers {
                    let id = match peer {
                        Peer::Endpoints(selector) if !requires.is_empty() => {
                            selectors.acquire(&Peer::Endpoints(selector.and(requires)))
                        }
                        peer => selectors.acquire(peer),
                    };
                    self.users.entry(id).or_default().push(self.filters.len());
                    self.filters.push(Filter { deny, peer: Some(id), ports: ports.clone() });
                }
            }
        }
    }
}

fn port_filters(port: &Port) -> Vec<PortFilter> {
    match port {
        Port::Range { proto, first, last } => {
            blocks(*proto, *first, *last).into_iter().map(PortFilter::Block).collect()
        }
        Port::Named { proto, name } => vec![PortFilter::Named((name.clone(), *proto))],
    }
}
