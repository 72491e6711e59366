//! The verdict by definition (with the tiers of `ClusterNetworkPolicy`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;

use super::cases::Want;
use super::world::World;
use crate::config::Mode;
use crate::l4::protocol::{ICMP, ICMPV6};
use crate::map::Verdict;
use crate::names::{NamedPorts, PortName};
use crate::rule::{
    Action, Direction, Groups, Item, Peer, Peers, PolicyId, Port, Ports, Rule, Section,
    ServiceName, Tier,
};
use crate::selector::{K8S, NAMESPACE, RESERVED, Requirement};

/// The other side of a packet.
#[derive(Debug, Clone)]
pub enum Side {
    /// A pod or a node: its identity, labels and address.
    Pod(NumericIdentity, Arc<Labels>, IpAddr),
    /// An address outside of what the cluster manages.
    Outside(IpAddr),
}

/// A packet, as an endpoint sees it.
#[derive(Clone, Copy)]
struct Question<'a> {
    own: &'a NamedPorts,
    direction: Direction,
    side: &'a Side,
    l4: (u8, u16),
}

type Rules<'a> = Vec<(&'a PolicyId, &'a Rule, &'a Section)>;

impl World {
    /// What must become of a packet to or from an endpoint with these labels and port names.
    pub fn verdict(
        &self,
        subject: &Labels,
        own: &NamedPorts,
        direction: Direction,
        side: &Side,
        l4: (u8, u16),
    ) -> Want {
        let question = Question { own, direction, side, l4 };
        let rules = || {
            let all =
                self.policies.iter().flat_map(|(id, rules)| rules.iter().map(move |r| (id, r)));
            let there = all.filter(|(_, rule)| rule.subject.matches(subject));
            there.filter_map(|(id, rule)| Some((id, rule, rule.section(direction)?)))
        };
        let network: Rules<'_> =
            rules().filter(|(_, rule, _)| rule.tier == Tier::Network).collect();
        let mut ordered: Rules<'_> = rules()
            .filter(|(_, rule, section)| rule.tier != Tier::Network && !section.items.is_empty())
            .collect();
        ordered.sort_by_key(|(id, rule, _)| (rule.tier, *id));
        let strict = self.config.mode == Mode::Always;
        let restricted = strict || !network.is_empty() || !ordered.is_empty();
        if self.config.mode == Mode::Never || !restricted {
            return Want::Exactly(Verdict::Allowed);
        }
        let verdict = self.asked(question, &network, &ordered, strict);
        let closing = |item: &Item| matches!(item.action, Action::Inspect | Action::Authenticate);
        let closes = network.iter().any(|(_, _, section)| section.items.iter().any(closing));
        if ordered.is_empty() && !closes {
            return Want::Exactly(verdict);
        }
        let passes = verdict == Verdict::Allowed;
        let isolated = strict || network.iter().any(|(_, _, section)| section.default_deny);
        if self.between(question, &network, &ordered, isolated) {
            Want::AtMost(passes)
        } else {
            Want::Passes(passes)
        }
    }

    /// The tiers one after the other.
    fn asked(
        &self,
        question: Question<'_>,
        network: &Rules<'_>,
        ordered: &Rules<'_>,
        strict: bool,
    ) -> Verdict {
        let tier = |of: fn(Tier) -> bool| {
            let items = ordered.iter().filter(move |(_, rule, _)| of(rule.tier));
            let mut items = items.flat_map(|(_, _, section)| &section.items);
            items.find(|item| self.means(item, &[], question)).map(|item| item.action)
        };
        match tier(|tier| matches!(tier, Tier::Admin(_))) {
            Some(Action::Allow) => return Verdict::Allowed,
            Some(Action::Deny) => return Verdict::Denied,
            _ => {}
        }
        let requires = |action: Action| -> Vec<&Requirement> {
            let all = network.iter().flat_map(|(_, _, section)| match action {
                Action::Deny => &section.deny_requires,
                _ => &section.requires,
            });
            all.collect()
        };
        let items = |action: Action| {
            let all = network.iter().flat_map(|(_, _, section)| &section.items);
            all.filter(move |item| item.action == action)
        };
        let hit = |action: Action| {
            let requires = requires(action);
            items(action).any(|item| self.means(item, &requires, question))
        };
        if hit(Action::Deny) {
            return Verdict::Denied;
        }
        let host = matches!(question.side, Side::Pod(NumericIdentity::HOST, ..));
        let local = self.config.allow_localhost && question.direction == Direction::Ingress && host;
        if local {
            return Verdict::Allowed;
        }
        if hit(Action::Authenticate) {
            return Verdict::Denied;
        }
        // What is inspected is closed, unless a rule allows just the same peer and port without.
        let inspected: Vec<Item> = items(Action::Inspect).flat_map(one_by_one).collect();
        let same = |one: &Item| {
            inspected.iter().any(|other| other.peers == one.peers && other.ports == one.ports)
        };
        let allowed = requires(Action::Allow);
        let mut excused = items(Action::Allow).flat_map(one_by_one).filter(same);
        if excused.any(|one| self.means(&one, &allowed, question)) {
            return Verdict::Allowed;
        }
        if hit(Action::Inspect) {
            return Verdict::Denied;
        }
        if hit(Action::Allow) {
            return Verdict::Allowed;
        }
        if strict || network.iter().any(|(_, _, section)| section.default_deny) {
            return Verdict::NotAllowed;
        }
        match tier(|tier| matches!(tier, Tier::Baseline(_))) {
            Some(Action::Deny) => Verdict::Denied,
            _ => Verdict::Allowed,
        }
    }

