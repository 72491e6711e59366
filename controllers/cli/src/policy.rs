//! `cilia policy`.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use cilia_policy::{Config, Parsed};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::output::{Format, items, text};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The policies in use
    Get,
    /// Checks policies in a file (- for standard input) as the agent does
    Validate {
        /// YAML or JSON, one object or several
        file: String,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Get => {
            let answer = agent.get("/v1/policy").await?;
            if let Some(format) = format {
                format.print(&answer)?;
            } else {
                println!("{}\nRevision: {}", text(&answer["policy"]), text(&answer["revision"]));
                for fault in items(&answer["faults"]) {
                    println!("Not used: {}: {}", text(&fault["policy"]), text(&fault["fault"]));
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Validate { file } => validate(file, format),
    }
}

fn validate(file: &str, format: Option<&Format>) -> anyhow::Result<ExitCode> {
    let content = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("read {file}"))?
    };
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&content).with_context(|| format!("read {file}"))?;
    let checked: Vec<Checked> =
        objects.iter().filter(|object| !object.is_null()).map(check).collect();
    if checked.is_empty() {
        bail!("{file} has no policy");
    }
    let valid = checked.iter().all(|one| one.fault.is_none());
    if let Some(format) = format {
        let show = |one: &Checked| json!({"policy": one.name, "valid": one.fault.is_none(), "fault": one.fault, "notes": one.notes});
        format.print(&checked.iter().map(show).collect())?;
    } else {
        for one in &checked {
            match &one.fault {
                Some(fault) => println!("{}: invalid: {fault}", one.name),
                None => println!("{}: valid", one.name),
            }
            one.notes.iter().for_each(|note| println!("  note: {note}"));
        }
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Checked {
    name: String,
    fault: Option<String>,
    notes: Vec<String>,
}

/// Checks one object.
fn check(object: &Value) -> Checked {
    let kind = text(&object["kind"]);
    let (namespace, name) =
        (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let name = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
    let config = Config::default();
    let parsed = match kind.as_str() {
        "CiliumNetworkPolicy" => {
            read(object).and_then(|policy| parsed(cilia_policy::cilium(&policy, &config)))
        }
        "CiliumClusterwideNetworkPolicy" => {
            read(object).and_then(|policy| parsed(cilia_policy::clusterwide(&policy, &config)))
        }
        "NetworkPolicy" => {
            read(object).and_then(|policy| parsed(cilia_policy::kubernetes(&policy, &config)))
        }
        _ => Err(
            "kind: it is not CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy or NetworkPolicy"
                .into(),
        ),
    };
    let name = format!("{kind} {name}");
    match parsed {
        Ok(parsed) => Checked {
            name,
            fault: None,
            notes: parsed.notes.iter().map(ToString::to_string).collect(),
        },
        Err(fault) => Checked { name, fault: Some(fault), notes: Vec::new() },
    }
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    serde_json::from_value(object.clone()).map_err(|error| error.to_string())
}

fn parsed(result: Result<Parsed, cilia_policy::Error>) -> Result<Parsed, String> {
    result.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::check;
    use serde_json::{Value, json};

    fn fault(spec: &Value) -> Option<String> {
        check(&json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "p", "namespace": "shop"}, "spec": spec})).fault
    }

    #[test]
    fn says_what_the_agent_would_say() {
        assert_eq!(fault(&json!({"endpointSelector": {}, "ingress": [{}]})), None);
        let unknown =
            fault(&json!({"endpointSelector": {}, "ingress": [{"fromEntities": ["moon"]}]}));
        assert!(unknown.expect("an unknown entity").contains("moon"));
        let port = fault(
            &json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": "70000"}]}]}]}),
        );
        assert!(port.expect("a bad port").starts_with("spec.ingress[0].toPorts[0].ports[0].port"));
        assert!(check(&json!({"kind": "Pod"})).fault.is_some());
    }
}
