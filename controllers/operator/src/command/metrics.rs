//! `metrics list`: the metrics of a running operator.

use anyhow::Context as _;
use cilia_cli::output::{items, text};
use cilia_cli::table::Table;
use regex::Regex;
use serde_json::Value;

use super::{Api, client};

const COLUMN: usize = 5;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// All metrics
    List {
        /// Only metrics whose name this regular expression matches
        #[arg(short = 'p', long, value_name = "REGEXP")]
        match_pattern: Option<Regex>,
        #[command(flatten)]
        api: Api,
    },
}

pub(super) async fn run(command: &Command) -> anyhow::Result<()> {
    let Command::List { match_pattern, api } = command;
    let answer = client::get(&api.server_address, "/v1/metrics/").await;
    let metrics = select(&answer.context("cannot get metrics")?, match_pattern.as_ref());
    match &api.output {
        Some(format) => format.print(&Value::Array(metrics))?,
        None => print!("{}", table(&metrics)),
    }
    Ok(())
}

/// The metrics that a pattern matches.
pub(super) fn select(metrics: &Value, pattern: Option<&Regex>) -> Vec<Value> {
    let fits = |metric: &&Value| {
        pattern.is_none_or(|pattern| pattern.is_match(metric["name"].as_str().unwrap_or_default()))
    };
    items(metrics).iter().filter(fits).cloned().collect()
}

/// A line for each metric.
pub(super) fn table(metrics: &[Value]) -> String {
    let mut table = Table::new(COLUMN);
    table.row(["Metric", "Labels", "Value"]);
    for metric in metrics {
        let labels = metric["labels"].as_object().into_iter().flatten();
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}={:?}", text(value))).collect();
        let value = metric["value"].as_f64().unwrap_or_default();
        table.row([text(&metric["name"]), labels.join(" "), format!("{value:.6}")]);
    }
    table.render()
}
