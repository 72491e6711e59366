//! Decides who owns which address range and which address; each has one owner at any moment.
//!
//! In the operator a [`ClusterPool`] gives ranges to nodes; in the agent [`Addresses`] gives
//! addresses out of its node's ranges to endpoints.
#![forbid(unsafe_code)]

mod addresses;
mod bits;
mod cidr_set;
mod cluster_pool;
mod family;
mod pool_config;
mod ranges;

pub use addresses::{AddressError, Addresses};
pub use cidr_set::CidrSet;
pub use cluster_pool::{ClusterPool, Node, Refusal, Verdict};
pub use family::Family;
pub use pool_config::{ConfigError, PoolConfig};
