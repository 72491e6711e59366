//! Reads one item of a rule's section: peers, ports and the demands on both.

mod written;

use cilia_crds::policy::{AuthenticationMode, CidrRule, Entity, ServiceRef};

use crate::cnp::{Place, address_range, prefix};
use crate::error::{Error, Note};
use crate::icmp;
use crate::rule::{
    Action, Direction, Groups, Item, Peer, Peers, Ports, Section, ServiceName, Services,
};
use crate::selector::{ANY, CLUSTER, K8S, Key, RESERVED, Requirement, Selector};
use crate::toports;
use crate::translate;

pub(crate) use written::Written;

/// Reads an item into the section.
pub(crate) fn read(
    place: Place<'_>,
    direction: Direction,
    written: &Written<'_>,
    field: &str,
    section: &mut Section,
    notes: &mut Vec<Note>,
) -> Result<(), Error> {
    let default_deny = section.default_deny;
    let mut reader = Reader { place, direction, written, field, notes };
    let requires = reader.requires()?;
    if written.deny {
        section.deny_requires.extend(requires);
    } else {
        section.requires.extend(requires);
    }
    reader.exclusive()?;
    let peers = reader.peers()?;
    let written_ports = reader.ports()?;
    let authenticated =
        written.authentication.is_some_and(|auth| auth.mode != AuthenticationMode::Disabled);
    if authenticated {
        reader.note("authentication", "not enforced yet: nothing passes that this item means");
    }
    // An item that names neither peers nor ports selects nothing.
    let (peers, toports::Read { ports, inspected }) = match (peers, written_ports) {
        (None, None) => return Ok(()),
        (peers, ports) => (peers.unwrap_or(Peers::Any), ports.unwrap_or_default()),
    };
    let mut say = |action, ports| {
        let peers = peers.clone();
        section.items.push(Item { field: field.into(), action, peers, ports });
    };
    if written.deny {
        say(Action::Deny, ports);
        return Ok(());
    }
    if authenticated {
        say(Action::Authenticate, ports.and(inspected));
        return Ok(());
    }
    // Where nothing else is closed, requests that rules don't name pass a proxy, too.
    let closes = default_deny && !inspected.is_empty();
    if closes {
        say(Action::Inspect, Ports::Of(inspected));
    }
    if !closes || ports != Ports::Of(Vec::new()) {
        say(Action::Allow, ports);
    }
    Ok(())
}

struct Reader<'a, 'n> {
    place: Place<'a>,
    direction: Direction,
    written: &'a Written<'a>,
    field: &'a str,
    notes: &'n mut Vec<Note>,
}

impl Reader<'_, '_> {
    /// The full name of a member that begins with `from` or `to`.
    fn member(&self, name: &str) -> String {
        let side = if self.direction == Direction::Ingress { "from" } else { "to" };
        format!("{}.{side}{name}", self.field)
    }

    fn note(&mut self, member: &str, text: &str) {
        self.notes.push(Note { field: format!("{}.{member}", self.field), text: text.to_owned() });
    }

    /// Requirements on the peers of every rule of this direction.
    fn requires(&self) -> Result<Vec<Requirement>, Error> {
        let mut all = Vec::new();
        for (index, selector) in self.written.requires.into_iter().flatten().enumerate() {
            let mut requirements = translate::requirements(
                selector,
                &format!("{}[{index}]", self.member("Requires")),
            )?;
            self.place.scope.complete(&mut requirements);
            all.extend(requirements);
        }
        Ok(all)
    }

    /// Only one kind of peer may be given; empty lists don't count.
    fn exclusive(&self) -> Result<(), Error> {
        let w = self.written;
        let sizes = [
            ("Endpoints", w.endpoints.map_or(0, Vec::len)),
            ("CIDR", w.cidr.map_or(0, Vec::len)),
            ("CIDRSet", w.cidr_set.map_or(0, Vec::len)),
            ("Entities", w.entities.map_or(0, Vec::len)),
            ("Nodes", w.nodes.map_or(0, Vec::len)),
            ("Groups", w.groups.map_or(0, Vec::len)),
            ("Services", w.services.map_or(0, Vec::len)),
            ("FQDNs", w.fqdns.map_or(0, Vec::len)),
        ];
        let mut given =
            sizes.iter().filter(|(_, size)| *size > 0).map(|(name, _)| self.member(name));
        match (given.next(), given.next()) {
            (Some(one), Some(other)) => Err(Error::new(
                other,
                format!("it can't be combined with {one}: write two items instead"),
            )),
            _ => Ok(()),
        }
    }

