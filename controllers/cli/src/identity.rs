//! `cilia identity`.

pub(crate) mod advise;

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All identities, or those with all of these labels
    #[command(alias = "ls")]
    List {
        /// Labels such as k8s:app=web
        labels: Vec<String>,
        /// Only those of this node's endpoints, with how many have them
        #[arg(long)]
        endpoints: bool,
    },
    /// One identity, or those with all of these labels
    Get {
        /// Its number
        #[arg(required_unless_present = "labels")]
        id: Option<u32>,
        /// Labels such as k8s:app=web
        #[arg(
            short,
            long = "label",
            alias = "labels",
            value_delimiter = ',',
            conflicts_with = "id"
        )]
        labels: Vec<String>,
    },
    /// Which labels make identities multiply, and the setting that leaves them out
    Advise(advise::Arguments),
}

/// The labels of every identity, by number.
pub(crate) async fn labels(agent: &Agent) -> anyhow::Result<BTreeMap<u64, Vec<String>>> {
    let identities = agent.get("/v1/identity").await?;
    let one = |identity: &Value| {
        let mut labels: Vec<String> = items(&identity["labels"]).iter().map(text).collect();
        labels.sort_unstable();
        Some((identity["id"].as_u64()?, labels))
    };
    Ok(items(&identities).iter().filter_map(one).collect())
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let (identities, only) = match command {
        // That needs all identities, not an agent.
        Command::Advise(_) => return Ok(()),
        Command::List { labels, endpoints: true } => {
            return of_endpoints(agent, labels, format).await;
        }
        Command::List { labels, .. } | Command::Get { id: None, labels } => {
            (agent.get("/v1/identity").await?, labels.as_slice())
        }
        Command::Get { id: Some(id), .. } => {
            let identity = agent.find(&format!("/v1/identity/{id}")).await?;
            (Value::Array(vec![identity.with_context(|| format!("no identity {id}"))?]), &[][..])
        }
    };
    let selected = items(&identities).iter().filter(|identity| has_all(identity, only));
    let selected: Vec<Value> = selected.cloned().collect();
    if selected.is_empty() && matches!(command, Command::Get { .. }) {
        anyhow::bail!("no identity has all of these labels");
    }
    if let Some(format) = format {
        return format.print(&Value::Array(selected));
    }
    let mut table = Table::new(5);
    table.row(["ID", "LABELS"]);
    for identity in &selected {
        rows(
            &mut table,
            &[text(&identity["id"])],
            items(&identity["labels"]).iter().map(text).collect(),
        );
    }
    table.print();
    Ok(())
}

/// Identities of this node's endpoints.
async fn of_endpoints(
    agent: &Agent,
    only: &[String],
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let used = agent.get("/v1/identity/endpoints").await?;
    let selected: Vec<Value> =
        items(&used).iter().filter(|one| has_all(&one["identity"], only)).cloned().collect();
    if let Some(format) = format {
        return format.print(&Value::Array(selected));
    }
    let mut table = Table::new(5);
    table.row(["ID", "LABELS", "REFCOUNT"]);
    for one in &selected {
        let (number, count) = (text(&one["identity"]["id"]), text(&one["refCount"]));
        let mut labels = items(&one["identity"]["labels"]).iter().map(text);
        table.closed([number, labels.next().unwrap_or_default(), count]);
        for label in labels {
            table.closed([String::new(), label]);
        }
    }
    table.print();
    Ok(())
}

/// A label with its source; one without is Kubernetes'.
pub(crate) fn with_source(label: &str) -> String {
    if label.contains(':') { label.to_owned() } else { format!("k8s:{label}") }
}

/// Whether an identity has all of these labels.
fn has_all(identity: &Value, wanted: &[String]) -> bool {
    let of = items(&identity["labels"]);
    wanted.iter().all(|wanted| {
        let wanted = with_source(wanted);
        of.iter().any(|label| label.as_str() == Some(&wanted))
    })
}

/// A row with the first of `many` behind `first`, and a row for each further one.
pub(crate) fn rows<const N: usize>(table: &mut Table, first: &[String; N], many: Vec<String>) {
    let mut many = many.into_iter();
    table.row(first.iter().cloned().chain([many.next().unwrap_or_default()]));
    for one in many {
        table.row(std::iter::repeat_n(String::new(), N).chain([one]));
    }
}

#[cfg(test)]
mod tests {
    use super::has_all;
    use serde_json::json;

    #[test]
    fn labels_without_a_source_are_kubernetes() {
        let identity = json!({"id": 4711, "labels": ["k8s:app=web", "reserved:init"]});
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(has_all(&identity, &words(&["app=web", "reserved:init"])));
        assert!(!has_all(&identity, &words(&["app=web", "app=db"])));
        assert!(has_all(&identity, &[]));
    }
}
