//! The reserved identities that the programs know.

/// Nobody known.
pub const UNKNOWN: u32 = 0;
/// This node.
pub const HOST: u32 = 1;
/// Outside of the cluster.
pub const WORLD: u32 = 2;
/// Another node; on the wire also a node itself.
pub const REMOTE_NODE: u32 = 6;
/// A node with the API server.
pub const KUBE_APISERVER: u32 = 7;
/// The addresses at which the cluster takes in traffic.
pub const INGRESS: u32 = 8;
/// Outside by IPv4, with both families on.
pub const WORLD_IPV4: u32 = 9;
/// Outside by IPv6, with both families on.
pub const WORLD_IPV6: u32 = 10;
/// The top eight bits of identities of other nodes, which only the node that made them knows.
pub const SCOPE_NODES: u32 = 2;
