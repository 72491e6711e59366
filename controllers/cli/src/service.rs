//! `cilia service`.

use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All services that are balanced on this node
    List,
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List = command;
    let services = agent.get("/v1/service").await?;
    if let Some(format) = format {
        return format.print(&services);
    }
    let mut table = Table::new(5);
    table.row(["ID", "Frontend", "Service Type", "Backend"]);
    for service in items(&services) {
        let spec = &service["status"]["realized"];
        let backend = |(index, backend): (usize, &Value)| {
            format!("{} => {} ({})", index + 1, place(backend), text(&backend["state"]))
        };
        let backends = items(&spec["backend-addresses"]).iter().enumerate().map(backend).collect();
        let first =
            [text(&spec["id"]), place(&spec["frontend-address"]), text(&spec["flags"]["type"])];
        crate::identity::rows(&mut table, &first, backends);
    }
    table.print();
    Ok(())
}

/// `address:port/protocol`.
pub(crate) fn place(value: &Value) -> String {
    let (address, port, protocol) =
        (text(&value["ip"]), text(&value["port"]), text(&value["protocol"]));
    if address.contains(':') {
        format!("[{address}]:{port}/{protocol}")
    } else {
        format!("{address}:{port}/{protocol}")
    }
}
