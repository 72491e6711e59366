//! Reads `ClusterNetworkPolicy` (policy.networking.k8s.io/v1beta1): tiers, priorities, rules whose
//! order counts.
//!
//! What can't be read, or isn't built, fails closed as the API asks: an Accept means nobody, a Deny or
//! a Pass denies everybody.

mod types;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cnp::{Parsed, address_range};
use crate::config::Config;
use crate::error::{Error, Note};
use crate::l4::{self, protocol};
use crate::rule::{Action, Item, Peer, Peers, Port, Ports, Rule, Section, Tier};
use crate::selector::{CLUSTER, K8S, Key, NAMESPACE, NAMESPACE_LABELS, Requirement, Selector};
use crate::translate;

pub use types::{
    ClusterNetworkPolicy, ClusterPeer, ClusterPolicySpec, ClusterProtocol, ClusterRule,
    ClusterSubject, NamespacedPods, PolicyPort, PolicyPorts, PortRange,
};

/// The most rules of a direction, peers of a rule and protocols of a rule (CRD).
const MOST: usize = 25;

/// The rule of a `ClusterNetworkPolicy`.
pub fn cluster(policy: &ClusterNetworkPolicy, config: &Config) -> Result<Parsed, Error> {
    let spec = &policy.spec;
    let priority = u16::try_from(spec.priority).ok().filter(|priority| *priority <= 1000);
    let Some(priority) = priority else {
        return Err(Error::new(
            "spec.priority",
            format!("{} is not between 0 and 1000", spec.priority),
        ));
    };
    let tier = match spec.tier.as_str() {
        "Admin" => Tier::Admin(priority),
        "Baseline" => Tier::Baseline(priority),
        other => {
            return Err(Error::new(
                "spec.tier",
                format!("{other:?} is not one of Admin, Baseline"),
            ));
        }
    };
    let mut reader = Reader { config, notes: Vec::new() };
    let subject = match (&spec.subject.namespaces, &spec.subject.pods) {
        (Some(namespaces), None) => {
            reader.pods(namespaces, None, "spec.subject.namespaces", false)?
        }
        (None, Some(pods)) => {
            let field = "spec.subject.pods";
            reader.pods(&pods.namespace_selector, Some(&pods.pod_selector), field, false)?
        }
        _ => {
            return Err(Error::new(
                "spec.subject",
                "exactly one of namespaces and pods is required",
            ));
        }
    };
    let ingress = reader.section(&spec.ingress, "spec.ingress", false)?;
    let egress = reader.section(&spec.egress, "spec.egress", true)?;
    let rule = Rule { subject, tier, ingress, egress, ..Rule::default() };
    Ok(Parsed { rules: vec![rule], notes: reader.notes })
}

struct Reader<'a> {
    config: &'a Config,
    notes: Vec<Note>,
}

/// What of a rule couldn't be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Closed {
    #[default]
    Nothing,
    /// A peer, whose kind is known: nobody is accepted by it.
    Peer,
    /// Something of a later version: nobody is accepted by the rule.
    Rule,
}

/// Some peers of a rule, and what of it couldn't be read.
#[derive(Default)]
struct Read {
    peers: Vec<Peer>,
    families: [bool; 2],
    closed: Closed,
}

