//! Follows other clusters (`clustermesh-config`), and says how they are: in the API, and as metrics.
//!
//! Their shared services are read, so that "ready" is true of what an operator needs of them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cilia_kvstore::mesh::{GRACE, Mesh, Remote, Settings, shown};
use cilia_runtime::config::{Config, Error};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;
use tokio::sync::watch;

use crate::wiring::Context;

/// Requests per second and cluster.
const QPS: f64 = 20.0;

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    settings(config)?;
    Ok(())
}

/// Nothing where no clusters are read.
fn settings(config: &Config) -> Result<Option<Settings>, Error> {
    let number =
        |flag| u32::try_from(config.uint(flag)).map_err(|_| config.reject(flag, "at most 511"));
    let cluster_id = number("cluster-id")?;
    let Some(directory) = config.path("clustermesh-config").filter(|_| cluster_id != 0) else {
        return Ok(None);
    };
    Ok(Some(Settings {
        directory,
        cluster: config.string("cluster-name").to_owned(),
        cluster_id,
        max_connected: number("max-connected-clusters")?,
        cache_ttl: config.duration("clustermesh-cache-ttl"),
        network: false,
        qps: QPS,
        grace: GRACE,
    }))
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let Some(settings) = settings(&context.config)? else { return Ok(()) };
    let (mesh, mut news) = Mesh::new(settings);
    context.remotes.follow(mesh.remotes());
    context.metrics.register_collector(Box::new(context.remotes.clone()));
    tokio::select! {
        () = mesh.run(context.stop.clone()) => {}
        () = async { while news.recv().await.is_some() {} } => {}
    }
    Ok(())
}

/// How other clusters are; of replicas that don't lead there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remotes(Arc<OnceLock<watch::Receiver<BTreeMap<String, Remote>>>>);

impl Remotes {
    fn follow(&self, remotes: watch::Receiver<BTreeMap<String, Remote>>) {
        // A duty is never started twice.
        let _ = self.0.set(remotes);
    }

    fn all(&self) -> BTreeMap<String, Remote> {
        self.0.get().map(|remotes| remotes.borrow().clone()).unwrap_or_default()
    }

    /// A list, as `/v1/cluster` has it.
    pub(crate) fn show(&self) -> Value {
        self.all().iter().map(|(name, remote)| shown(name, remote)).collect()
    }
}

const PREFIX: &str = "cilium_operator_clustermesh_remote_cluster";

/// What one number is of a cluster.
type Figure = fn(&Remote) -> i64;

/// By the end of their names, as Cilium names them.
const FIGURES: [(&str, &str, Figure); 6] = [
    ("failures", "How often a cluster was lost", |one| number(one.failures)),
    ("last_failure_ts", "When, in seconds since 1970", |one| one.last_failure),
    ("readiness_status", "Whether everything was heard of it", |one| i64::from(one.ready)),
    ("cache_revocations", "How often its services were given up while it was away", |one| {
        number(one.revocations)
    }),
    ("services", "Its shared services", |one| number(one.counts.services)),
    ("service_exports", "Its exported services: none, as nobody here imports any", |_| 0),
];

fn number(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

impl Collector for Remotes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (all, name) = (self.all(), format!("{PREFIX}s"));
        let clusters =
            encoder.encode_descriptor(&name, "Other clusters", None, MetricType::Gauge)?;
        ConstGauge::new(number(all.len())).encode(clusters)?;
        for (name, help, figure) in FIGURES {
            let name = format!("{PREFIX}_{name}");
            let mut each = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (cluster, remote) in &all {
                let labels = [("target_cluster", cluster.as_str())];
                ConstGauge::new(figure(remote)).encode(each.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
