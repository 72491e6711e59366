//! `cilia config`.

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Map, Value, json};

use crate::agent::Agent;
use crate::output::{Format, text};

/// With `NAME=VALUE` the agent is asked to change an option; with `get NAME` or a part of a name
/// only some are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// OPTION=VALUE..., or get NAME, or a part of a name
    words: Vec<String>,
    /// Settings that have no value too
    #[arg(short, long)]
    all: bool,
}

pub(crate) async fn run(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    if !words.is_empty() && words.iter().all(|word| word.contains('=')) {
        let pairs = words.iter().filter_map(|word| word.split_once('='));
        let options: Map<String, Value> =
            pairs.map(|(name, value)| (name.to_owned(), value.into())).collect();
        agent.change(Method::PATCH, "/v1/config", Some(&json!({"options": options}))).await?;
        return Ok(());
    }
    let answer = agent.get("/v1/config").await?;
    let settings = answer["status"]["daemonConfigurationMap"].as_object();
    let options = answer["status"]["realized"]["options"].as_object();
    let part = match words.as_slice() {
        [] => None,
        ["get", name] => {
            let found = settings.and_then(|all| all.get(*name));
            let found = found.or_else(|| options.and_then(|all| all.get(*name)));
            let value = found.with_context(|| {
                format!("there is no setting {name}; cilia config --all lists them")
            })?;
            match format {
                Some(format) => format.print(value)?,
                None => println!("{name:<34}: {}", text(value)),
            }
            return Ok(());
        }
        [part] => Some(*part),
        _ => bail!("use OPTION=VALUE..., get NAME, or a part of a name"),
    };
    if let Some(format) = format {
        return format.print(&answer);
    }
    let wanted = |(name, value): &(&String, &Value)| match part {
        Some(part) => name.contains(part),
        None => arguments.all || !text(value).is_empty(),
    };
    let block = |title: &str, settings: Option<&Map<String, Value>>| {
        println!("#### {title} configurations ####");
        for (name, value) in settings.into_iter().flatten().filter(wanted) {
            println!("{name:<34}: {}", text(value));
        }
    };
    block("Read-only", settings);
    println!();
    block("Read-write", options);
    Ok(())
}
