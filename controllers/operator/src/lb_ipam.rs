//! Says how addresses of load balancers are handed out: not at all, as LB-IPAM is not built.
//!
//! Its kinds are not registered, so a cluster has no pools, and the numbers are those of Cilium in a cluster without:
//! nothing in conflict, no service served, no series of any pool. Rules and dashboards find what they ask for.

use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;

const NUMBERS: [(&str, &str); 3] = [
    ("lbipam_conflicting_pools", "Pools that overlap with others"),
    ("lbipam_services_matching", "Services that LB-IPAM serves"),
    ("lbipam_services_unsatisfied", "Services that lack an address"),
];

/// Registers them, unless `enable-lb-ipam` is off.
pub(crate) fn register(config: &Config, metrics: &Metrics) {
    for (name, help) in NUMBERS.into_iter().filter(|_| config.bool("enable-lb-ipam")) {
        metrics.register(name, help, <Gauge>::default());
    }
}
