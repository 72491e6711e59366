//! `cilia endpoint`.

use anyhow::Context as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All endpoints of this node
    List {
        /// Leave the header out
        #[arg(long)]
        no_headers: bool,
    },
    /// One endpoint, by number or by a name such as pod-name:NAMESPACE/NAME
    Get {
        /// The endpoint
        id: String,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    match command {
        Command::List { no_headers } => {
            let mut endpoints = agent.get("/v1/endpoint").await?;
            if let Some(list) = endpoints.as_array_mut() {
                list.sort_by_key(|endpoint| endpoint["id"].as_u64());
            }
            if let Some(format) = format {
                return format.print(&endpoints);
            }
            list(items(&endpoints), !no_headers).print();
            Ok(())
        }
        Command::Get { id } => {
            let endpoint = agent.find(&format!("/v1/endpoint/{id}")).await?;
            let endpoint = endpoint.with_context(|| format!("no endpoint {id} on this node"))?;
            format.unwrap_or(&Format::Json).print(&Value::Array(vec![endpoint]))
        }
    }
}

fn list(endpoints: &[Value], headers: bool) -> Table {
    let mut table = Table::new(5);
    if headers {
        table.row([
            "ENDPOINT",
            "POLICY (ingress)",
            "POLICY (egress)",
            "IDENTITY",
            "LABELS (source:key[=value])",
            "IPv6",
            "IPv4",
            "STATUS",
        ]);
        table.row(["", "ENFORCEMENT", "ENFORCEMENT", "", "", "", "", ""]);
    }
    for endpoint in endpoints {
        let status = &endpoint["status"];
        let enabled = text(&status["policy"]["realized"]["policy-enabled"]);
        let policy = |direction: &str| match enabled.as_str() {
            "" | "unknown" => "Unknown",
            "both" => "Enabled",
            one if one == direction => "Enabled",
            _ => "Disabled",
        };
        let identity = match text(&status["identity"]["id"]) {
            none if none.is_empty() => "<no label id>".to_owned(),
            number => number,
        };
        let mut labels: Vec<String> =
            items(&status["identity"]["labels"]).iter().map(text).collect();
        labels.sort_unstable();
        if labels.is_empty() {
            labels.push("no labels".into());
        }
        let address = |family: &str| text(&status["networking"]["addressing"][0][family]);
        let mut labels = labels.into_iter();
        table.row([
            text(&endpoint["id"]),
            policy("ingress").to_owned(),
            policy("egress").to_owned(),
            identity,
            labels.next().unwrap_or_default(),
            address("ipv6"),
            address("ipv4"),
            text(&status["state"]),
        ]);
        for label in labels {
            table.row(["", "", "", "", &label, "", "", ""]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::list;
    use serde_json::json;

    #[test]
    fn a_label_in_a_row() {
        let endpoint = json!({"id": 12, "status": {"state": "ready",
            "identity": {"id": 4711, "labels": ["k8s:b=2", "k8s:a=1"]},
            "networking": {"addressing": [{"ipv4": "10.0.0.1", "ipv6": "fd00::1"}]},
            "policy": {"realized": {"policy-enabled": "ingress"}}}});
        let text = list(&[endpoint], false).render();
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[0],
            ["12", "Enabled", "Disabled", "4711", "k8s:a=1", "fd00::1", "10.0.0.1", "ready"]
        );
        assert_eq!(words[1], ["k8s:b=2"]);
    }
}
