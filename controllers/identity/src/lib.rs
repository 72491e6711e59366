//! Decides which labels make an identity, which number stands for them, and which number is free.
//!
//! A pod's labels ([`PodLabels`]) go through a [`Filter`]; the [`Index`] of all `CiliumIdentities`
//! says which number stands for the result; where there is none, a [`Pool`] draws one from the
//! cluster's [`Space`].
#![forbid(unsafe_code)]

mod error;
mod filter;
mod index;
mod managed;
mod pod;
mod pool;
mod prefix_file;
mod rule;
mod space;
mod well_known;

pub use error::Error;
pub use filter::Filter;
pub use index::{Index, Record};
pub use managed::{Full, Managed, Placed, Plan};
pub use pod::PodLabels;
pub use pool::Pool;
pub use rule::Rule;
pub use space::Space;
pub use well_known::well_known;
