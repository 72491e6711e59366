//! What every kind of policy becomes: a rule with a subject and, per direction, allows and denies.
//!
//! Absent and empty lists are told apart here, once, so that nothing
//! behind it needs to know the kinds.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::selector::{Requirement, Selector};

/// The object that a rule was written in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId {
    /// The kind.
    pub kind: Kind,
    /// The namespace; empty for what is cluster-wide.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

/// The kinds of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `CiliumNetworkPolicy`.
    Cilium,
    /// `CiliumClusterwideNetworkPolicy`.
    CiliumClusterwide,
    /// `NetworkPolicy` of Kubernetes.
    Kubernetes,
    /// `ClusterNetworkPolicy` of Kubernetes' network policy API.
    Cluster,
}

impl Kind {
    /// The kind's name, as Kubernetes and Cilium's `derived-from` label write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cilium => "CiliumNetworkPolicy",
            Self::CiliumClusterwide => "CiliumClusterwideNetworkPolicy",
            Self::Kubernetes => "NetworkPolicy",
            Self::Cluster => "ClusterNetworkPolicy",
        }
    }
}

impl Action {
    /// What it does to packets, in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allows",
            Self::Deny => "denies",
            Self::Pass => "passes on",
            Self::Inspect => "would inspect requests (not enforced yet: closed) of",
            Self::Authenticate => "would authenticate (not enforced yet: closed)",
        }
    }

    /// Whether the packets that it means don't pass.
    pub fn drops(self) -> bool {
        matches!(self, Self::Deny | Self::Inspect | Self::Authenticate)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let but = |f: &mut fmt::Formatter<'_>, except: &[IpNet]| {
            if except.is_empty() {
                return Ok(());
            }
            let all: Vec<String> = except.iter().map(ToString::to_string).collect();
            write!(f, " except {}", all.join(", "))
        };
        match self {
            Self::Endpoints(selector) | Self::Entity(selector) => write!(f, "{selector}"),
            Self::Nodes(selector) => write!(f, "nodes with {selector}"),
            Self::Cidr { prefix, except } | Self::Block { prefix, except } => {
                write!(f, "{prefix}")?;
                but(f, except)
            }
            Self::Groups { groups, except } => {
                match groups {
                    Groups::Named(name) => write!(f, "CiliumCIDRGroup {name}")?,
                    Groups::Labelled(selector) => write!(f, "CiliumCIDRGroups with {selector}")?,
                }
                but(f, except)
            }
            Self::Services(services) => {
                let namespace = services.namespace.as_deref().unwrap_or("*");
                match &services.which {
                    ServiceName::Named(name) => write!(f, "Service {namespace}/{name}"),
                    ServiceName::Labelled(selector) => {
                        write!(f, "Services of {namespace} with {selector}")
                    }
                }
            }
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |proto: u8| {
            crate::l4::protocol::name(proto).map_or_else(|| proto.to_string(), str::to_owned)
        };
        match self {
            Self::Range { proto, first: 0, last: 0 } => write!(f, "{}", name(*proto)),
            Self::Range { proto, first, last } if first == last => {
                write!(f, "{first}/{}", name(*proto))
            }
            Self::Range { proto, first, last } => write!(f, "{first}-{last}/{}", name(*proto)),
            Self::Named { proto, name: port } => write!(f, "{port}/{}", name(*proto)),
        }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return write!(f, "{} {}", self.kind.name(), self.name);
        }
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// When a rule is asked: the first tier that decides is the last one that is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Before all others, the lowest priority value first.
    Admin(u16),
    /// Policies of Cilium and `NetworkPolicy`: without an order, a deny beats every allow.
    #[default]
    Network,
    /// For what no rule of [`Tier::Network`] isolates, the lowest priority value first.
    Baseline(u16),
}

/// One rule of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Whom it concerns.
    pub subject: Selector,
    /// The subject is meant for labels of nodes, not of endpoints (host policies).
    pub of_nodes: bool,
    /// When it is asked.
    pub tier: Tier,
    /// What verdict events of the rule carry (`log.value`).
    pub log: Option<Arc<str>>,
    /// What may come to the subject; `None` leaves the direction alone.
    pub ingress: Option<Section>,
    /// What may leave the subject.
    pub egress: Option<Section>,
}

