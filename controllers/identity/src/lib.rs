//! Decides which labels make an identity, which number stands for them, and which number is free.
//!
//! A pod's labels ([`PodLabels`]) go through a [`Filter`]; the [`Index`] of all `CiliumIdentities`
//! says which number stands for the result; where there is none, a [`Pool`] draws one from the
//! cluster's [`Space`]. [`Ledger`] puts the last two together for agents, [`Managed`] for the operator.
//! [`advise`](fn@advise) says which labels cost most numbers.
#![forbid(unsafe_code)]

mod advise;
mod digest;
mod error;
mod filter;
mod fixed;
mod index;
#[cfg(test)]
mod interleavings;
mod ledger;
mod managed;
mod pod;
mod pool;
mod prefix_file;
mod rule;
mod space;
mod users;
mod well_known;

pub use advise::{Advice, Saving, advise};
pub use error::Error;
pub use filter::Filter;
pub use fixed::Fixed;
pub use index::{Index, Record};
pub use ledger::{Ledger, Step};
pub use managed::{Full, Managed, Placed, Plan};
pub use pod::{CLUSTER as CLUSTER_LABEL, PodLabels, namespace_labels};
pub use pool::Pool;
pub use rule::Rule;
pub use space::Space;
pub use users::Users;
pub use well_known::well_known;
