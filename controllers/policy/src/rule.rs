//! What every kind of policy becomes: a rule with a subject and, per direction, allows and denies.
//!
//! The form follows policy.md 2: absent and empty lists are told apart here, once, so that nothing
//! behind it needs to know the kinds.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

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
}

impl Kind {
    /// The kind's name, as Kubernetes and Cilium's `derived-from` label write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cilium => "CiliumNetworkPolicy",
            Self::CiliumClusterwide => "CiliumClusterwideNetworkPolicy",
            Self::Kubernetes => "NetworkPolicy",
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

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whom it concerns.
    pub subject: Selector,
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

/// Peers and ports that are allowed, or denied, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Denies instead of allowing.
    pub deny: bool,
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
    /// Addresses outside of what the cluster manages, by prefix.
    Cidr {
        /// The addresses meant.
        prefix: IpNet,
        /// But not these.
        except: Vec<IpNet>,
    },
}

/// The ports of the receiving side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// Every packet, of every protocol.
    Any,
    /// Packets to one of these; no packet, if there are none.
    Of(Vec<Port>),
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
