//! Blocks: identities for "the address is in these prefixes", for rules that mean addresses
//! whoever has them (`ipBlock` of `NetworkPolicy`, `networks` of `ClusterNetworkPolicy`).
//!
//! A pod's identity doesn't tell its address. So each prefix that such rules of local endpoints
//! name, the excepted ones too, has a number of its own, beside the one that it has for addresses
//! outside ([`crate::CIDR_SCOPE`]). An address belongs to the longest prefix that holds it: with that a
//! number says which peers of which rules mean the address, however they overlap.
//!
//! The kernel asks for it only where [`crate::map::DirectionPolicy::blocks`] is set and the peer's
//! identity has no entry that fits: it looks the peer's address up in one table of the node
//! ([`crate::Repository::blocks`]), and asks the same policy map for that number instead. What the
//! first lookup denies stays denied.

/// The first number of the scope of blocks. They are never on the wire, nor in the ipcache.
pub const SCOPE: u32 = 3 << 24;
