//! The names of all keys: made here, and read here.

use std::net::IpAddr;

use ipnet::IpNet;

/// Under which everything lies.
pub const ROOT: &str = "cilium/";
/// The key that is written every minute, and watched by everybody: a sign that writes go through.
pub const HEARTBEAT: &str = "cilium/.heartbeat";
/// Where a client proves that there is a quorum, by a lock of a random name.
pub const INIT_LOCK: &str = "cilium/.initlock";
/// Identities: `id/<number>`, `value/<labels>/<node>`, `locks/...`.
pub const IDENTITIES: &str = "cilium/state/identities/v1";
/// Nodes, by cluster and name.
pub const NODES: &str = "cilium/state/nodes/v1";
/// Addresses, in the one address space.
pub const IPS: &str = "cilium/state/ip/v1";
/// Shared services, by cluster, namespace and name.
pub const SERVICES: &str = "cilium/state/services/v1";
/// Exported services, by cluster, namespace and name.
pub const SERVICE_EXPORTS: &str = "cilium/state/serviceexports/v1";
/// What clusters say about themselves.
pub const CLUSTER_CONFIG: &str = "cilium/cluster-config";
/// Signs that a prefix is complete.
pub const SYNCED: &str = "cilium/synced";
/// Policy status, as former releases of Cilium kept it.
pub const POLICY_STATUSES: &str = "cilium/state/cnpstatuses/v2";
/// The address space of all addresses.
const SPACE: &str = "default";
/// What a kvstoremesh copies lies under this in place of `cilium/state/`.
const CACHE: &str = "cilium/cache/";
const STATE: &str = "cilium/state/";

/// The key that says which labels a number stands for.
pub fn identity_id(number: u32) -> String {
    format!("{IDENTITIES}/id/{number}")
}

/// The prefix of all [`identity_id`]s.
pub fn identity_ids() -> String {
    format!("{IDENTITIES}/id/")
}

/// The number of an [`identity_id`] key.
pub fn parse_identity_id(key: &str) -> Option<u32> {
    decimal(key.strip_prefix(&identity_ids())?)
}

/// The [`identity_id`] key that ends like this one, of another cluster maybe.
pub(crate) fn identity_ids_of(name: &str) -> String {
    format!("{IDENTITIES}/id/{name}")
}

/// The key by which a node says that it uses an identity; `labels` is the canonical string.
pub fn identity_value(labels: &str, node: &str) -> String {
    format!("{IDENTITIES}/value/{labels}/{node}")
}

/// The prefix of the uses of exactly these labels; longer label sets begin alike, see [`is_use_of`].
pub fn identity_values(labels: &str) -> String {
    format!("{IDENTITIES}/value/{labels}/")
}

/// Whether a key under [`identity_values`] is a use of these labels, and not of longer ones: label
/// strings may have slashes, node suffixes have none.
pub fn is_use_of(key: &str, labels: &str) -> bool {
    key.strip_prefix(&identity_values(labels)).is_some_and(|node| !node.contains('/'))
}

/// What is locked to give these labels a number.
pub fn identity_lock(labels: &str) -> String {
    format!("{IDENTITIES}/locks/{labels}")
}

/// The prefix of all locks of identities.
pub fn identity_locks() -> String {
    format!("{IDENTITIES}/locks/")
}

/// What a lock key locks: all but its last element, the holder's lease.
pub fn lock_path(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(path, _)| path)
}

/// A node's key.
pub fn node(cluster: &str, name: &str) -> String {
    format!("{NODES}/{cluster}/{name}")
}

/// The prefix of all nodes of a cluster.
pub fn nodes(cluster: &str) -> String {
    format!("{NODES}/{cluster}/")
}

/// The key of an address or, where `prefix` is not a whole address, of a range.
pub fn ip(prefix: IpNet) -> String {
    format!("{IPS}/{SPACE}/{}", ip_name(prefix))
}

/// The last elements of an address's key: `10.0.0.1`, `10.0.0.0/24`.
pub fn ip_name(prefix: IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.addr().to_string()
    } else {
        prefix.to_string()
    }
}

/// The prefix of all addresses of the own cluster.
pub fn ips() -> String {
    format!("{IPS}/{SPACE}/")
}

/// The address or range that the end of a key names.
pub fn parse_ip_name(name: &str) -> Option<IpNet> {
    let whole = |address: IpAddr| IpNet::from(address);
    name.parse().ok().map(whole).or_else(|| name.parse().ok())
}

/// A shared service's key.
pub fn service(cluster: &str, namespace: &str, name: &str) -> String {
    format!("{SERVICES}/{cluster}/{namespace}/{name}")
}

/// An exported service's key.
pub fn service_export(cluster: &str, namespace: &str, name: &str) -> String {
    format!("{SERVICE_EXPORTS}/{cluster}/{namespace}/{name}")
}

/// The key of what a cluster says about itself.
pub fn cluster_config(cluster: &str) -> String {
    format!("{CLUSTER_CONFIG}/{cluster}")
}

/// The key that says that everything under `prefix` (without a slash at its end) is there.
pub fn synced(cluster: &str, prefix: &str) -> String {
    format!("{SYNCED}/{cluster}/{prefix}")
}

/// Where one cluster's nodes, services, identities or addresses lie in the etcd that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The etcd belongs to a kvstoremesh: a copy of the cluster's own.
    pub cached: bool,
}

