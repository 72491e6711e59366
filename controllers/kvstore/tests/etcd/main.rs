//! The kvstore on a real etcd, well and broken.

mod allocation;
mod clock;
mod cluster_faults;
mod collection;
mod examples;
mod faults;
mod freezing;
mod locking;
mod meshing;
mod mirroring;
mod refusals;
mod users;
mod watching;

use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;

/// Metrics of queues that nobody reads.
fn workqueues() -> Workqueues {
    Workqueues::register(&Metrics::new("test"))
}

/// A number out of an environment variable: small by default, large where there is time.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