impl Reader<'_> {
    fn section(
        &mut self,
        rules: &[ClusterRule],
        field: &str,
        egress: bool,
    ) -> Result<Option<Section>, Error> {
        if rules.len() > MOST {
            return Err(Error::new(
                field,
                format!("{} rules are given, at most {MOST} are possible", rules.len()),
            ));
        }
        let mut items = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            items.push(self.rule(rule, &format!("{field}[{index}]"), egress)?);
        }
        Ok((!items.is_empty()).then(|| Section { items, ..Section::default() }))
    }

    fn rule(&mut self, rule: &ClusterRule, field: &str, egress: bool) -> Result<Item, Error> {
        let mut action = match rule.action.as_str() {
            "Accept" => Action::Allow,
            "Deny" => Action::Deny,
            "Pass" => Action::Pass,
            other => {
                return Err(Error::new(
                    format_args!("{field}.action"),
                    format!("{other:?} is not one of Accept, Deny, Pass"),
                ));
            }
        };
        let (written, side) = if egress { (&rule.to, "to") } else { (&rule.from, "from") };
        if written.is_empty() || written.len() > MOST {
            return Err(Error::new(
                format_args!("{field}.{side}"),
                format!("{} peers are given, 1 to {MOST} are possible", written.len()),
            ));
        }
        let mut read = Read::default();
        for (index, peer) in written.iter().enumerate() {
            self.peer(peer, &format!("{field}.{side}[{index}]"), egress, action, &mut read)?;
        }
        let mut peers = Peers::Of(read.peers);
        if self.is_everybody(read.families) {
            peers = Peers::Any;
        }
        names_its_ports(written, rule.protocols.as_deref().unwrap_or_default(), field)?;
        let mut ports = self.ports(rule.protocols.as_deref(), field, action, &mut read.closed)?;
        match (read.closed, action) {
            (Closed::Nothing, _) | (Closed::Peer, Action::Allow) => {}
            (Closed::Rule, Action::Allow) => peers = Peers::Of(Vec::new()),
            _ => (action, peers, ports) = (Action::Deny, Peers::Any, Ports::Any),
        }
        Ok(Item { field: field.into(), action, peers, ports })
    }

    /// Whether prefixes of length 0 of these families are all addresses that there are.
    fn is_everybody(&self, [v4, v6]: [bool; 2]) -> bool {
        match (self.config.dual_stack, self.config.ipv6_only) {
            (true, _) => v4 && v6,
            (false, true) => v6,
            (false, false) => v4,
        }
    }

    fn peer(
        &mut self,
        peer: &ClusterPeer,
        field: &str,
        egress: bool,
        action: Action,
        read: &mut Read,
    ) -> Result<(), Error> {
        let given = [
            peer.namespaces.is_some(),
            peer.pods.is_some(),
            peer.nodes.is_some(),
            peer.networks.is_some(),
            peer.domain_names.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Error::new(field, "exactly one kind of peer is possible"));
        }
        if !egress && given[2..].iter().any(|given| *given) {
            return Err(Error::new(field, "only namespaces and pods are possible for ingress"));
        }
        if let Some(namespaces) = &peer.namespaces {
            let field = format!("{field}.namespaces");
            read.peers.push(Peer::Endpoints(self.pods(namespaces, None, &field, true)?));
        } else if let Some(pods) = &peer.pods {
            let field = format!("{field}.pods");
            let selector =
                self.pods(&pods.namespace_selector, Some(&pods.pod_selector), &field, true)?;
            read.peers.push(Peer::Endpoints(selector));
        } else if let Some(nodes) = &peer.nodes {
            let field = format!("{field}.nodes");
            let mut requirements = translate::kubernetes(nodes, "", &field)?;
            // The labels of nodes have a source of their own.
            for requirement in &mut requirements {
                requirement.key = Key::new(crate::nodes::NODE, &requirement.key.name);
            }
            if !requirements.is_empty() && !self.config.node_selectors {
                self.close(&field, "it needs enable-node-selector-labels, which is off", action);
                read.closed = read.closed.max(Closed::Peer);
                return Ok(());
            }
            read.peers.push(Peer::Nodes(Selector::new(requirements)));
        } else if let Some(networks) = &peer.networks {
            for (index, text) in networks.iter().enumerate() {
                let prefix = address_range(text, &format!("{field}.networks[{index}]"))?;
                if prefix.prefix_len() == 0 {
                    read.families[usize::from(matches!(prefix, IpNet::V6(_)))] = true;
                }
                read.peers.push(Peer::Block { prefix, except: Vec::new() });
            }
        } else if peer.domain_names.is_some() {
            self.close(&format!("{field}.domainNames"), "not enforced yet", action);
            read.closed = read.closed.max(Closed::Peer);
        } else {
            self.close(field, "none of the kinds of peer that are known is given", action);
            read.closed = Closed::Rule;
        }
        Ok(())
    }

    fn close(&mut self, field: &str, why: &str, action: Action) {
        let then = if action == Action::Allow {
            "nobody is accepted by it"
        } else {
            "the rule denies everybody"
        };
        self.notes.push(Note { field: field.to_owned(), text: format!("{why}: {then}") });
    }

    /// Pods of namespaces; those of the host's network are none (they have no namespace as identity).
    fn pods(
        &self,
        namespaces: &LabelSelector,
        pods: Option<&LabelSelector>,
        field: &str,
        peer: bool,
    ) -> Result<Selector, Error> {
        let (of_namespaces, of_pods) = match pods {
            None => (field.to_owned(), String::new()),
            Some(_) => (format!("{field}.namespaceSelector"), format!("{field}.podSelector")),
        };
        let mut all = translate::kubernetes(namespaces, NAMESPACE_LABELS, &of_namespaces)?;
        if let Some(pods) = pods {
            all.extend(translate::kubernetes(pods, "", &of_pods)?);
        }
        all.push(Requirement::exists(Key::new(K8S, NAMESPACE)));
        if peer && self.config.local_cluster {
            all.push(Requirement::equals(Key::new(K8S, CLUSTER), &self.config.cluster));
        }
        Ok(Selector::new(all))
    }

    /// The ports of a rule; without protocols every packet.
    fn ports(
        &mut self,
        protocols: Option<&[ClusterProtocol]>,
        field: &str,
        action: Action,
        closed: &mut Closed,
    ) -> Result<Ports, Error> {
        let Some(protocols) = protocols else { return Ok(Ports::Any) };
        if protocols.is_empty() || protocols.len() > MOST {
            return Err(Error::new(
                format_args!("{field}.protocols"),
                format!("{} are given, 1 to {MOST} are possible", protocols.len()),
            ));
        }
        let mut found = Vec::new();
        for (index, one) in protocols.iter().enumerate() {
            let field = format!("{field}.protocols[{index}]");
            let kinds = [
                (protocol::TCP, "tcp", &one.tcp),
                (protocol::UDP, "udp", &one.udp),
                (protocol::SCTP, "sctp", &one.sctp),
            ];
            let name = one.destination_named_port.as_deref().filter(|name| !name.is_empty());
            let given = kinds.iter().filter(|(.., ports)| ports.is_some()).count();
            let given = given + usize::from(name.is_some());
            if given == 0 {
                self.close(&field, "none of the protocols that are known is given", action);
                *closed = Closed::Rule;
                continue;
            }
            if given > 1 {
                return Err(Error::new(
                    field,
                    "tcp, udp, sctp and destinationNamedPort exclude each other",
                ));
            }
            if let Some(name) = name {
                for proto in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                    let field = format!("{field}.destinationNamedPort");
                    match l4::port_or_name(proto, name, None, &field)? {
                        port @ Port::Named { .. } => found.push(port),
                        Port::Range { .. } => {
                            return Err(Error::new(field, format!("{name:?} is not a name")));
                        }
                    }
                }
            }
            for (proto, kind, ports) in kinds {
                let Some(ports) = ports else { continue };
                let field = format!("{field}.{kind}");
                if let Some(port) = range(proto, ports, &format!("{field}.destinationPort"))? {
                    found.push(port);
                } else {
                    self.close(&field, "no port is given in a way that is known", action);
                    *closed = Closed::Rule;
                }
            }
        }
        Ok(Ports::Of(found))
    }
}

