//! Decides what the rules that concern one subject say, in the order in which they are asked.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use cilia_crds::Labels;
use ipnet::IpNet;

use crate::config::{Config, Mode};
use crate::directory::Directory;
use crate::l4::{L4, blocks, protocol};
use crate::names::PortName;
use crate::origin::{NOBODY, Origin, Origins};
use crate::rule::{
    Action, Direction, Item, Peer, Peers, PolicyId, Port, Ports, Rule, Section, Tier,
};
use crate::selector::{RESERVED, Requirement, Selector};

/// Whose policy is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose<'a> {
    pub(crate) labels: &'a Labels,
    /// It is this node.
    pub(crate) host: bool,
}

/// What is asked for policy's sake beside the rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) directory: &'a Directory,
}

/// Ports of a statement: a block, or a name that stands for some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortFilter {
    Block(L4),
    Named(PortName),
}

/// Something said about a peer and ports.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    /// 0, 1 and 2 for the three tiers.
    pub(crate) tier: u8,
    pub(crate) action: Action,
    /// Everybody without. References are resolved.
    pub(crate) peer: Option<Peer>,
    pub(crate) ports: Arc<[PortFilter]>,
    pub(crate) cookie: u32,
}

/// One direction of a subject's policy.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Plan {
    /// Whether a rule restricts it.
    pub(crate) enforced: bool,
    /// What nobody says anything about is dropped, not passed.
    pub(crate) isolated: bool,
    /// The order of the statements counts.
    pub(crate) tiered: bool,
    /// Address ranges mean nodes, too.
    pub(crate) cidrs_match_nodes: bool,
    pub(crate) statements: Vec<Statement>,
    /// Peers that refer to other objects.
    pub(crate) references: Vec<Peer>,
}

impl Plan {
    /// What `rules`, all of which select the subject, say about a direction.
    pub(crate) fn new(
        context: Context<'_>,
        whose: Whose<'_>,
        rules: &[(&PolicyId, &Rule)],
        direction: Direction,
        origins: &mut Origins,
    ) -> Self {
        let config = context.config;
        let strict = config.mode == Mode::Always || whose.labels.get(RESERVED, "init").is_some();
        let all: Vec<(&PolicyId, &Rule, &Section)> = rules
            .iter()
            .filter_map(|(id, rule)| Some((*id, *rule, rule.section(direction)?)))
            .collect();
        let network: Vec<_> =
            all.iter().filter(|(_, rule, _)| rule.tier == Tier::Network).collect();
        let mut ordered: Vec<_> = all
            .iter()
            .filter(|(_, rule, section)| rule.tier != Tier::Network && !section.items.is_empty())
            .collect();
        ordered.sort_by_key(|(_, rule, _)| rule.tier);
        let enforced = strict || !network.is_empty() || !ordered.is_empty();
        let off = config.mode == Mode::Never || (whose.host && !config.host_firewall);
        if off || !enforced {
            return Self { statements: vec![Statement::open()], ..Self::default() };
        }
        let isolated = strict || network.iter().any(|(_, _, section)| section.default_deny);
        let shared = Shared::of(network.iter().flat_map(|(_, _, section)| &section.items));
        let tiered = !ordered.is_empty() || shared.is_some();
        let cidrs_match_nodes = config.cidrs_match_nodes;
        let mut plan = Self { enforced, isolated, tiered, cidrs_match_nodes, ..Self::default() };
        let mut add =
            |plan: &mut Self, of: &(&PolicyId, &Rule, &Section), item: &Item, requires: &[_]| {
                let (policy, rule, _) = *of;
                let cookie = origins.single(origin(policy, rule, item));
                plan.add(context, rule.tier, item, requires, cookie);
            };
        for of in ordered.iter().filter(|(_, rule, _)| rule.tier < Tier::Network) {
            of.2.items.iter().for_each(|item| add(&mut plan, of, item, &[]));
        }
        let requires = |pick: fn(&Section) -> &Vec<Requirement>| -> Vec<Requirement> {
            network.iter().flat_map(|(_, _, section)| pick(section)).cloned().collect()
        };
        let denied = requires(|section| &section.deny_requires);
        let allowed = requires(|section| &section.requires);
        let with = |action: Action| {
            network.iter().flat_map(move |of| {
                let items = of.2.items.iter().filter(move |item| item.action == action);
                items.map(move |item| (*of, item))
            })
        };
        let open = |plan: &mut Self| {
            if direction == Direction::Ingress && config.allow_localhost && !whose.host {
                let host = Some(Peer::Entity(Selector::reserved("host")));
                plan.statements.push(Statement { peer: host, ..Statement::open() });
            }
        };
        // Denies first: with that the first answer is the right one here, too.
        with(Action::Deny).for_each(|(of, item)| add(&mut plan, of, item, &denied));
        if let Some(shared) = shared {
            // What would be inspected is closed to broader allows, but not to the node.
            open(&mut plan);
            with(Action::Authenticate).for_each(|(of, item)| add(&mut plan, of, item, &allowed));
            for (of, item) in with(Action::Allow) {
                shared.parts(item).iter().for_each(|part| add(&mut plan, of, part, &allowed));
            }
            with(Action::Inspect).for_each(|(of, item)| add(&mut plan, of, item, &allowed));
            with(Action::Allow).for_each(|(of, item)| add(&mut plan, of, item, &allowed));
        } else {
            with(Action::Allow).for_each(|(of, item)| add(&mut plan, of, item, &allowed));
            open(&mut plan);
        }
        if isolated {
            plan.sort();
            return plan;
        }
        for of in ordered.iter().filter(|(_, rule, _)| rule.tier > Tier::Network) {
            of.2.items.iter().for_each(|item| add(&mut plan, of, item, &[]));
        }
        if !plan.tiered {
            plan.statements.push(Statement::open());
        }
        plan.sort();
        plan
    }

