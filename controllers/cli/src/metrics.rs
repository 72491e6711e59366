//! `cilia metrics`.

use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All metrics of the agent
    List {
        /// Only metrics whose name has this in it
        #[arg(short = 'p', long = "match-pattern", value_name = "TEXT")]
        pattern: Option<String>,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List { pattern } = command;
    let metrics = agent.get("/v1/metrics").await?;
    let wanted = |metric: &&Value| {
        pattern.as_ref().is_none_or(|part| text(&metric["name"]).contains(part.as_str()))
    };
    let metrics: Vec<Value> = items(&metrics).iter().filter(wanted).cloned().collect();
    if let Some(format) = format {
        return format.print(&Value::Array(metrics));
    }
    let mut table = Table::new(5);
    table.row(["Metric", "Labels", "Value"]);
    for metric in &metrics {
        let labels = metric["labels"].as_object().into_iter().flatten();
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}={:?}", text(value))).collect();
        table.row([
            text(&metric["name"]),
            labels.join(" "),
            format!("{:.6}", metric["value"].as_f64().unwrap_or(0.0)),
        ]);
    }
    table.print();
    Ok(())
}
