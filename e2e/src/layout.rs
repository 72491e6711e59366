//! Decides what everything of a cluster is called and where it lives.
//!
//! All of it follows from the cluster's name, so clusters stand side by side and leftovers of a
//! killed run are found again without any record of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Error;

/// Where clusters keep their files; one folder each.
pub const STATE_ROOT: &str = "/var/lib/cilia-cluster";
/// Longest name: it is part of paths and of cgroups' names.
const LONGEST_NAME: usize = 24;
/// Node subnets are 172.18.0.0/24 to 172.31.255.0/24: private, and clear of Docker's first.
const FIRST_SECOND_OCTET: u32 = 18;
const SECOND_OCTETS: u32 = 14;

/// Names, paths and addresses of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    name: String,
    hash: u32,
}

impl Layout {
    /// The layout of the cluster called `name`.
    pub fn new(name: &str) -> Result<Self, Error> {
        let fits = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if name.is_empty() || name.len() > LONGEST_NAME || !fits || name.starts_with('-') {
            return Err(Error::Invalid(format!(
                "cluster name {name:?}: use 1 to {LONGEST_NAME} of a-z, 0-9 and -, not starting with -"
            )));
        }
        let digest = Sha256::digest(name.as_bytes());
        let hash = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        Ok(Self { name: name.to_owned(), hash })
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's own folder.
    pub fn state(&self) -> PathBuf {
        Path::new(STATE_ROOT).join(&self.name)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state().join("kubeconfig")
    }

    /// The log of one of the cluster's daemons.
    pub fn log(&self, daemon: &str) -> PathBuf {
        self.state().join("log").join(format!("{daemon}.log"))
    }

    /// The folder of node `index`, counted from 1.
    pub fn node_dir(&self, index: u8) -> PathBuf {
        self.state().join("nodes").join(node_name(index))
    }

    /// The folder in which the cluster's namespaces are kept, each as a file.
    pub fn pins(&self) -> PathBuf {
        self.state().join("pins")
    }

    /// The network namespace of the control plane and of the bridge between the nodes.
    pub fn control_plane_network(&self) -> PathBuf {
        self.pins().join("cp-net")
    }

    /// Node `index`'s namespace of this kind: `net`, `mnt`, `uts` or `pid`.
    pub fn node_namespace(&self, index: u8, kind: &str) -> PathBuf {
        self.pins().join(format!("{}-{kind}", node_name(index)))
    }

    /// The host's only device of the cluster: its end of the cable to the bridge.
    pub fn host_device(&self) -> String {
        format!("cilia-{:08x}", self.hash)
    }

    /// The cgroup that holds all of the cluster, relative to each hierarchy's root.
    pub fn cgroup(&self) -> String {
        format!("cilia-{}", self.name)
    }

    /// The cgroup of node `index`: the kubelet's root, and where to attach a node's programs.
    pub fn node_cgroup(&self, index: u8) -> String {
        format!("{}/{}", self.cgroup(), node_name(index))
    }

    /// Address `host` in the IPv4 subnet of the nodes, a /24.
    pub fn ipv4(&self, host: u8) -> Ipv4Addr {
        let second = FIRST_SECOND_OCTET + self.hash % SECOND_OCTETS;
        let third = (self.hash / SECOND_OCTETS) % 256;
        Ipv4Addr::from((172 << 24) | (second << 16) | (third << 8) | u32::from(host))
    }

    /// Address `host` in the IPv6 subnet of the nodes, a /64.
    pub fn ipv6(&self, host: u8) -> Ipv6Addr {
        let [high, low] = [(self.hash >> 16) as u16, (self.hash & 0xffff) as u16];
        Ipv6Addr::new(0xfdc1, 0x11a, high, low, 0, 0, 0, u16::from(host))
    }

    /// Where the API server listens.
    pub fn api_server(&self) -> String {
        format!("https://{}", self.api_address())
    }

    /// The same, as an address and a port.
    pub fn api_address(&self) -> SocketAddr {
        SocketAddr::new(self.ipv4(CONTROL_PLANE).into(), API_PORT)
    }
}

/// The API server's port.
pub(crate) const API_PORT: u16 = 6443;
/// Host part of the machine's own address on the node subnet.
pub(crate) const HOST: u8 = 1;
/// Host part of the control plane's address.
pub(crate) const CONTROL_PLANE: u8 = 2;
/// Host part of an address that belongs to nobody in the cluster: "the world".
pub const WORLD: u8 = 3;
/// Host part of node 0's address, if there were one.
const NODES: u8 = 10;
/// How many nodes a cluster can have.
pub(crate) const MAX_NODES: u8 = 99;

/// Host part of the address of node `index`.
pub(crate) fn node_host(index: u8) -> u8 {
    NODES + index
}

/// Kubernetes' name of node `index`.
pub(crate) fn node_name(index: u8) -> String {
    format!("n{index}")
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn names_are_checked() {
        for good in ["cilia", "a", "test-2", "n1"] {
            assert!(Layout::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a/b", "..", "a-name-that-is-far-too-long"] {
            assert!(Layout::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn clusters_differ() {
        let (a, b) = (Layout::new("a").expect("good"), Layout::new("b").expect("good"));
        assert_ne!(a.ipv4(1), b.ipv4(1));
        assert_ne!(a.host_device(), b.host_device());
        assert!(a.host_device().len() < 16, "fits IFNAMSIZ");
    }
}
