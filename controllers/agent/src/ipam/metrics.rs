//! Counts addresses: how many there are, are in use, came and went.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector as Collects;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::Ipam;

/// Addresses given to and taken back from endpoints; IPv4 first.
#[derive(Debug, Default)]
pub(super) struct Counts {
    given: [AtomicU64; 2],
    released: [AtomicU64; 2],
}

impl Counts {
    pub(super) fn given(&self, addresses: &[IpAddr]) {
        count(&self.given, addresses);
    }

    pub(super) fn released(&self, addresses: &[IpAddr]) {
        count(&self.released, addresses);
    }
}

fn count(counts: &[AtomicU64; 2], addresses: &[IpAddr]) {
    for address in addresses {
        counts[usize::from(address.is_ipv6())].fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads the addresses when somebody asks.
#[derive(Debug)]
pub struct Collector(pub Ipam);

impl Collects for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];
        let mut gauge = |name: &str, help: &str, value: &dyn Fn((usize, u128)) -> u128| {
            let mut family =
                encoder.encode_descriptor(name, help, None::<&Unit>, MetricType::Gauge)?;
            for (label, ipv6) in FAMILIES.into_iter().zip([false, true]) {
                let value = i64::try_from(value(self.0.usage(ipv6))).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&[("family", label)])?)?;
            }
            Ok::<_, std::fmt::Error>(())
        };
        gauge("cilium_ip_addresses", "Addresses in use", &|(used, _)| used as u128)?;
        let help = "Addresses that the node has, in use or not";
        gauge("cilium_ipam_capacity", help, &|(_, capacity)| capacity)?;
        // The encoder appends `_total`.
        let help = "Addresses given to and taken back from endpoints";
        let mut events = encoder.encode_descriptor(
            "cilium_ipam_events",
            help,
            None::<&Unit>,
            MetricType::Counter,
        )?;
        let counts = &self.0.0.counts;
        for (action, counts) in [("allocate", &counts.given), ("release", &counts.released)] {
            for (family, count) in FAMILIES.iter().zip(counts) {
                let labels = [("action", action), ("family", *family)];
                let value = count.load(Ordering::Relaxed);
                ConstCounter::new(value).encode(events.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
