//! `status clustermesh`: the remote clusters of a running operator.

use std::fmt::Write as _;

use anyhow::Context as _;
use cilia_cli::output::{items, text};
use serde_json::Value;

use super::{Api, client};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Remote clusters
    Clustermesh {
        /// Show ready clusters, too
        #[arg(long)]
        verbose: bool,
        #[command(flatten)]
        api: Api,
    },
}

pub(super) async fn run(command: &Command) -> anyhow::Result<()> {
    let Command::Clustermesh { verbose, api } = command;
    let answer = client::get(&api.server_address, "/v1/cluster").await;
    let clusters = answer.context("cannot get the remote clusters")?;
    match &api.output {
        Some(format) => format.print(&clusters)?,
        None => print!("{}", show(items(&clusters), *verbose)),
    }
    Ok(())
}

/// The clusters as people read them; only those that are not ready unless `all` are asked for.
pub(super) fn show(clusters: &[Value], all: bool) -> String {
    let is_ready = |cluster: &Value| cluster["ready"] == true;
    let ready = clusters.iter().filter(|cluster| is_ready(cluster)).count();
    let mut shown = format!("{ready}/{} remote clusters ready\n", clusters.len());
    for cluster in clusters.iter().filter(|cluster| all || !is_ready(cluster)) {
        let number = |name: &str| cluster[name].as_u64().unwrap_or_default();
        let last = match text(&cluster["last-failure"]) {
            last if last.is_empty() || last.starts_with("0001-") => "never".to_owned(),
            last => last,
        };
        let _ = writeln!(
            shown,
            "   {}: {}, {} nodes, {} endpoints, {} identities, {} services, {} MCS-API service exports, \
             {} reconnections (last: {last})",
            text(&cluster["name"]),
            if is_ready(cluster) { "ready" } else { "not-ready" },
            number("num-nodes"),
            number("num-endpoints"),
            number("num-identities"),
            number("num-shared-services"),
            number("num-service-exports"),
            number("num-failures"),
        );
        let _ = writeln!(shown, "   └  {}", text(&cluster["status"]));
        let _ = writeln!(shown, "   └  remote configuration: {}", remote(&cluster["config"]));
        let synced = &cluster["synced"];
        let parts = ["nodes", "endpoints", "identities", "services", "service-exports"];
        let parts = parts.iter().filter_map(|part| Some(format!("{part}={}", synced.get(part)?)));
        let parts: Vec<String> = parts.collect();
        let _ = writeln!(shown, "   └  synchronization status: {}", parts.join(", "));
    }
    shown
}

fn remote(config: &Value) -> String {
    let flag = |name: &str| config[name] == true;
    let mut shown = format!("expected={}, retrieved={}", flag("required"), flag("retrieved"));
    if flag("retrieved") {
        let exports = match config.get("service-exports-enabled").and_then(Value::as_bool) {
            Some(true) => "enabled",
            Some(false) => "disabled",
            None => "unsupported",
        };
        let _ = write!(
            shown,
            ", cluster-id={}, kvstoremesh={}, sync-canaries={}, service-exports={exports}",
            config["cluster-id"],
            flag("kvstoremesh"),
            flag("sync-canaries"),
        );
    }
    shown
}
