//! `cilia version`.

use std::process::ExitCode;

use serde_json::json;

use crate::access::{Access, Reach, each};
use crate::output::{Format, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this program's
    #[arg(long)]
    client: bool,
}

pub(crate) async fn run(
    access: &Access,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    let client = format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    if arguments.client {
        match format {
            Some(format) => format.print(&json!({"client": client}))?,
            None => println!("Client: {client}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    if format.is_none() {
        println!("Client: {client}");
    }
    let reach = access.reach().await?;
    let one = matches!(reach, Reach::Here(_)) || access.node.is_some();
    let agents = access.agents(&reach).await?;
    each(&agents, one, format, ExitCode::FAILURE, async |agent, format| {
        let config = agent.get("/v1/config").await?;
        let daemon = text(&config["status"]["daemonVersion"]);
        match format {
            Some(format) => format.print(&json!({"client": client, "daemon": daemon}))?,
            None => println!("Daemon: {daemon}"),
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}
