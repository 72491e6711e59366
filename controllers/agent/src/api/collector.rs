//! The agent's metrics that are read where they are, when somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_kvstore::mesh::Remote;
use cilia_loader::Datapath;
use prometheus_client::collector::Collector as Collects;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::bpf::direction;
use crate::clustermesh::Remotes;
use crate::endpoint::Endpoints;
use crate::events::Bus;
use crate::identity::Identities;
use crate::ipcache::Cache;
use crate::policy::Enforcer;

/// Counters of the datapath and sizes of tables.
#[derive(Debug)]
pub struct Collector {
    /// Drops and forwards.
    pub datapath: Arc<Datapath>,
    /// How many, and how far they are.
    pub endpoints: Endpoints,
    /// How many.
    pub identities: Identities,
    /// Policies, and what is in place.
    pub enforcer: Enforcer,
    /// How many addresses.
    pub ipcache: Cache,
    /// Events that were lost.
    pub bus: Bus,
    /// How other clusters are, if others are read.
    pub clusters: Option<Remotes>,
}

type Labels<'a> = Vec<(&'a str, String)>;
/// What is shown of a cluster.
type Shown = fn(&Remote) -> i64;

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: &[(Labels<'_>, u64)],
    ) -> std::fmt::Result {
        // The encoder appends `_total`.
        let mut family = self.0.encode_descriptor(
            name,
            help,
            None::<&Unit>,
            prometheus_client::metrics::MetricType::Counter,
        )?;
        for (labels, value) in values {
            ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn ratios(&mut self, name: &str, help: &str, values: &[(Labels<'_>, f64)]) -> std::fmt::Result {
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, help, None::<&Unit>, kind)?;
        for (labels, value) in values {
            ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn gauges(&mut self, name: &str, help: &str, values: &[(Labels<'_>, i64)]) -> std::fmt::Result {
        let mut family = self.0.encode_descriptor(
            name,
            help,
            None::<&Unit>,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for (labels, value) in values {
            ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

impl Encoder<'_> {
    fn clusters(&mut self, remotes: &BTreeMap<String, Remote>) -> std::fmt::Result {
        let all = [(vec![], count(remotes.len()))];
        self.gauges("cilium_clustermesh_remote_clusters", "Other clusters", &all)?;
        let ready: Shown = |one| i64::from(one.ready && one.connected);
        let failures: Shown = |one| i64::try_from(one.failures).unwrap_or(i64::MAX);
        let revocations: Shown = |one| i64::try_from(one.revocations).unwrap_or(i64::MAX);
        let each: [(&str, &str, Shown); 7] = [
            ("failures", "How often a cluster was lost", failures),
            ("last_failure_ts", "When, in seconds since 1970", |one| one.last_failure),
            ("readiness_status", "Whether everything was heard of it", ready),
            (
                "cache_revocations",
                "How often its services were given up while it was away",
                revocations,
            ),
            ("nodes", "Its nodes", |one| count(one.counts.nodes)),
            ("services", "Its shared services", |one| count(one.counts.services)),
            ("endpoints", "Its addresses", |one| count(one.counts.ips)),
        ];
        for (name, help, value) in each {
            let values: Vec<_> = remotes
                .iter()
                .map(|(name, one)| (vec![("target_cluster", name.clone())], value(one)))
                .collect();
            self.gauges(&format!("cilium_clustermesh_remote_cluster_{name}"), help, &values)?;
        }
        Ok(())
    }
}

/// A share; 0 where nothing is known of the whole.
fn ratio(part: usize, whole: usize) -> f64 {
    let number = |n: usize| u32::try_from(n).map_or(f64::MAX, f64::from);
    if whole == 0 { 0.0 } else { number(part) / number(whole) }
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

impl Collects for Collector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut encoder = Encoder(encoder);
        let counters = self.datapath.metrics().unwrap_or_default();
        let (mut drops, mut dropped, mut forwards, mut forwarded) =
            (vec![], vec![], vec![], vec![]);
        for (key, packets, bytes) in counters {
            let way = ("direction", direction(key.direction).to_owned());
            if key.is_drop() {
                let labels = vec![("reason", key.reason_text()), way];
                drops.push((labels.clone(), packets));
                dropped.push((labels, bytes));
            } else if key.reason == 0 {
                forwards.push((vec![way.clone()], packets));
                forwarded.push((vec![way], bytes));
            }
        }
        encoder.counters(
            "cilium_drop_count",
            "Packets dropped, by reason and direction",
            &drops,
        )?;
        encoder.counters(
            "cilium_drop_bytes",
            "Bytes dropped, by reason and direction",
            &dropped,
        )?;
        encoder.counters("cilium_forward_count", "Packets forwarded, by direction", &forwards)?;
        encoder.counters("cilium_forward_bytes", "Bytes forwarded, by direction", &forwarded)?;

        let endpoints = self.endpoints.list();
        let mut states: BTreeMap<String, i64> = BTreeMap::new();
        for endpoint in &endpoints {
            let name = serde_json::to_value(endpoint.state)
                .ok()
                .and_then(|v| v.as_str().map(str::to_owned));
            *states.entry(name.unwrap_or_default()).or_default() += 1;
        }
        let states: Vec<_> =
            states.into_iter().map(|(state, n)| (vec![("endpoint_state", state)], n)).collect();
        encoder.gauges(
            "cilium_endpoint",
            "Endpoints of this node",
            &[(vec![], count(endpoints.len()))],
        )?;
        encoder.gauges("cilium_endpoint_state", "Endpoints of this node by state", &states)?;

        let view = self.enforcer.view().borrow().clone();
        let enforcement = |ingress, egress| {
            count(
                view.endpoints
                    .iter()
                    .filter(|e| (e.ingress, e.egress) == (ingress, egress))
                    .count(),
            )
        };
        let enforcement = [
            ("both", true, true),
            ("ingress", true, false),
            ("egress", false, true),
            ("none", false, false),
        ]
        .map(|(name, ingress, egress)| {
            (vec![("enforcement", name.to_owned())], enforcement(ingress, egress))
        });
        encoder.gauges(
            "cilium_policy",
            "Policies in use",
            &[(vec![], count(view.policies.len()))],
        )?;
        let revision = i64::try_from(view.revision).unwrap_or(i64::MAX);
        encoder.gauges(
            "cilium_policy_max_revision",
            "Changes of policies",
            &[(vec![], revision)],
        )?;
        let [success, failure] = view.changes;
        let outcome = |name: &str| vec![("outcome", name.to_owned())];
        encoder.counters(
            "cilium_policy_change",
            "Policies taken in or removed, and policies that could not be used",
            &[(outcome("success"), success), (outcome("failure"), failure)],
        )?;
        encoder.gauges(
            "cilium_policy_endpoint_enforcement_status",
            "Endpoints by what is enforced",
            &enforcement,
        )?;

        // The fullest of each kind, as Cilium has it; more than 1 does not fit.
        let policy = view.endpoints.iter().map(|e| ratio(e.needed, e.most)).fold(0.0, f64::max);
        encoder.ratios(
            "cilium_bpf_map_pressure",
            "Entries that a map needs, as a share of those that it holds",
            &[(vec![("map_name", "cilium_policy_v2_*".to_owned())], policy)],
        )?;

        let reserved =
            |id: &cilia_crds::NumericIdentity| *id < cilia_crds::NumericIdentity::FIRST_ALLOCATED;
        let identities = self.identities.snapshot();
        let reserved = identities.keys().filter(|id| reserved(id)).count();
        let kinds = [
            (vec![("type", "reserved".to_owned())], count(reserved)),
            (vec![("type", "cluster_local".to_owned())], count(identities.len() - reserved)),
        ];
        encoder.gauges("cilium_identity", "Identities by type", &kinds)?;
        if let Some(clusters) = &self.clusters {
            encoder.clusters(&clusters.borrow())?;
        }
        let addresses = count(self.ipcache.entries().len());
        encoder.gauges(
            "cilium_ipcache_entries",
            "Addresses whose identity is known",
            &[(vec![], addresses)],
        )?;
        encoder.counters(
            "cilium_events_lost",
            "Events that found the ring full",
            &[(vec![], self.bus.lost())],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_kvstore::mesh::{Counts, Remote};
    use cilia_runtime::metrics::Metrics;
    use prometheus_client::collector::Collector as Collects;
    use prometheus_client::encoding::DescriptorEncoder;

    use super::Encoder;

    #[derive(Debug)]
    struct Clusters(BTreeMap<String, Remote>);

    impl Collects for Clusters {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            Encoder(encoder).clusters(&self.0)
        }
    }

    /// The families about other clusters, each cluster by its name.
    #[test]
    fn other_clusters_are_counted() {
        let counts = Counts { nodes: 2, identities: 9, ips: 30, services: 4 };
        let west =
            Remote { ready: true, synced: true, connected: true, counts, ..Remote::default() };
        let north = Remote {
            synced: true,
            failures: 3,
            last_failure: 1_700_000_000,
            revocations: 1,
            counts: Counts { services: 0, ..counts },
            ..Remote::default()
        };
        let metrics = Metrics::new("cilium");
        let clusters = [("west".to_owned(), west), ("north".to_owned(), north)];
        metrics.register_collector(Box::new(Clusters(clusters.into())));
        let text = metrics.render();
        for (name, north, west) in [
            ("failures", "3", "0"),
            ("last_failure_ts", "1700000000", "0"),
            ("readiness_status", "0", "1"),
            ("cache_revocations", "1", "0"),
            ("nodes", "2", "2"),
            ("services", "0", "4"),
            ("endpoints", "30", "30"),
        ] {
            for (cluster, value) in [("north", north), ("west", west)] {
                let line = format!(
                    "cilium_clustermesh_remote_cluster_{name}{{target_cluster=\"{cluster}\"}} {value}\n"
                );
                assert!(text.contains(&line), "{line} is not in {text}");
            }
        }
        assert!(text.contains("cilium_clustermesh_remote_clusters 2\n"), "{text}");
    }
}
