//! The etcd mirror: what of the cluster lies in the kvstore, under which keys, and who keeps it right.
//!
//! [`keys`] and [`value`] are the contract with every other reader and writer, and pure.
//! A [`Client`] reads, writes, locks and watches; what a process owns hangs on its leases. On it
//! stand three parts: [`Mirror`] keeps keys equal to a table of desired ones, [`Allocator`] gives
//! label sets their numbers, and [`mesh`] reads other clusters.
#![forbid(unsafe_code)]

pub mod allocator;
mod certificate;
mod client;
mod connection;
mod error;
pub mod gc;
pub mod keys;
mod lease;
mod lock;
mod members;
pub mod mesh;
mod messages;
mod metrics;
mod mirror;
mod options;
mod stand_in;
mod status;
#[cfg(feature = "testing")]
pub mod testing;
mod txn;
pub mod value;
mod watch;

pub use allocator::Allocator;
pub use client::{Client, Fared, Settings};
pub use error::Error;
pub use lock::Lock;
pub use messages::KeyValue;
pub use metrics::SyncMetrics;
pub use mirror::{Entry, Mirror, Seen};
pub use options::{Endpoints, Options};
pub use stand_in::{Swap, is_stand_in, stand_ins_of};
pub use status::{Health, Watchdog};
pub use txn::{Outcomes, Txn};
pub use watch::{Event, ProgressRequests, Watch};
