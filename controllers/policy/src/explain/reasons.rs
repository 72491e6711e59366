//! Decides which rules speak about a flow, and what misses the others.

use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{Advice, Near, Part, Party, Reason, shown};
use crate::map::Verdict;
use crate::names::Names;
use crate::repository::Repository;
use crate::rule::{
    Action, Direction, Item, Peer, Peers, PolicyId, Port, Ports, Requires, Rule, Tier,
};
use crate::selector::{CLUSTER, K8S, NAMESPACE, NAMESPACE_LABELS, RESERVED, Requirement};

/// The label by which a node is told from others.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// At most so many rules that would have allowed are told.
const MOST_NEAR: usize = 5;

/// What one side's policy says about a flow with the other.
pub(super) fn part(
    repository: &mut Repository,
    direction: Direction,
    own: &Party,
    other: &Party,
    l4: (u8, u16),
) -> Part {
    let open = Part {
        subject: false,
        enforced: false,
        verdict: Verdict::Allowed,
        by: Vec::new(),
        near: Vec::new(),
        advice: None,
    };
    let Some(identity) = own.identity.filter(|identity| !identity.is_local()) else { return open };
    if identity.reserved_name().is_some()
        && !matches!(
            identity,
            NumericIdentity::HOST | NumericIdentity::INIT | NumericIdentity::HEALTH
        )
    {
        return open;
    }
    let Some(policy) = repository.policy(identity, &own.ports) else { return open };
    let outside = other.address.map(|address| repository.outside(address));
    let peer = other.identity.or(outside).unwrap_or(NumericIdentity::WORLD);
    let block = other.address.and_then(|address| repository.block(address));
    let (verdict, _) = policy.decide(direction, peer.0, block.map(|block| block.0), l4.0, l4.1);
    let enforced = policy.direction(direction).enforced;
    let found = Part { subject: true, enforced, verdict, ..open };
    if !enforced {
        return found;
    }
    let labels = repository.labels(identity).map(|labels| (**labels).clone()).unwrap_or_default();
    let of_peer = repository.labels(peer).map(|labels| (**labels).clone()).unwrap_or_default();
    let rules = repository.rules_of(identity, &labels);
    let question = Question {
        repository,
        direction,
        own,
        other,
        peer,
        labels: &of_peer,
        l4,
        requires: Requires::of(rules.iter().map(|(_, rule)| *rule), direction),
    };
    let mut answer = question.answer(&rules, verdict);
    answer.near.sort_by_key(|near| near.misses.len());
    answer.near.truncate(MOST_NEAR);
    let advice =
        (verdict != Verdict::Allowed).then(|| question.advice(identity, &labels, &answer.by));
    Part { by: answer.by, near: answer.near, advice, ..found }
}

struct Question<'a> {
    repository: &'a Repository,
    direction: Direction,
    own: &'a Party,
    other: &'a Party,
    peer: NumericIdentity,
    labels: &'a Labels,
    l4: (u8, u16),
    requires: Requires,
}

#[derive(Default)]
struct Answer {
    by: Vec<Reason>,
    near: Vec<Near>,
}