impl Layout {
    fn of(self, prefix: &str) -> String {
        match prefix.strip_prefix(STATE) {
            Some(rest) if self.cached => format!("{CACHE}{rest}"),
            _ => prefix.to_owned(),
        }
    }

    /// The sign that a prefix is complete, by the prefix's place in the cluster itself.
    pub fn canary(self, cluster: &str, prefix: &str) -> String {
        synced(cluster, &self.of(prefix))
    }

    /// The cluster's nodes.
    pub fn nodes(self, cluster: &str) -> String {
        format!("{}/{cluster}/", self.of(NODES))
    }

    /// The cluster's shared services.
    pub fn services(self, cluster: &str) -> String {
        format!("{}/{cluster}/", self.of(SERVICES))
    }

    /// The numbers of the cluster's identities.
    pub fn identities(self, cluster: &str) -> String {
        if self.cached { format!("{}/{cluster}/id/", self.of(IDENTITIES)) } else { identity_ids() }
    }

    /// The cluster's addresses.
    pub fn ips(self, cluster: &str) -> String {
        let space = if self.cached { cluster } else { SPACE };
        format!("{}/{space}/", self.of(IPS))
    }
}

/// The end of the range of all keys that begin with `prefix`.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Everything from the prefix on.
    vec![0]
}

/// A number as `Display` writes it, and in no other spelling.
fn decimal(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// What `kvstore_operations_duration_seconds` calls the kind of a key: its third and fourth element.
pub(crate) fn scope(key: &str) -> String {
    let mut elements = key.split('/').skip(2);
    match (elements.next(), elements.next()) {
        (Some(third), Some(fourth)) => format!("{third}/{fourth}"),
        _ => key.chars().take(12).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: &str = "k8s:app=web;k8s:io.kubernetes.pod.namespace=default;";

    #[test]
    fn keys_are_those_of_the_contract() {
        let cases: &[(String, &str)] = &[
            (identity_id(53), "cilium/state/identities/v1/id/53"),
            (
                identity_value("k8s:app=web;", "10.1.0.7"),
                "cilium/state/identities/v1/value/k8s:app=web;/10.1.0.7",
            ),
            (identity_lock("k8s:app=web;"), "cilium/state/identities/v1/locks/k8s:app=web;"),
            (node("east", "n1"), "cilium/state/nodes/v1/east/n1"),
            (ip("10.0.0.1/32".parse().unwrap()), "cilium/state/ip/v1/default/10.0.0.1"),
            (ip("10.0.0.0/24".parse().unwrap()), "cilium/state/ip/v1/default/10.0.0.0/24"),
            (ip("fd00::1/128".parse().unwrap()), "cilium/state/ip/v1/default/fd00::1"),
            (service("east", "default", "web"), "cilium/state/services/v1/east/default/web"),
            (cluster_config("east"), "cilium/cluster-config/east"),
            (synced("east", NODES), "cilium/synced/east/cilium/state/nodes/v1"),
        ];
        for (key, want) in cases {
            assert_eq!(key, want);
        }
    }

    #[test]
    fn copies_of_a_mesh_lie_elsewhere() {
        let (own, copy) = (Layout { cached: false }, Layout { cached: true });
        assert_eq!(own.identities("east"), "cilium/state/identities/v1/id/");
        assert_eq!(copy.identities("east"), "cilium/cache/identities/v1/east/id/");
        assert_eq!(own.ips("east"), "cilium/state/ip/v1/default/");
        assert_eq!(copy.ips("east"), "cilium/cache/ip/v1/east/");
        assert_eq!(copy.nodes("east"), "cilium/cache/nodes/v1/east/");
        assert_eq!(copy.canary("east", IPS), "cilium/synced/east/cilium/cache/ip/v1");
    }

    #[test]
    fn what_was_written_can_be_read() {
        for number in [0, 1, 256, 65_535, u32::MAX] {
            assert_eq!(parse_identity_id(&identity_id(number)), Some(number));
        }
        for text in ["10.0.0.1/32", "10.0.0.0/24", "fd00::1/128", "fd00::/64", "0.0.0.0/0"] {
            let prefix: IpNet = text.parse().unwrap();
            assert_eq!(parse_ip_name(&ip_name(prefix)), Some(prefix));
        }
        for key in ["+5", "05", "", "x", "5/6", "4294967296"] {
            assert_eq!(parse_identity_id(&format!("{}{key}", identity_ids())), None, "{key}");
        }
    }

    #[test]
    fn longer_label_sets_are_others() {
        assert!(is_use_of(&identity_value(LABELS, "10.0.0.1"), LABELS));
        let longer = format!("{LABELS}/k8s:x=y;");
        assert!(!is_use_of(&identity_value(&longer, "10.0.0.1"), LABELS));
        assert!(!is_use_of(&identity_value("k8s:a=b;", "10.0.0.1"), LABELS));
        let lock = format!("{}/694d7a", identity_lock("k8s:path=a/b;"));
        assert_eq!(lock_path(&lock), identity_lock("k8s:path=a/b;"));
    }

    #[test]
    fn ranges_end_behind_their_prefix() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(scope("cilium/state/identities/v1/id/5"), "identities/v1");
        assert_eq!(scope(HEARTBEAT), "cilium/.hear");
    }
}
