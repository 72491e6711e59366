//! The numeric space of security identities.

use std::fmt;

use crate::labels::Labels;

/// A security identity's number, as it is on the wire, in maps and in names of `CiliumIdentity` objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumericIdentity(pub u32);

impl NumericIdentity {
    /// Nobody; in policy keys: anybody.
    pub const UNKNOWN: Self = Self(0);
    /// This node and what runs in its own network namespace.
    pub const HOST: Self = Self(1);
    /// Everything outside the cluster.
    pub const WORLD: Self = Self(2);
    /// An endpoint that Cilia does not manage.
    pub const UNMANAGED: Self = Self(3);
    /// The health endpoint.
    pub const HEALTH: Self = Self(4);
    /// An endpoint whose labels are not known yet.
    pub const INIT: Self = Self(5);
    /// Another node of the cluster.
    pub const REMOTE_NODE: Self = Self(6);
    /// A node that runs the API server.
    pub const KUBE_APISERVER: Self = Self(7);
    /// The ingress proxy.
    pub const INGRESS: Self = Self(8);
    /// Outside, by IPv4, where both families are on.
    pub const WORLD_IPV4: Self = Self(9);
    /// Outside, by IPv6, where both families are on.
    pub const WORLD_IPV6: Self = Self(10);
    /// The first number that is given to a label set of the cluster.
    pub const FIRST_ALLOCATED: Self = Self(256);

    /// Reserved numbers with their names, in order.
    pub const RESERVED: &[(Self, &'static str)] = &[
        (Self::UNKNOWN, "unknown"),
        (Self::HOST, "host"),
        (Self::WORLD, "world"),
        (Self::UNMANAGED, "unmanaged"),
        (Self::HEALTH, "health"),
        (Self::INIT, "init"),
        (Self::REMOTE_NODE, "remote-node"),
        (Self::KUBE_APISERVER, "kube-apiserver"),
        (Self::INGRESS, "ingress"),
        (Self::WORLD_IPV4, "world-ipv4"),
        (Self::WORLD_IPV6, "world-ipv6"),
        (Self(11), "encrypted-overlay"),
    ];

    /// The name after `reserved:`, if the number is a reserved one.
    pub fn reserved_name(self) -> Option<&'static str> {
        Self::RESERVED.iter().find(|(number, _)| *number == self).map(|(_, name)| *name)
    }

    /// The labels of a reserved identity; a kube-apiserver node is a remote node too.
    pub fn reserved_labels(self) -> Option<Labels> {
        let mut labels = Labels::reserved(self.reserved_name()?);
        if self == Self::KUBE_APISERVER {
            labels.insert(crate::labels::SOURCE_RESERVED, "remote-node", "");
        }
        Some(labels)
    }

    /// Whether the number means something on this node only (scopes 0x01 and 0x02).
    pub fn is_local(self) -> bool {
        self.0 >> 24 != 0
    }
}

impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
