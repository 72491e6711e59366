//! The operator: what the cluster needs once, done by the replica that leads.

mod clustermesh;
mod command;
mod config;
mod conflicts;
mod crd_registration;
mod endpoint_gc;
mod endpoint_slice;
mod failure;
mod features;
mod http;
mod identity;
mod identity_gc;
mod ipam;
mod kvstore;
mod lb_ipam;
mod listing;
#[cfg(test)]
mod metric_names;
mod node_gc;
mod node_taint;
mod policy_validation;
mod process;
#[cfg(test)]
mod scenarios;
mod shell;
#[cfg(test)]
mod trial;
mod unmanaged_pods;
mod wiring;

use std::process::ExitCode;

use cilia_runtime::config::Start;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::{logging, shutdown};

// One thread: its work is to wait for the API server, and more cost more memory than they save time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    shutdown::exit_code("cilia-operator", run().await)
}

async fn run() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if command::is_asked_for(&args) {
        return command::run(args).await;
    }
    let config = match config::program().start(args, std::env::vars())? {
        Start::Print(text) => {
            print!("{text}");
            return Ok(());
        }
        Start::Run(config) => *config,
    };
    if let Some(folder) = config.path("cmdref") {
        return command::write_reference(&folder);
    }
    let metrics = Metrics::new("cilium_operator");
    logging::init(&config, &metrics)?;
    metrics.count_groups(config.strings("controller-group-metrics"));
    config::check(&config)?;
    features::register(&config, &metrics);
    lb_ipam::register(&config, &metrics);
    process::run(config, metrics, shutdown::on_signal()?).await
}
