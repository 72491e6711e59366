//! What every reconciler shares: configuration, work queues, watches, leadership, and the
//! servers a process shows to the cluster.
#![forbid(unsafe_code)]

pub mod client;
pub mod config;
pub mod events;
pub mod http;
pub mod lanes;
pub mod leader;
pub mod logging;
pub mod metrics;
pub mod shutdown;
#[cfg(feature = "testing")]
pub mod testing;
pub mod turns;
pub mod watch;
