//! Exposes metrics under exactly the names that dashboards know from Cilium.
//!
//! The encoder appends `_total` to every counter; some of Cilium's counters do not have it. So
//! names are given as they shall appear, and this registry adds or takes away the suffix.

mod groups;
mod process;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use groups::Groups;

/// The `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Prometheus' default histogram buckets, in seconds.
pub const DEFAULT_BUCKETS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics of a process; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    prefix: String,
    toggles: HashMap<String, bool>,
    state: Mutex<State>,
    groups: OnceLock<Groups>,
}

#[derive(Debug, Default)]
struct State {
    registry: Registry,
    /// Full names of counters that must appear without `_total`.
    bare: HashSet<String>,
}

impl Metrics {
    /// Metrics named `<prefix>_…`, with the metrics every process has.
    pub fn new(prefix: &str) -> Self {
        Self::with_toggles(prefix, &[])
    }

    /// Like [`Metrics::new`], with metrics switched on (`+full_name`) and off (`-full_name`), as the
    /// agent's `--metrics` says.
    pub fn with_toggles(prefix: &str, toggles: &[String]) -> Self {
        let toggles = toggles.iter().filter_map(|toggle| match toggle.split_at_checked(1) {
            Some(("+", name)) => Some((name.to_string(), true)),
            Some(("-", name)) => Some((name.to_string(), false)),
            _ => None,
        });
        let metrics = Self(Arc::new(Inner {
            prefix: prefix.into(),
            toggles: toggles.collect(),
            state: Mutex::default(),
            groups: OnceLock::new(),
        }));
        let version: Family<[(&str, &str); 3], Gauge> = Family::default();
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", ""),
            ("arch", std::env::consts::ARCH),
        ];
        version.get_or_create(&labels).set(1);
        metrics.register("version", "Version of the program", version);
        metrics.register_collector(Box::new(process::Process::new(prefix)));
        metrics
    }

    /// Registers a metric under its name as Cilium has it, without the prefix.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.register_as(&format!("{}_{name}", self.0.prefix), help, true, metric);
    }

    /// Registers a metric that is off unless it is switched on by name.
    pub fn register_off(&self, name: &str, help: &str, metric: impl Metric) {
        self.register_as(&format!("{}_{name}", self.0.prefix), help, false, metric);
    }

    /// Registers a metric under its full name, on or off unless it is switched by name.
    pub fn register_as(&self, full_name: &str, help: &str, on: bool, metric: impl Metric) {
        if !self.0.toggles.get(full_name).copied().unwrap_or(on) {
            return;
        }
        let is_counter = EncodeMetric::metric_type(&metric) == MetricType::Counter;
        let mut state = self.state();
        let stem = match full_name.strip_suffix("_total") {
            Some(stem) if is_counter => stem,
            _ => {
                if is_counter {
                    state.bare.insert(full_name.into());
                }
                full_name
            }
        };
        state.registry.register(stem, help, metric);
    }

    /// Registers something that encodes its metrics, with their full names, at each scrape.
    pub fn register_collector(&self, collector: Box<dyn Collector>) {
        self.state().registry.register_collector(collector);
    }

    /// Counts from now on the runs of the controller groups of these names (`controller-group-metrics`).
    pub fn count_groups(&self, names: &[String]) {
        let groups = Groups::new(names);
        let (any, runs) = (groups.any(), groups.runs());
        if self.0.groups.set(groups).is_ok() && any {
            let help = "Runs of controller groups, by outcome";
            self.register("controllers_group_runs_total", help, runs);
        }
    }

    /// A controller of this group has run, well or not.
    pub fn group_ran(&self, group: &'static str, well: bool) {
        if let Some(groups) = self.0.groups.get() {
            groups.ran(group, well);
        }
    }

    /// The prefix of these metrics.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        let state = self.state();
        let mut text = String::new();
        // Writing to a string cannot fail; a collector that gives up leaves its metrics out.
        let _ = prometheus_text::encode(&mut text, &state.registry);
        if state.bare.is_empty() { text } else { without_suffixes(&text, &state.bare) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn without_suffixes(text: &str, bare: &HashSet<String>) -> String {
    let mut result = String::with_capacity(text.len());
    for line in text.lines() {
        let start = if line.starts_with("# ") { "# HELP ".len() } else { 0 };
        let end = line[start..].find([' ', '{']).map_or(line.len(), |len| start + len);
        match line[start..end].strip_suffix("_total").filter(|stem| bare.contains(*stem)) {
            Some(stem) => {
                result.push_str(&line[..start]);
                result.push_str(stem);
                result.push_str(&line[end..]);
            }
            None => result.push_str(line),
        }
        result.push('\n');
    }
    result
}

#[cfg(test)]
mod tests {
    use super::Metrics;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;

    #[test]
    fn names_appear_as_given() {
        let metrics = Metrics::new("cilium_operator");
        let counter: Family<[(&str, &str); 1], Counter> = Family::default();
        metrics.register("ces_sync_total", "Syncs", counter.clone());
        metrics.register("endpoint_gc_objects", "Objects", counter.clone());
        counter.get_or_create(&[("outcome", "success")]).inc_by(3);
        let text = metrics.render();
        for line in [
            "# TYPE cilium_operator_ces_sync_total counter",
            "cilium_operator_ces_sync_total{outcome=\"success\"} 3",
            "# TYPE cilium_operator_endpoint_gc_objects counter",
            "cilium_operator_endpoint_gc_objects{outcome=\"success\"} 3",
            "# TYPE cilium_operator_process_resident_memory_bytes gauge",
            "# TYPE cilium_operator_process_cpu_seconds_total counter",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n--\n{text}");
        }
        assert!(text.contains("cilium_operator_version{version=\"0.1.0\""));
        assert!(!text.contains("objects_total"));
    }

    #[test]
    fn toggles_switch_by_full_name() {
        let toggles = ["-cilium_a_total".to_string(), "+cilium_b_total".into()];
        let metrics = Metrics::with_toggles("cilium", &toggles);
        for name in ["a_total", "c_total"] {
            metrics.register(name, "On unless switched off", Counter::<u64>::default());
        }
        for name in ["b_total", "d_total"] {
            metrics.register_off(name, "Off unless switched on", Counter::<u64>::default());
        }
        let text = metrics.render();
        let shown: Vec<bool> = ["a", "b", "c", "d"]
            .iter()
            .map(|n| text.contains(&format!("cilium_{n}_total 0")))
            .collect();
        assert_eq!(shown, [false, true, true, false]);
    }
}