    /// The peers; nothing if no kind of peer is mentioned, not even with an empty list.
    fn peers(&mut self) -> Result<Option<Peers>, Error> {
        let w = self.written;
        let mut peers = Vec::new();
        for (index, selector) in w.endpoints.into_iter().flatten().enumerate() {
            let requirements = translate::requirements(
                selector,
                &format!("{}[{index}]", self.member("Endpoints")),
            )?;
            peers.push(Peer::Endpoints(self.place.scope.peer(requirements)));
        }
        for (index, text) in w.cidr.into_iter().flatten().enumerate() {
            let prefix = address_range(text, &format!("{}[{index}]", self.member("CIDR")))?;
            peers.push(Peer::Cidr { prefix, except: Vec::new() });
        }
        for (index, rule) in w.cidr_set.into_iter().flatten().enumerate() {
            peers.push(self.cidr_set(rule, index)?);
        }
        for entity in w.entities.into_iter().flatten() {
            peers.extend(self.entity(*entity));
        }
        for (index, name) in w.fqdns.into_iter().flatten().enumerate() {
            toports::check_name(name, &format!("{}[{index}]", self.member("FQDNs")))?;
        }
        if w.nodes.is_some_and(|nodes| !nodes.is_empty()) && !self.place.scope.config.node_selectors
        {
            return Err(Error::new(
                self.member("Nodes"),
                "it needs enable-node-selector-labels, which is off",
            ));
        }
        for (index, selector) in w.nodes.into_iter().flatten().enumerate() {
            let field = format!("{}[{index}]", self.member("Nodes"));
            peers.push(self.nodes(translate::requirements(selector, &field)?));
        }
        for (index, service) in w.services.into_iter().flatten().enumerate() {
            peers.extend(self.service(service, index)?);
        }
        let counts =
            [("Groups", w.groups.map_or(0, Vec::len)), ("FQDNs", w.fqdns.map_or(0, Vec::len))];
        let mut open = false;
        for (name, _) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.not_yet(self.member(name));
            open = true;
        }
        // An empty list means nobody, whatever stands beside it.
        let empty = w.endpoints.is_some_and(Vec::is_empty)
            || w.cidr.is_some_and(Vec::is_empty)
            || w.cidr_set.is_some_and(Vec::is_empty)
            || w.entities.is_some_and(Vec::is_empty)
            || w.nodes.is_some_and(Vec::is_empty);
        if empty {
            return Ok(Some(Peers::Of(Vec::new())));
        }
        // A deny that can't be told whom it means denies everybody.
        let all = w.entities.is_some_and(|entities| entities.contains(&Entity::All));
        if all || (open && w.deny) {
            return Ok(Some(Peers::Any));
        }
        let mentioned = w.endpoints.is_some()
            || w.cidr.is_some()
            || w.cidr_set.is_some()
            || w.entities.is_some()
            || w.nodes.is_some()
            || w.groups.is_some()
            || w.services.is_some()
            || w.fqdns.is_some();
        Ok(mentioned.then_some(Peers::Of(peers)))
    }

    fn not_yet(&mut self, field: String) {
        let then =
            if self.written.deny { "everybody is denied" } else { "nobody is allowed by it" };
        self.notes.push(Note { field, text: format!("not enforced yet: {then}") });
    }

    /// Nodes with such labels, but never the own one.
    fn nodes(&self, mut requirements: Vec<Requirement>) -> Peer {
        let config = self.place.scope.config;
        let names = requirements.iter().any(|requirement| requirement.key.is_k8s(CLUSTER));
        if config.local_cluster && !names {
            requirements.push(Requirement::equals(Key::new(ANY, CLUSTER), &config.cluster));
        }
        requirements.push(Requirement::exists(Key::new(RESERVED, "remote-node")));
        Peer::Nodes(Selector::new(requirements))
    }

    /// The backends of a service, or of several; one without a name is nobody's.
    fn service(&mut self, service: &ServiceRef, index: usize) -> Result<Vec<Peer>, Error> {
        let field = format!("{}[{index}]", self.member("Services"));
        let namespace =
            |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Into::into);
        let mut peers = Vec::new();
        if let Some(named) = &service.k8s_service {
            match named.service_name.as_deref().filter(|name| !name.is_empty()) {
                Some(name) => peers.push(Peer::Services(Services {
                    namespace: namespace(&named.namespace),
                    which: ServiceName::Named(name.into()),
                })),
                None => self.notes.push(Note {
                    field: format!("{field}.k8sService.serviceName"),
                    text: "without a name no service is meant".to_owned(),
                }),
            }
        }
        if let Some(labelled) = &service.k8s_service_selector {
            let field = format!("{field}.k8sServiceSelector.selector");
            let requirements = translate::requirements(&labelled.selector, &field)?;
            peers.push(Peer::Services(Services {
                namespace: namespace(&labelled.namespace),
                which: ServiceName::Labelled(Selector::new(requirements)),
            }));
        }
        Ok(peers)
    }

    /// Reads a range, or the ranges of groups, with exceptions.
    fn cidr_set(&mut self, rule: &CidrRule, index: usize) -> Result<Peer, Error> {
        let field = format!("{}[{index}]", self.member("CIDRSet"));
        let cidr = rule.cidr.as_deref().filter(|text| !text.is_empty());
        let group = rule.cidr_group_ref.as_deref().filter(|text| !text.is_empty());
        let given = usize::from(cidr.is_some())
            + usize::from(group.is_some())
            + usize::from(rule.cidr_group_selector.is_some());
        if given != 1 {
            return Err(Error::new(
                field,
                "exactly one of cidr, cidrGroupRef and cidrGroupSelector is required",
            ));
        }
        let except = rule
            .except
            .iter()
            .enumerate()
            .map(|(at, text)| prefix(text, &format!("{field}.except[{at}]")));
        let except: Vec<_> = except.collect::<Result<_, _>>()?;
        if let Some(name) = group {
            return Ok(Peer::Groups { groups: Groups::Named(name.into()), except });
        }
        if let Some(selector) = &rule.cidr_group_selector {
            let requirements =
                translate::requirements(selector, &format!("{field}.cidrGroupSelector"))?;
            let groups = Groups::Labelled(Selector::new(requirements));
            return Ok(Peer::Groups { groups, except });
        }
        let prefix = prefix(cidr.unwrap_or_default(), &format!("{field}.cidr"))?;
        for (at, one) in except.iter().enumerate() {
            let field = format!("{field}.except[{at}]");
            if !prefix.contains(one) {
                return Err(Error::new(field, format!("{one} is not inside of {prefix}")));
            }
            if *one == prefix {
                self.notes.push(Note { field, text: format!("{one} leaves nothing of {prefix}") });
            }
        }
        Ok(Peer::Cidr { prefix, except })
    }

    /// The identities of an entity.
    fn entity(&self, entity: Entity) -> Vec<Peer> {
        let names: &[&str] = match entity {
            Entity::All => &[],
            Entity::World => &["world", "world-ipv4", "world-ipv6"],
            Entity::WorldIpv4 => &["world-ipv4"],
            Entity::WorldIpv6 => &["world-ipv6"],
            Entity::Cluster => {
                &["host", "remote-node", "init", "ingress", "health", "unmanaged", "kube-apiserver"]
            }
            Entity::Host => &["host"],
            Entity::Init => &["init"],
            Entity::Ingress => &["ingress"],
            Entity::Unmanaged => &["unmanaged"],
            Entity::RemoteNode => &["remote-node"],
            Entity::Health => &["health"],
            Entity::None => &["none"],
            Entity::KubeApiserver => &["kube-apiserver"],
        };
        let mut peers: Vec<Peer> =
            names.iter().map(|name| Peer::Entity(Selector::reserved(name))).collect();
        if entity == Entity::Cluster {
            let cluster = &self.place.scope.config.cluster;
            let own = Requirement::equals(Key::new(K8S, CLUSTER), cluster);
            peers.push(Peer::Entity(Selector::new([own])));
        }
        peers
    }

    /// The ports; nothing if no port is mentioned.
    fn ports(&mut self) -> Result<Option<toports::Read>, Error> {
        let w = self.written;
        let (ports, icmps) =
            (w.ports.filter(|ports| !ports.is_empty()), w.icmps.filter(|icmps| !icmps.is_empty()));
        match (ports, icmps) {
            (Some(_), Some(_)) => Err(Error::new(
                format_args!("{}.icmps", self.field),
                "it can't be combined with toPorts: write two items",
            )),
            (None, Some(icmps)) => {
                let messages = icmp::read(icmps, &format!("{}.icmps", self.field))?;
                Ok(Some(toports::Read { ports: Ports::Of(messages), inspected: Vec::new() }))
            }
            (Some(ports), None) => {
                let field = format!("{}.toPorts", self.field);
                toports::read(self.place, self.direction, ports, &field, self.notes).map(Some)
            }
            (None, None) => Ok(None),
        }
    }
}
