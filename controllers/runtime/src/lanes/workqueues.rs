//! Shows the queues under client-go's `workqueue_*` metrics.
//!
//! Two families, as dashboards know them: `<prefix>_workqueue_*` by `queue_name` (the operator's)
//! and `cilium_k8s_workqueue_*` by `name`. Each lane is a queue.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::metrics::Metrics;

const OPERATOR_BUCKETS: [f64; 9] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// The `workqueue_*` metrics of a process; cheap to clone.
#[derive(Debug, Clone)]
pub struct Workqueues(Arc<Queues>);

/// How a queue is now, asked at each scrape.
pub(super) trait Probe: std::fmt::Debug + Send + Sync {
    /// Keys that are ready, and when the runs under way began.
    fn look(&self, now: Instant) -> (usize, Vec<Instant>);
}

#[derive(Debug)]
struct Queues {
    /// Metric prefix and label name of each family.
    families: Vec<(String, &'static str)>,
    queues: Mutex<Vec<Queue>>,
}

#[derive(Debug)]
struct Queue {
    name: &'static str,
    counts: Arc<Counts>,
    probe: Box<dyn Probe>,
}

/// What is counted about one queue.
#[derive(Debug)]
pub(super) struct Counts {
    adds: Counter,
    retries: Counter,
    /// One pair per family: its buckets differ.
    durations: Vec<(Histogram, Histogram)>,
}

impl Workqueues {
    /// Registers the families at `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let mut families = vec![("cilium_k8s_workqueue".into(), "name")];
        if metrics.prefix() != "cilium" {
            families.push((format!("{}_workqueue", metrics.prefix()), "queue_name"));
        }
        let queues = Arc::new(Queues { families, queues: Mutex::default() });
        metrics.register_collector(Box::new(queues.clone()));
        Self(queues)
    }

    pub(super) fn queue(&self, name: &'static str, probe: Box<dyn Probe>) -> Arc<Counts> {
        let durations = self.0.families.iter().map(|(_, label)| {
            let histogram = || match *label {
                "name" => Histogram::new(exponential_buckets(1e-8, 10.0, 10)),
                _ => Histogram::new(OPERATOR_BUCKETS),
            };
            (histogram(), histogram())
        });
        let counts = Arc::new(Counts {
            adds: Counter::default(),
            retries: Counter::default(),
            durations: durations.collect(),
        });
        let mut queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|other| other.name != name);
        queues.push(Queue { name, counts: counts.clone(), probe });
        counts
    }
}

impl Counts {
    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn taken(&self, queued: Duration) {
        for (queue, _) in &self.durations {
            queue.observe(queued.as_secs_f64());
        }
    }

    pub(super) fn finished(&self, worked: Duration) {
        for (_, work) in &self.durations {
            work.observe(worked.as_secs_f64());
        }
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let now = tokio::time::Instant::now().into_std();
        let looks: Vec<(usize, f64, f64)> = queues
            .iter()
            .map(|queue| {
                let (depth, running) = queue.probe.look(now);
                let seconds = |at: &Instant| now.saturating_duration_since(*at).as_secs_f64();
                let total = running.iter().map(seconds).fold(0.0, |sum, run| sum + run);
                (depth, total, running.iter().map(seconds).fold(0.0, f64::max))
            })
            .collect();
        for (at, (prefix, label)) in self.families.iter().enumerate() {
            let mut family =
                |name: &str,
                 help: &str,
                 kind: MetricType,
                 metric: &dyn Fn(usize) -> Box<dyn EncodeMetric>| {
                    let name = format!("{prefix}_{name}");
                    let mut encoder = encoder.encode_descriptor(&name, help, None, kind)?;
                    for (index, queue) in queues.iter().enumerate() {
                        metric(index).encode(encoder.encode_family(&[(*label, queue.name)])?)?;
                    }
                    Ok::<(), std::fmt::Error>(())
                };
            let gauge = |value: f64| -> Box<dyn EncodeMetric> { Box::new(ConstGauge::new(value)) };
            let counter = |counter: &Counter| -> Box<dyn EncodeMetric> {
                Box::new(ConstCounter::new(counter.get()))
            };
            let counts = |index: usize| &queues[index].counts;
            #[expect(clippy::cast_precision_loss, reason = "a depth is far below 2^52")]
            let depth = |index: usize| gauge(looks[index].0 as f64);
            family("depth", "Keys that are ready", MetricType::Gauge, &depth)?;
            family("adds", "Keys added", MetricType::Counter, &|i| counter(&counts(i).adds))?;
            family("queue_duration_seconds", "From ready to taken", MetricType::Histogram, &|i| {
                Box::new(counts(i).durations[at].0.clone())
            })?;
            family("work_duration_seconds", "Length of runs", MetricType::Histogram, &|i| {
                Box::new(counts(i).durations[at].1.clone())
            })?;
            family(
                "unfinished_work_seconds",
                "Sum of the runs under way",
                MetricType::Gauge,
                &|i| gauge(looks[i].1),
            )?;
            let longest = |index: usize| gauge(looks[index].2);
            family(
                "longest_running_processor_seconds",
                "Longest run under way",
                MetricType::Gauge,
                &longest,
            )?;
            family("retries", "Failed runs that are retried", MetricType::Counter, &|i| {
                counter(&counts(i).retries)
            })?;
        }
        Ok(())
    }
}
