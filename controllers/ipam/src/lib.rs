//! Decides who owns which address range and which address; each has one owner at any moment.
//!
//! In the operator a [`ClusterPool`] or a [`MultiPool`] gives ranges to nodes; in the agent
//! [`Addresses`], or [`NodePools`] where there are pools, give addresses out of its node's ranges to
//! endpoints.
#![forbid(unsafe_code)]

mod addresses;
mod bits;
mod choice;
mod cidr_set;
mod claims;
mod cluster_pool;
mod demand;
mod family;
mod multi_pool;
mod node_pools;
mod pod_pool;
mod pool_config;
mod pool_flag;
mod ranges;
mod release;

pub use addresses::{AddressError, Addresses};
pub use choice::{ANNOTATION_PREFIX, Candidate, ChoiceError, Selectable, choose};
pub use cidr_set::CidrSet;
pub use cluster_pool::{ClusterPool, Node, Refusal, Verdict};
pub use demand::demand;
pub use family::Family;
pub use multi_pool::{Allocation, Answer, MultiPool, PoolNode, Request};
pub use node_pools::{NodePools, Wish};
pub use pod_pool::{FamilySpec, PoolError, PoolSpec};
pub use pool_config::{ConfigError, PoolConfig};
pub use pool_flag::{FlagError, NewPool, parse_new_pool};
pub use release::{answers, offered};