impl Question<'_> {
    /// The rules that speak about the flow in the order in which they are asked, up to the deciding
    /// tier; and those that would have allowed it.
    fn answer(&self, rules: &[(&PolicyId, &Rule)], verdict: Verdict) -> Answer {
        let mut rules: Vec<_> =
            rules.iter().filter(|(_, rule)| rule.section(self.direction).is_some()).collect();
        rules.sort_by_key(|(_, rule)| rule.tier);
        let rank = |tier: Tier| match tier {
            Tier::Admin(_) => 0,
            Tier::Network => 1,
            Tier::Baseline(_) => 2,
        };
        let mut answer = Answer::default();
        let (mut passed, mut decided) = (None, None);
        for (id, rule) in rules {
            let tier = rank(rule.tier);
            let items = rule.section(self.direction).into_iter().flat_map(|section| &section.items);
            for item in items {
                let misses = self.misses(item);
                let reason = || reason(id, item);
                if misses.is_empty() {
                    let asked =
                        decided.is_none_or(|at| at == tier && tier == 1) && passed != Some(tier);
                    if !asked {
                        continue;
                    }
                    match item.action {
                        Action::Pass => {
                            passed = Some(tier);
                            answer.by.push(reason());
                        }
                        action => {
                            decided = Some(tier);
                            let fits = action.drops() == (verdict != Verdict::Allowed);
                            if tier != 1 || fits {
                                answer.by.push(reason());
                            } else if action == Action::Allow {
                                let misses = vec!["another rule comes first".to_owned()];
                                answer.near.push(Near { rule: reason(), misses });
                            }
                        }
                    }
                } else if item.action == Action::Allow && verdict != Verdict::Allowed {
                    answer.near.push(Near { rule: reason(), misses });
                }
            }
        }
        answer
    }

    /// What of an item doesn't fit; nothing, if it speaks about the flow.
    fn misses(&self, item: &Item) -> Vec<String> {
        let mut misses = Vec::new();
        if let Peers::Of(peers) = &item.peers
            && !peers.iter().any(|peer| self.meets(peer, item.action))
        {
            misses.push(match peers.as_slice() {
                [] => "it means nobody".to_owned(),
                [Peer::Endpoints(selector)] if !self.labels.is_empty() => {
                    let unmet =
                        selector.requirements().iter().filter(|one| !one.matches(self.labels));
                    let unmet: Vec<String> = unmet.map(ToString::to_string).collect();
                    format!("the peer has not {}", unmet.join(", "))
                }
                _ => "it means other peers".to_owned(),
            });
        }
        if let Ports::Of(ports) = &item.ports
            && !ports.iter().any(|port| self.reaches(port))
        {
            misses.push(match ports.as_slice() {
                [] => "it means no port".to_owned(),
                _ => format!("it means other ports than {}", shown(self.l4)),
            });
        }
        misses
    }

    fn meets(&self, peer: &Peer, action: Action) -> bool {
        self.repository.resolve(peer).iter().any(|peer| match peer {
            Peer::Endpoints(selector) => {
                selector.matches(self.labels)
                    && self.requires.of_action(action).iter().all(|one| one.matches(self.labels))
            }
            Peer::Block { prefix, except } if self.other.address.is_some() => {
                self.other.address.is_some_and(|address| {
                    let address = IpNet::from(address);
                    prefix.contains(&address) && !except.iter().any(|one| one.contains(&address))
                })
            }
            peer => self.repository.selects(peer, self.peer),
        })
    }

    fn reaches(&self, port: &Port) -> bool {
        match port {
            Port::Range { proto, first: 0, last: 0 } if !is_icmp(*proto) => *proto == self.l4.0,
            Port::Range { proto, first, last } => {
                *proto == self.l4.0 && (*first..=*last).contains(&self.l4.1)
            }
            Port::Named { proto, name } => {
                let names = match self.direction {
                    Direction::Ingress => Names::Own(&self.own.ports),
                    Direction::Egress => Names::Cluster(self.repository.names()),
                };
                let numbers = names.numbers(self.peer, &(name.clone(), *proto));
                *proto == self.l4.0 && numbers.contains(&self.l4.1)
            }
        }
    }

    fn advice(&self, identity: NumericIdentity, labels: &Labels, by: &[Reason]) -> Advice {
        if by.iter().any(|one| one.action.drops()) {
            let rules: Vec<String> =
                by.iter().map(|one| format!("{} {}", one.policy, one.field)).collect();
            let text = format!("narrow or remove {}: it beats every allow", rules.join(" and "));
            return Advice { text, spec: None };
        }
        let spec = self.spec(identity, labels);
        let kind = if identity == NumericIdentity::HOST || labels.get(K8S, NAMESPACE).is_none() {
            "CiliumClusterwideNetworkPolicy"
        } else {
            "CiliumNetworkPolicy"
        };
        let text = format!("add a {kind} with the spec {spec}");
        Advice { text, spec: Some(spec) }
    }

    /// The rule that would let the flow pass.
    fn spec(&self, identity: NumericIdentity, labels: &Labels) -> Value {
        let host = identity == NumericIdentity::HOST;
        let own = if host {
            node_selector(self.repository.own_node_labels())
        } else {
            own_selector(labels)
        };
        let (side, section) = match self.direction {
            Direction::Ingress => ("from", "ingress"),
            Direction::Egress => ("to", "egress"),
        };
        let (member, peers) = self.peers(labels);
        let mut item = json!({format!("{side}{member}"): peers});
        let (proto, port) = self.l4;
        if is_icmp(proto) {
            let family = if proto == crate::l4::protocol::ICMP { "IPv4" } else { "IPv6" };
            item["icmps"] = json!([{"fields": [{"family": family, "type": port}]}]);
        } else if let Some(name @ ("TCP" | "UDP" | "SCTP")) = crate::l4::protocol::name(proto) {
            item["toPorts"] = json!([{"ports": [{"port": port.to_string(), "protocol": name}]}]);
        }
        let subject = if host { "nodeSelector" } else { "endpointSelector" };
        json!({subject: own, section: [item]})
    }

    /// The peer as a member of a rule names it.
    fn peers(&self, own: &Labels) -> (&'static str, Value) {
        let reserved = self.labels.iter().find(|(label, _)| label.source == RESERVED);
        let outside = self.other.address.filter(|_| self.other.identity.is_none());
        match (outside, reserved) {
            (Some(address), _) => ("CIDR", json!([IpNet::from(address).to_string()])),
            (None, Some((label, _))) => {
                let name = if label.key.starts_with("world") { "world" } else { &label.key };
                ("Entities", json!([name]))
            }
            (None, None) => {
                let mut selector = own_selector(self.labels);
                let namespace = self.labels.get(K8S, NAMESPACE);
                if let Some(namespace) =
                    namespace.filter(|one| own.get(K8S, NAMESPACE) != Some(one))
                {
                    selector["matchLabels"][format!("{K8S}:{NAMESPACE}")] = json!(namespace);
                }
                ("Endpoints", json!([selector]))
            }
        }
    }
}