    /// Puts what is about addresses after what is said beside it with the same action: with that
    /// fewer packets are to be asked about by address.
    fn sort(&mut self) {
        let same = |a: &Statement, b: &Statement| (a.tier, a.action) == (b.tier, b.action);
        for run in self.statements.chunk_by_mut(same) {
            run.sort_by_key(|statement| matches!(statement.peer, Some(Peer::Block { .. })));
        }
    }

    fn add(
        &mut self,
        context: Context<'_>,
        tier: Tier,
        item: &Item,
        requires: &[Requirement],
        cookie: u32,
    ) {
        let ports: Arc<[PortFilter]> = match &item.ports {
            Ports::Any => [PortFilter::Block(L4::ALL)].into(),
            Ports::Of(ports) => ports.iter().flat_map(port_filters).collect(),
        };
        let tier = match tier {
            Tier::Admin(_) => 0,
            Tier::Network => 1,
            Tier::Baseline(_) => 2,
        };
        let action = if item.action.drops() { Action::Deny } else { item.action };
        let mut say = |peer| {
            let ports = ports.clone();
            self.statements.push(Statement { tier, action, peer, ports, cookie });
        };
        let Peers::Of(peers) = &item.peers else { return say(None) };
        for peer in peers {
            for peer in context.directory.resolve(peer, context.config) {
                say(Some(match peer {
                    Peer::Endpoints(selector) if !requires.is_empty() => {
                        Peer::Endpoints(selector.and(requires))
                    }
                    peer => peer,
                }));
            }
        }
        let refers = |peer: &&Peer| matches!(peer, Peer::Groups { .. } | Peer::Services(_));
        self.references.extend(peers.iter().filter(refers).cloned());
    }

    /// The prefixes that are named, the excepted ones too.
    pub(crate) fn prefixes(&self) -> BTreeSet<IpNet> {
        let peers = self.statements.iter().filter_map(|statement| statement.peer.as_ref());
        peers.flat_map(named).copied().filter(|prefix| prefix.prefix_len() > 0).collect()
    }

    /// Those of them that mean addresses whoever has them.
    pub(crate) fn blocks(&self) -> BTreeSet<IpNet> {
        let peers = self.statements.iter().filter_map(|statement| statement.peer.as_ref());
        let blocks = peers.filter(|peer| matches!(peer, Peer::Block { .. }));
        blocks.flat_map(named).copied().collect()
    }
}

/// Peers and ports, one by one, on which a proxy would inspect requests.
struct Shared<'a>(HashSet<(Option<&'a Peer>, &'a Port)>);

impl<'a> Shared<'a> {
    /// Nothing if no item closes what others allow.
    fn of(items: impl Iterator<Item = &'a Item> + Clone) -> Option<Self> {
        let closing = |action| matches!(action, Action::Inspect | Action::Authenticate);
        if !items.clone().any(|item| closing(item.action)) {
            return None;
        }
        let inspected = items.filter(|item| item.action == Action::Inspect);
        Some(Self(inspected.flat_map(pairs).collect()))
    }

    /// What of an item means just the same as one that would inspect: all requests pass there.
    fn parts(&self, item: &Item) -> Vec<Item> {
        let same = pairs(item).filter(|pair| self.0.contains(pair));
        let part = |(peer, port): (Option<&Peer>, &Port)| Item {
            peers: peer.map_or(Peers::Any, |peer| Peers::Of(vec![peer.clone()])),
            ports: Ports::Of(vec![port.clone()]),
            ..item.clone()
        };
        same.map(part).collect()
    }
}

/// The peers of an item with each of its ports; everybody is none.
fn pairs(item: &Item) -> impl Iterator<Item = (Option<&Peer>, &Port)> {
    let peers: Vec<Option<&Peer>> = match &item.peers {
        Peers::Any => vec![None],
        Peers::Of(peers) => peers.iter().map(Some).collect(),
    };
    let ports = match &item.ports {
        Ports::Any => &[][..],
        Ports::Of(ports) => ports,
    };
    peers.into_iter().flat_map(move |peer| ports.iter().map(move |port| (peer, port)))
}

impl Statement {
    /// Everything passes, by nobody's rule.
    fn open() -> Self {
        Self {
            tier: 1,
            action: Action::Allow,
            peer: None,
            ports: [PortFilter::Block(L4::ALL)].into(),
            cookie: NOBODY,
        }
    }
}

fn origin(policy: &PolicyId, rule: &Rule, item: &Item) -> Origin {
    Origin { policy: policy.clone(), field: item.field.clone(), log: rule.log.clone() }
}

fn named(peer: &Peer) -> impl Iterator<Item = &IpNet> {
    let (prefix, except) = match peer {
        Peer::Cidr { prefix, except } | Peer::Block { prefix, except } => {
            (Some(prefix), &except[..])
        }
        _ => (None, &[][..]),
    };
    prefix.into_iter().chain(except)
}

fn port_filters(port: &Port) -> Vec<PortFilter> {
    match port {
        // A type of ICMP; 0 is one like others.
        Port::Range { proto: proto @ (protocol::ICMP | protocol::ICMPV6), first, last }
            if first == last =>
        {
            vec![PortFilter::Block(L4::port(*proto, *first))]
        }
        Port::Range { proto, first, last } => {
            blocks(*proto, *first, *last).into_iter().map(PortFilter::Block).collect()
        }
        Port::Named { proto, name } => vec![PortFilter::Named((name.clone(), *proto))],
    }
}
