//! What a benchmark of slices measured, and how it is shown.

use serde::Serialize;

/// The figures of one operator.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The name given to it on the command line.
    pub(crate) operator: String,
    /// From nothing to every endpoint in a slice.
    pub(crate) cold: Cold,
    /// Killed and started again with nothing to do.
    pub(crate) restart: Restart,
    /// Under a storm of changes.
    pub(crate) churn: Churn,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Cold {
    pub(crate) seconds: f64,
    pub(crate) in_slices: usize,
    pub(crate) slices: usize,
    pub(crate) writes: usize,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mib: f64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Restart {
    pub(crate) writes: usize,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mib: f64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Churn {
    pub(crate) standard: Latency,
    pub(crate) priority: Latency,
    /// From the request to the API server's answer to it: what of `priority` is not the operator's.
    pub(crate) priority_answer: Latency,
    pub(crate) missing: usize,
    pub(crate) changes: usize,
    pub(crate) writes: usize,
    pub(crate) drained_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_mib: f64,
}

/// Create-to-slice times, in seconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Latency {
    /// The quantiles of `seconds`, nearest rank.
    pub(crate) fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let n = seconds.len();
        let rank = |percent: usize| seconds.get((n * percent / 100).min(n.saturating_sub(1)));
        let at = |percent| rank(percent).copied().unwrap_or_default();
        Self { n, p50: at(50), p99: at(99) }
    }
}

/// One row a figure, one column an operator.
pub(crate) fn print_table(reports: &[Report]) {
    type Figure = (&'static str, fn(&Report) -> String);
    let rows: &[Figure] = &[
        ("", |r| r.operator.clone()),
        ("cold: seconds", |r| format!("{:.2}", r.cold.seconds)),
        ("cold: in slices", |r| format!("{} in {}", r.cold.in_slices, r.cold.slices)),
        ("cold: slice writes", |r| r.cold.writes.to_string()),
        ("cold: CPU seconds", |r| format!("{:.2}", r.cold.cpu_seconds)),
        ("cold: peak MiB", |r| format!("{:.1}", r.cold.peak_mib)),
        ("restart: slice writes", |r| r.restart.writes.to_string()),
        ("restart: CPU seconds", |r| format!("{:.2}", r.restart.cpu_seconds)),
        ("restart: peak MiB", |r| format!("{:.1}", r.restart.peak_mib)),
        ("churn: standard p50 / p99 s", |r| pair(&r.churn.standard)),
        ("churn: priority p50 / p99 s", |r| pair(&r.churn.priority)),
        ("churn: its create's answer", |r| pair(&r.churn.priority_answer)),
        ("churn: never seen", |r| r.churn.missing.to_string()),
        ("churn: writes for changes", |r| format!("{} for {}", r.churn.writes, r.churn.changes)),
        ("churn: drained after s", |r| format!("{:.1}", r.churn.drained_seconds)),
        ("churn: CPU seconds", |r| format!("{:.2}", r.churn.cpu_seconds)),
        ("churn: MiB", |r| format!("{:.1}", r.churn.rss_mib)),
    ];
    for (name, figure) in rows {
        print!("{name:<30}");
        for report in reports {
            print!("{:>22}", figure(report));
        }
        println!();
    }
}

fn pair(latency: &Latency) -> String {
    format!("{:.3} / {:.3}", latency.p50, latency.p99)
}

#[cfg(test)]
mod tests {
    use super::Latency;

    #[test]
    fn quantiles_by_nearest_rank() {
        let latency = Latency::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((latency.n, latency.p50, latency.p99), (100, 51.0, 100.0));
        assert_eq!(Latency::of(Vec::new()).n, 0);
    }
}
