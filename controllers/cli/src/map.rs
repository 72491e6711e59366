//! `cilia map`: the kernel's maps as such.

use std::process::ExitCode;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::access::{Access, Reach};
use crate::agent::{Agent, segment};
use crate::monitor::Lines;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All maps
    #[command(alias = "ls")]
    List,
    /// What a map holds
    Get {
        /// Its name
        name: String,
    },
    /// What changes in a map, from now on
    Events {
        /// Its name
        name: String,
        /// It is followed anyway: what was before is not kept
        #[arg(short, long)]
        follow: bool,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    match command {
        Command::List => {
            let maps = agent.get("/v1/map").await?;
            match format {
                Some(format) => format.print(&maps["maps"])?,
                None => list(items(&maps["maps"])).print(),
            }
        }
        Command::Get { name } => {
            let map = agent.find(&format!("/v1/map/{}", segment(name))).await?;
            let map = map.with_context(|| format!("there is no map {name}; see cilia map list"))?;
            match format {
                Some(format) => format.print(&map)?,
                None if items(&map["cache"]).is_empty() => println!("Cache is empty\n"),
                None => get(items(&map["cache"])).print(),
            }
        }
        // They never end: not an answer that could be put together with others.
        Command::Events { .. } => {}
    }
    Ok(())
}

/// Shows what changes in a map of one agent, or of each of several, until all of them have ended.
pub(crate) async fn events(
    access: &Access,
    name: &str,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    let reach = access.reach().await?;
    let named = matches!(reach, Reach::There(_)) && access.node.is_none();
    let agents = access.agents(&reach).await?;
    let follow = agents.iter().map(async |agent| {
        let node = if named { agent.name() } else { String::new() };
        let told = |error: anyhow::Error| if named { error.context(node.clone()) } else { error };
        follow(agent, &node, name, format).await.map_err(told)
    });
    let mut follow: FuturesUnordered<_> = follow.collect();
    let all = async {
        let mut code = ExitCode::SUCCESS;
        while let Some(ended) = follow.next().await {
            if let Err(error) = ended {
                eprintln!("{error:#}");
                code = ExitCode::FAILURE;
            }
        }
        code
    };
    tokio::select! {
        code = all => Ok(code),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}

async fn follow(
    agent: &Agent,
    node: &str,
    name: &str,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let mut body = agent.stream(&format!("/v1/map/{}/events", segment(name))).await?;
    let mut lines = Lines::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("the agent ended the connection")?.into_data() else {
            continue;
        };
        for line in lines.add(&data) {
            let Ok(mut event @ Value::Object(_)) = serde_json::from_slice(&line) else { continue };
            match format {
                None if node.is_empty() => println!("{}", said(&event)),
                None => println!("{node}: {}", said(&event)),
                Some(format) => {
                    if !node.is_empty() {
                        event["node"] = node.into();
                    }
                    match format {
                        Format::Json => println!("{event}"),
                        format => format.print(&event)?,
                    }
                }
            }
        }
    }
    Ok(())
}

fn list(maps: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["Name", "Num entries", "Num errors", "Cache enabled"]);
    for map in maps {
        table.row([
            text(&map["name"]),
            text(&map["num-entries"]),
            text(&map["num-errors"]),
            text(&map["cache-enabled"]),
        ]);
    }
    table
}

fn get(entries: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["Key", "Value", "State", "Error"]);
    for entry in entries {
        table.row(["key", "value", "desired-action", "last-error"].map(|name| text(&entry[name])));
    }
    table
}

fn said(event: &Value) -> String {
    let [time, action, key, value] =
        ["timestamp", "action", "key", "value"].map(|name| text(&event[name]));
    format!(
        "key=\"{key}\" value=\"{value}\" time={time} action={action} desiredState=sync lastError=\"\""
    )
}

#[cfg(test)]
mod tests {
    use super::{get, list};
    use serde_json::json;

    #[test]
    fn tables_of_maps() {
        let map =
            json!({"name": "cilium_lxc", "num-entries": 4, "num-errors": 0, "cache-enabled": true});
        let want = "Name         Num entries   Num errors   Cache enabled\n\
                    cilium_lxc   4             0            true\n";
        assert_eq!(list(&[map]).render(), want);
        let entry = json!({"key": "10.0.0.1/32", "value": "identity=2", "desired-action": "sync", "last-error": ""});
        let want = "Key           Value        State   Error\n10.0.0.1/32   identity=2   sync\n";
        assert_eq!(get(&[entry]).trimmed(), want);
    }
}
