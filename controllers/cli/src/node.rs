//! `cilia node`.

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All nodes
    #[command(alias = "ls")]
    List,
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List = command;
    let answer = agent.get("/v1/cluster/nodes").await?;
    let nodes = &answer["nodes-added"];
    if let Some(format) = format {
        return format.print(nodes);
    }
    let mut lines = Vec::new();
    for node in items(nodes) {
        let family = |name: &str| {
            let part = &node["primary-address"][name];
            [text(&part["ip"]), text(&part["alloc-range"])]
        };
        let ([ipv4, range4], [ipv6, range6]) = (family("ipv4"), family("ipv6"));
        lines.push([text(&node["name"]), ipv4, range4, ipv6, range6, text(&node["source"])]);
    }
    lines.sort();
    let mut table = Table::new(0);
    table.row(["Name", "IPv4 Address", "Endpoint CIDR", "IPv6 Address", "Endpoint CIDR", "Source"]);
    for line in lines {
        table.row(line);
    }
    table.print();
    Ok(())
}