impl Rule {
    /// The rule's part for one direction.
    pub fn section(&self, direction: Direction) -> Option<&Section> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }

    /// Every selector of endpoints, entities and nodes, to change it.
    pub(crate) fn selectors_mut(&mut self) -> impl Iterator<Item = &mut Selector> {
        let sections = [&mut self.ingress, &mut self.egress].into_iter().flatten();
        let items = sections.flat_map(|section| &mut section.items);
        let peers = items.flat_map(|item| match &mut item.peers {
            Peers::Any => &mut [][..],
            Peers::Of(peers) => peers,
        });
        let of_peers = peers.filter_map(|peer| match peer {
            Peer::Endpoints(selector) | Peer::Entity(selector) | Peer::Nodes(selector) => {
                Some(selector)
            }
            _ => None,
        });
        of_peers.chain([&mut self.subject])
    }

    /// Every peer that is named, in both directions.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        let sections = [&self.ingress, &self.egress].into_iter().flatten();
        sections.flat_map(|section| &section.items).flat_map(|item| match &item.peers {
            Peers::Any => &[][..],
            Peers::Of(peers) => peers,
        })
    }
}

/// A direction, as the subject sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the subject.
    Ingress,
    /// From the subject.
    Egress,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];
}

/// What a rule says about one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Whether what no rule allows is dropped because of this rule.
    pub default_deny: bool,
    /// Allows and denies.
    pub items: Vec<Item>,
    /// Added to every endpoint selector of an allow of the subject's direction (`fromRequires`).
    pub requires: Vec<Requirement>,
    /// The same for denies.
    pub deny_requires: Vec<Requirement>,
}

/// What all rules of a direction require of the peers (`fromRequires`), for allows and for denies.
#[derive(Debug, Default)]
pub(crate) struct Requires {
    pub(crate) allows: Vec<Requirement>,
    pub(crate) denies: Vec<Requirement>,
}

/// What an item does with the packets that it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Action {
    /// They pass.
    Allow,
    /// They are dropped.
    Deny,
    /// The next tier decides.
    Pass,
    /// They would pass a proxy that looks at requests. There is none: they are dropped, whatever a broader
    /// rule allows; only a rule that allows just the same without a look lets them pass.
    Inspect,
    /// They would pass if the peer proved who it is. It can't: they are dropped, whatever is allowed.
    Authenticate,
}

/// Peers and ports that are allowed, or denied, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Where it is written: a path such as `spec.ingress[0]`.
    pub field: Arc<str>,
    /// What it does.
    pub action: Action,
    /// The other side.
    pub peers: Peers,
    /// The ports of the receiving side.
    pub ports: Ports,
}

/// The other side of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Everybody, the world included.
    Any,
    /// Whoever one of these selects; nobody, if there are none.
    Of(Vec<Peer>),
}

/// A way to say who the other side is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// Endpoints by their labels. Requirements of other rules (`fromRequires`) narrow it.
    Endpoints(Selector),
    /// An entity: a reserved identity and its like.
    Entity(Selector),
    /// Nodes, the own one included, by their labels.
    Nodes(Selector),
    /// Addresses outside of what the cluster manages, by prefix.
    Cidr {
        /// The addresses meant.
        prefix: IpNet,
        /// But not these.
        except: Vec<IpNet>,
    },
    /// Addresses by prefix, whoever has them: those of pods too.
    Block {
        /// The addresses meant.
        prefix: IpNet,
        /// But not these.
        except: Vec<IpNet>,
    },
    /// The prefixes of `CiliumCIDRGroup`s, as [`Peer::Cidr`].
    Groups {
        /// Which groups.
        groups: Groups,
        /// But not these addresses.
        except: Vec<IpNet>,
    },
    /// The backends of services.
    Services(Services),
}

/// Which `CiliumCIDRGroup`s are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Groups {
    /// The one of this name.
    Named(Arc<str>),
    /// Those with such labels.
    Labelled(Selector),
}

/// Which services are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Services {
    /// In this namespace; in any without.
    pub namespace: Option<Arc<str>>,
    /// By name or by labels.
    pub which: ServiceName,
}

/// How services are named.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceName {
    /// The one of this name.
    Named(Arc<str>),
    /// Those with such labels.
    Labelled(Selector),
}

/// The ports of the receiving side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ports {
    /// Every packet, of every protocol.
    #[default]
    Any,
    /// Packets to one of these; no packet, if there are none.
    Of(Vec<Port>),
}

impl Ports {
    /// These and more.
    pub(crate) fn and(self, more: Vec<Port>) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Of(ports) => Self::Of([ports, more].concat()),
        }
    }
}

/// A port of a protocol, or several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// Ports by number; from 0 to 0 is all of them. The ICMP protocols have the type here.
    Range {
        /// The protocol; never "any".
        proto: u8,
        /// The first port.
        first: u16,
        /// The last one.
        last: u16,
    },
    /// A port by the name that the receiving pod gives it.
    Named {
        /// The protocol; never "any".
        proto: u8,
        /// The name, in lower case.
        name: Arc<str>,
    },
}
