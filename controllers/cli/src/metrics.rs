//! `cilia metrics`.

use regex::Regex;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All metrics of the agent
    #[command(alias = "ls")]
    List {
        /// Only metrics whose name matches this regular expression
        #[arg(short = 'p', long = "match-pattern", value_name = "REGEX", value_parser = Regex::new)]
        pattern: Option<Regex>,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List { pattern } = command;
    let metrics = agent.get("/v1/metrics").await?;
    let wanted =
        |metric: &&Value| pattern.as_ref().is_none_or(|p| p.is_match(&text(&metric["name"])));
    let metrics: Vec<Value> = items(&metrics).iter().filter(wanted).cloned().collect();
    if let Some(format) = format {
        return format.print(&Value::Array(metrics));
    }
    table(&metrics).print();
    Ok(())
}

fn table(metrics: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["Metric", "Labels", "Value"]);
    for metric in metrics {
        let labels = metric["labels"].as_object().into_iter().flatten();
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}={:?}", text(value))).collect();
        table.row([
            text(&metric["name"]),
            labels.join(" "),
            format!("{:.6}", metric["value"].as_f64().unwrap_or(0.0)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::table;
    use serde_json::json;

    #[test]
    fn metrics_in_columns() {
        let metrics = [
            json!({"name": "cilium_drop_count_total", "labels": {"direction": "EGRESS", "reason": "Policy denied"}, "value": 3.0}),
            json!({"name": "cilium_endpoint", "labels": {}, "value": 0.5}),
        ];
        let want = "\
Metric                    Labels                                      Value
cilium_drop_count_total   direction=\"EGRESS\" reason=\"Policy denied\"   3.000000
cilium_endpoint                                                       0.500000
";
        assert_eq!(table(&metrics).render(), want);
    }
}
