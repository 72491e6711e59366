//! The agent: one for each node, it turns the cluster's objects into what its node's kernel does.
#![forbid(unsafe_code)]

mod api;
mod clustermesh;
mod cni;
mod config;
mod conntrack;
mod device;
mod endpoint;
mod events;
mod identity;
mod ipam;
mod ipcache;
mod kvstore;
mod node;
mod policy;
mod readiness;
mod service;
mod socket;
mod wiring;

use std::process::ExitCode;

use cilia_runtime::config::Start;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::{logging, shutdown};

/// The agent waits much and computes little: more threads would only hold more memory.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    shutdown::exit_code("cilia-agent", run().await)
}

async fn run() -> anyhow::Result<()> {
    let flags = match config::program().start(std::env::args().skip(1), std::env::vars())? {
        Start::Print(text) => {
            print!("{text}");
            return Ok(());
        }
        Start::Run(flags) => *flags,
    };
    let metrics = Metrics::with_toggles("cilium", flags.strings("metrics"));
    logging::init(&flags, &metrics)?;
    let node = match std::env::var("K8S_NODE_NAME") {
        Ok(name) if !name.is_empty() => name,
        _ => nix::unistd::gethostname()?.to_string_lossy().into_owned(),
    };
    let settings = config::Settings::read(&node, &flags)?;
    wiring::run(flags, settings, metrics, shutdown::on_signal()?).await
}
