//! `cilia encrypt` and `cilia bgp`: what the agent says of parts that may be off.

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Encrypt {
    /// Whether packets between nodes are encrypted
    Status,
}

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Bgp {
    /// Peers and their sessions
    Peers,
    /// Routes of peers
    Routes,
    /// What is announced to whom
    RoutePolicies,
}

pub(crate) async fn encrypt(
    agent: &Agent,
    command: &Encrypt,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Encrypt::Status = command;
    let status = agent.get("/v1/healthz").await?;
    let encryption = &status["encryption"];
    if let Some(format) = format {
        return format.print(encryption);
    }
    println!("Encryption: {}", text(&encryption["mode"]));
    Ok(())
}

pub(crate) async fn bgp(
    agent: &Agent,
    command: &Bgp,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let path = match command {
        Bgp::Peers => "/v1/bgp/peers",
        Bgp::Routes => "/v1/bgp/routes",
        Bgp::RoutePolicies => "/v1/bgp/route-policies",
    };
    let answer = agent.get(path).await?;
    if let Some(format) = format {
        return format.print(&answer);
    }
    let mut table = Table::new(5);
    for entry in items(&answer) {
        table.row(entry.as_object().into_iter().flatten().map(|(_, value)| text(value)));
    }
    table.print();
    Ok(())
}