/// A selector of the labels that somebody gave to a pod.
fn own_selector(labels: &Labels) -> Value {
    let given = labels.iter().filter(|(label, _)| {
        label.source != RESERVED
            && label.key != NAMESPACE
            && label.key != CLUSTER
            && !label.key.starts_with(NAMESPACE_LABELS)
            && !label.key.starts_with("io.cilium.k8s.policy.")
    });
    let given: serde_json::Map<String, Value> =
        given.map(|(label, value)| (label.key.clone(), json!(value))).collect();
    json!({"matchLabels": given})
}

/// A selector of this node alone: a rule for others, too, would deny them whatever it does not allow.
fn node_selector(labels: &Labels) -> Value {
    match labels.get(K8S, HOSTNAME) {
        Some(name) => json!({"matchLabels": {HOSTNAME: name}}),
        None => own_selector(labels),
    }
}

fn is_icmp(proto: u8) -> bool {
    matches!(proto, crate::l4::protocol::ICMP | crate::l4::protocol::ICMPV6)
}

fn reason(id: &PolicyId, item: &Item) -> Reason {
    let list = |all: Vec<String>| match all.len() {
        0 => "nobody".to_owned(),
        1..4 => all.join(", "),
        count => format!("{}, and {} more", all[..3].join(", "), count - 3),
    };
    let peers = match &item.peers {
        Peers::Any => "everybody".to_owned(),
        Peers::Of(peers) => list(peers.iter().map(ToString::to_string).collect()),
    };
    let says = match &item.ports {
        Ports::Any => peers,
        Ports::Of(ports) if ports.is_empty() => format!("{peers} on no port"),
        Ports::Of(ports) => {
            format!("{peers} on {}", list(ports.iter().map(ToString::to_string).collect()))
        }
    };
    Reason { policy: id.to_string(), field: item.field.to_string(), action: item.action, says }
}

impl Requires {
    /// Those of the rules of a direction.
    fn of<'a>(rules: impl Iterator<Item = &'a Rule>, direction: Direction) -> Self {
        let mut all = Self::default();
        for section in rules.filter_map(|rule| rule.section(direction)) {
            all.allows.extend(section.requires.iter().cloned());
            all.denies.extend(section.deny_requires.iter().cloned());
        }
        all
    }

    fn of_action(&self, action: Action) -> &[Requirement] {
        if action == Action::Deny { &self.denies } else { &self.allows }
    }
}
