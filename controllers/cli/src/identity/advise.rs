//! `cilia identity advise`: which labels make identities multiply, and the setting that leaves them out.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Advice, Saving, advise};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::access::{Access, Reach};
use crate::agent::Agent;
use crate::output::{Format, items};
use crate::table::Table;

/// Identities asked for at once.
const PAGE: u32 = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Identities from this file, as `kubectl get ciliumidentities -o json` (or yaml) writes them; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Show so many labels
    #[arg(long, default_value_t = 10)]
    top: usize,
}

pub(crate) async fn run(
    access: &Access,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let identities = match &arguments.file {
        Some(file) => of_file(file)?,
        None => match access.reach().await? {
            Reach::Here(agent) => of_agent(&agent).await?,
            Reach::There(cluster) => of_cluster(&cluster.client).await?,
        },
    };
    let mut advice = advise(identities.iter());
    advice.savings.truncate(arguments.top);
    if let Some(format) = format {
        return format.print(&as_json(&advice));
    }
    print!("{}", show(&advice));
    Ok(())
}

fn of_file(file: &PathBuf) -> anyhow::Result<Vec<Labels>> {
    let (mut content, name) = (String::new(), file.display());
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut content).context("read standard input")?;
    } else {
        content = std::fs::read_to_string(file).with_context(|| format!("read {name}"))?;
    }
    parse(&content).with_context(|| format!("read identities from {name}"))
}

/// The labels of the `CiliumIdentities` in a text: a list, or one or several objects.
fn parse(content: &str) -> anyhow::Result<Vec<Labels>> {
    let documents: Vec<Value> = match serde_json::from_str(content) {
        Ok(document) => vec![document],
        Err(_) => serde_saphyr::from_multiple(content).context("it is neither JSON nor YAML")?,
    };
    let mut found = Vec::new();
    for document in documents {
        let one = [document.clone()];
        let objects = document.get("items").map_or(&one[..], |list| items(list));
        for object in objects {
            let Some(labels) = object.get("security-labels") else { continue };
            let labels = serde_json::from_value(labels.clone()).context("security-labels")?;
            found.push(Labels::from_security_labels(&labels));
        }
    }
    if found.is_empty() {
        bail!("there is no CiliumIdentity in it");
    }
    Ok(found)
}

async fn of_agent(agent: &Agent) -> anyhow::Result<Vec<Labels>> {
    let identities = agent.get("/v1/identity").await?;
    let allocated = items(&identities).iter().filter(|identity| {
        identity["id"].as_u64() >= Some(NumericIdentity::FIRST_ALLOCATED.0.into())
    });
    Ok(allocated.map(|identity| of_names(items(&identity["labels"]))).collect())
}

/// Labels as an agent says them: `source:key=value`.
fn of_names(names: &[Value]) -> Labels {
    let mut labels = Labels::new();
    for name in names.iter().filter_map(Value::as_str) {
        let (name, value) = name.split_once('=').unwrap_or((name, ""));
        let (source, key) = name.split_once(':').unwrap_or(("", name));
        labels.insert(source, key, value);
    }
    labels
}

async fn of_cluster(client: &Client) -> anyhow::Result<Vec<Labels>> {
    let api: Api<CiliumIdentity> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await.context("list CiliumIdentities")?;
        found.extend(page.items.iter().map(CiliumIdentity::labels));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

fn as_json(advice: &Advice) -> Value {
    let one = |saving: &Saving| {
        json!({
            "labels": saving.keys.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "values": saving.values,
            "identities": saving.without,
            "saved": advice.identities - saving.without,
            "namespace": saving.namespace,
            "setting": saving.setting(),
        })
    };
    json!({
        "identities": advice.identities,
        "without": advice.savings.iter().map(one).collect::<Vec<_>>(),
        "together": advice.together.as_ref().map(one),
    })
}

fn show(advice: &Advice) -> String {
    let mut text = format!("{} identities\n", advice.identities);
    if advice.savings.is_empty() {
        return text
            + "Each label is needed to tell them apart: none can be left out to save any.\n";
    }
    let mut table = Table::new(5);
    table.row(["WITHOUT LABEL", "VALUES", "IDENTITIES", "SAVED", "MOSTLY IN", "ADD TO labels"]);
    for saving in &advice.savings {
        let mut settings = saving.setting();
        let rules: Vec<String> = settings.split(' ').map(str::to_owned).collect();
        for (place, key) in saving.keys.iter().enumerate() {
            settings = rules.get(place).cloned().unwrap_or_default();
            let row = if place == 0 {
                let saved = (advice.identities - saving.without).to_string();
                let (values, without) = (saving.values.to_string(), saving.without.to_string());
                [key.to_string(), values, without, saved, saving.namespace.clone(), settings]
            } else {
                let none = String::new;
                [format!("and {key}"), none(), none(), none(), none(), settings]
            };
            table.row(row);
        }
    }
    text += &table.trimmed();
    let worth = advice.together.as_ref().or_else(|| advice.first());
    if let Some(saving) = worth {
        // Writing to a text can't fail.
        let _ = write!(
            text,
            "\nWorth it: with\n  labels: '{}'\nbehind what the setting labels says already, {} identities would do.\n\
             No policy may select by these labels then.\n",
            saving.setting(),
            saving.without,
        );
    } else {
        text += "\nNone of it is worth a setting.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use cilia_identity::advise;
    use serde_json::{Value, json};

    use super::{as_json, of_names, parse, show};

    fn identities() -> Value {
        let one = |run: u32| {
            let labels = json!({
                "k8s:app": "report", "k8s:io.kubernetes.pod.namespace": "batch", "k8s:job-name": format!("r{run}"),
            });
            json!({"kind": "CiliumIdentity", "metadata": {"name": "1"}, "security-labels": labels})
        };
        json!({"kind": "List", "items": (0..50).map(one).collect::<Vec<_>>()})
    }

    #[test]
    fn a_dump_is_advised_on() {
        let dump = identities();
        let sets = parse(&dump.to_string()).expect("a dump");
        let advice = advise(sets.iter());
        let text = show(&advice);
        for part in
            ["50 identities\n", "k8s:job-name", "labels: 'k8s:!job-name$'", "1 identities would do"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        let shown = as_json(&advice);
        assert_eq!(shown["without"][0]["saved"], 49);
        assert_eq!(
            (&shown["without"][0]["setting"], &shown["together"]),
            (&json!("k8s:!job-name$"), &Value::Null)
        );

        let yaml = "kind: CiliumIdentity\nsecurity-labels: {\"k8s:app\": web}\n---\nkind: Pod\n";
        assert_eq!(parse(yaml).expect("YAML")[0].canonical(), "k8s:app=web;");
        for nothing in ["kind: Pod", "{}", "a: [", ""] {
            assert!(parse(nothing).is_err(), "{nothing}");
        }
        let said = [json!("k8s:app=a=b"), json!("reserved:host")];
        assert_eq!(of_names(&said).canonical(), "k8s:app=a=b;reserved:host=;");
    }
}