    /// Whether what the maps say may be too strict: a rule about pods stands between two about
    /// addresses that speak about the packet, or one about addresses passes it on, and rules
    /// about pods are too many for the kernel to tell apart whom they select.
    fn between(
        &self,
        question: Question<'_>,
        network: &Rules<'_>,
        ordered: &Rules<'_>,
        isolated: bool,
    ) -> bool {
        if matches!(question.side, Side::Outside(_)) {
            return false;
        }
        let by_address = |item: &Item| match &item.peers {
            Peers::Of(peers) => peers.iter().any(is_by_address),
            Peers::Any => false,
        };
        let specific = |item: &Item| match &item.peers {
            Peers::Of(peers) => !peers.iter().all(is_by_address),
            Peers::Any => is_named(item),
        };
        let of = |before: bool| {
            let rules =
                ordered.iter().filter(move |(_, rule, _)| (rule.tier < Tier::Network) == before);
            rules.flat_map(|(_, _, section)| &section.items)
        };
        let all = || network.iter().flat_map(|(_, _, section)| &section.items);
        // Within the middle tier the order is: what drops, allows, allows by address.
        let middle = all()
            .filter(|item| item.action.drops())
            .chain(all().filter(|item| item.action == Action::Allow && !by_address(item)));
        let middle =
            middle.chain(all().filter(|item| item.action == Action::Allow && by_address(item)));
        let last = of(false).filter(|_| !isolated);
        let items: Vec<&Item> = of(true).chain(middle).chain(last).collect();
        let (mut first, mut other, mut passed) = (false, false, false);
        for item in items.iter().filter(|item| may_reach(&item.ports, question.l4)) {
            let own = by_address(item) && self.means(item, &[], question);
            if own && (item.action == Action::Pass || other || passed) {
                return !are_told_apart(&items);
            }
            passed |= specific(item) && item.action == Action::Pass;
            first |= by_address(item);
            other |= first && specific(item);
        }
        false
    }

    fn means(&self, item: &Item, requires: &[&Requirement], question: Question<'_>) -> bool {
        let Question { own, direction, side, l4 } = question;
        // An address doesn't tell whose it is, and with that not who names its ports.
        let met = [false, true].map(|by_address| {
            let named = |name: &PortName| match (direction, side) {
                (Direction::Ingress, _) => own.get(name) == Some(&l4.1),
                (_, Side::Pod(identity, ..)) if !by_address => {
                    self.names_so(Some(*identity), name, l4.1)
                }
                _ => self.names_so(None, name, l4.1),
            };
            ports_meet(&item.ports, named, l4)
        });
        met.contains(&true) && self.meets(&item.peers, met, requires, side)
    }

    /// Whether a name stands for a port: to pods that have it as they say, else if all agree.
    fn names_so(&self, identity: Option<NumericIdentity>, name: &PortName, port: u16) -> bool {
        let so: Vec<_> = self.names.iter().filter(|(_, one, _)| one == name).collect();
        let own = || so.iter().filter(|(pod, ..)| Some(*pod) == identity);
        if own().next().is_some() {
            return own().any(|(.., number)| *number == port);
        }
        !so.is_empty() && so.iter().all(|(.., number)| *number == port)
    }

