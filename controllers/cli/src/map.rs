//! `cilia map`: the kernel's maps as such.

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::agent::{Agent, segment};
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
        Command::Events { name } => {
            let mut body = agent.stream(&format!("/v1/map/{}/events", segment(name))).await?;
            let mut lines = crate::monitor::Lines::default();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.context("the agent ended the connection")?.into_data() else {
                    continue;
                };
                for line in lines.add(&data) {
                    let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                    match format {
                        Some(Format::Json) => println!("{event}"),
                        Some(format) => format.print(&event)?,
                        None => println!("{}", said(&event)),
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
        assert_eq!(get(&[entry]).render(), want);
    }
}
