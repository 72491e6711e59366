//! `cilia config`.

use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only settings whose name has this in it
    name: Option<String>,
    /// Settings that have no value too
    #[arg(short, long)]
    all: bool,
}

pub(crate) async fn run(
    agent: &Agent,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let answer = agent.get("/v1/config").await?;
    if let Some(format) = format {
        return format.print(&answer);
    }
    let settings = answer["status"]["daemonConfigurationMap"].as_object();
    let wanted = |name: &String, value: &Value| match &arguments.name {
        Some(part) => name.contains(part.as_str()),
        None => arguments.all || !text(value).is_empty(),
    };
    println!("#### Read-only configurations ####");
    for (name, value) in settings.into_iter().flatten().filter(|(name, value)| wanted(name, value))
    {
        println!("{name:<34}: {}", text(value));
    }
    Ok(())
}