    /// Whether one of the peers is the other side; `met` says whether the ports fit, for pods and for
    /// addresses.
    fn meets(&self, peers: &Peers, met: [bool; 2], requires: &[&Requirement], side: &Side) -> bool {
        let Peers::Of(peers) = peers else { return met[0] };
        let mut peers = peers.iter().filter(|peer| met[usize::from(is_by_address(peer))]);
        let world = Labels::reserved(if self.config.dual_stack { "world-ipv4" } else { "world" });
        let (labels, address, pod) = match side {
            Side::Pod(_, labels, address) => (&**labels, address, true),
            Side::Outside(address) => (&world, address, false),
        };
        let narrowed = || requires.iter().all(|requirement| requirement.matches(labels));
        let within = |prefix: &IpNet, except: &[IpNet]| {
            prefix.contains(address) && !except.iter().any(|except| except.contains(address))
        };
        peers.any(|peer| match peer {
            Peer::Endpoints(selector) => selector.matches(labels) && narrowed(),
            Peer::Entity(selector) => selector.matches(labels),
            Peer::Nodes(selector) => {
                let node =
                    ["host", "remote-node"].iter().any(|name| labels.get(RESERVED, name).is_some());
                node && selector.matches(labels)
            }
            Peer::Cidr { prefix, except } => !pod && within(prefix, except),
            Peer::Block { prefix, except } => within(prefix, except),
            Peer::Groups { groups, except } => {
                let meant = self.groups.iter().filter(|(name, group)| match groups {
                    Groups::Named(wanted) => wanted == *name,
                    Groups::Labelled(selector) => selector.matches(&group.labels),
                });
                !pod && meant.flat_map(|(_, group)| &group.prefixes).any(|one| within(one, except))
            }
            Peer::Services(services) => self.services.iter().any(|((namespace, name), service)| {
                let there = services.namespace.as_ref().is_none_or(|wanted| wanted == namespace);
                let mut of_service = Labels::new();
                service.labels.iter().for_each(|(key, value)| of_service.insert(K8S, key, value));
                let meant = match &services.which {
                    ServiceName::Named(wanted) => wanted == name,
                    ServiceName::Labelled(selector) => selector.matches(&of_service),
                };
                let behind = if service.selector.is_empty() {
                    !pod && service.addresses.contains(address)
                } else {
                    let has =
                        |(key, value): (&String, &String)| labels.get(K8S, key) == Some(value);
                    labels.get(K8S, NAMESPACE) == Some(&**namespace)
                        && service.selector.iter().all(has)
                        && narrowed()
                };
                there && meant && behind
            }),
        })
    }
}

/// Whether an item names ports by what pods call them.
fn is_named(item: &Item) -> bool {
    let Ports::Of(ports) = &item.ports else { return false };
    ports.iter().any(|port| matches!(port, Port::Named { .. }))
}

/// Whether the rules about pods between rules about addresses are so few that the kernel knows of
/// everybody which of them select him.
fn are_told_apart(items: &[&Item]) -> bool {
    let of = |at: usize| match &items[at].peers {
        Peers::Of(peers) => &peers[..],
        Peers::Any => &[],
    };
    let has_address = |at: usize| of(at).iter().any(is_by_address);
    let mut peers = BTreeSet::new();
    for (at, item) in items.iter().enumerate() {
        let before = (0..at).any(has_address);
        let after = (at..items.len()).any(has_address);
        let passed = (0..at).any(|one| has_address(one) && items[one].action == Action::Pass);
        if !passed && !(after && (before || item.action == Action::Pass)) {
            continue;
        }
        if is_named(item) && (item.peers == Peers::Any || !of(at).iter().all(is_by_address)) {
            return false;
        }
        for peer in of(at) {
            match peer {
                Peer::Cidr { .. } | Peer::Block { .. } | Peer::Groups { .. } => {}
                // They are several.
                Peer::Services(_) => return false,
                peer => {
                    peers.insert((peer, item.action.drops()));
                }
            }
        }
    }
    // The node may be one that is always let in.
    peers.len() < 5
}

/// Whether a peer means addresses, whoever has them.
fn is_by_address(peer: &Peer) -> bool {
    matches!(peer, Peer::Block { .. })
}

/// An item's peers with each of its ports.
fn one_by_one(item: &Item) -> Vec<Item> {
    let peers: Vec<Peers> = match &item.peers {
        Peers::Any => vec![Peers::Any],
        Peers::Of(peers) => peers.iter().map(|peer| Peers::Of(vec![peer.clone()])).collect(),
    };
    let Ports::Of(ports) = &item.ports else { return Vec::new() };
    let with = |peers: &Peers| {
        let peers = peers.clone();
        ports.iter().map(move |port| Item {
            peers: peers.clone(),
            ports: Ports::Of(vec![port.clone()]),
            ..item.clone()
        })
    };
    peers.iter().flat_map(with).collect()
}

fn ports_meet(ports: &Ports, named: impl Fn(&PortName) -> bool, (proto, port): (u8, u16)) -> bool {
    let Ports::Of(ports) = ports else { return true };
    ports.iter().any(|one| match one {
        Port::Range { proto: p, first: 0, last: 0 } if !matches!(*p, ICMP | ICMPV6) => *p == proto,
        Port::Range { proto: p, first, last } => *p == proto && (*first..=*last).contains(&port),
        Port::Named { proto: p, name } => *p == proto && named(&(name.clone(), *p)),
    })
}

/// Whether ports may mean a packet, whatever names stand for.
fn may_reach(ports: &Ports, l4: (u8, u16)) -> bool {
    ports_meet(ports, |_| true, l4)
}