/// Only pods name ports: a rule about addresses can't ask for a name (CRD).
fn names_its_ports(
    peers: &[ClusterPeer],
    protocols: &[ClusterProtocol],
    field: &str,
) -> Result<(), Error> {
    let nameless = |peer: &ClusterPeer| {
        peer.networks.is_some() || peer.nodes.is_some() || peer.domain_names.is_some()
    };
    let named = |one: &ClusterProtocol| {
        one.destination_named_port.as_ref().is_some_and(|name| !name.is_empty())
    };
    match protocols.iter().position(named) {
        Some(index) if peers.iter().any(nameless) => Err(Error::new(
            format_args!("{field}.protocols[{index}].destinationNamedPort"),
            "it can't be combined with networks, nodes or domainNames, which name no ports",
        )),
        _ => Ok(()),
    }
}

/// The ports; nothing, if they are given in a way of a later version.
fn range(proto: u8, ports: &PolicyPorts, field: &str) -> Result<Option<Port>, Error> {
    let Some(port) = &ports.destination_port else { return Ok(None) };
    let number = |number: i32, name: &str| {
        u16::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| {
            Error::new(
                format_args!("{field}.{name}"),
                format!("{number} is not between 1 and 65535"),
            )
        })
    };
    match (port.number, &port.range) {
        (Some(one), None) => {
            let one = number(one, "number")?;
            Ok(Some(Port::Range { proto, first: one, last: one }))
        }
        (None, Some(range)) => {
            let (first, last) =
                (number(range.start, "range.start")?, number(range.end, "range.end")?);
            if first >= last {
                return Err(Error::new(
                    format_args!("{field}.range"),
                    format!("{first} is not less than {last}"),
                ));
            }
            Ok(Some(Port::Range { proto, first, last }))
        }
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Error::new(field, "number and range exclude each other")),
    }
}
