//! The command that holds Cilia against the test suites of Kubernetes and of its policy API.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use cilia_e2e::Progress;
use cilia_e2e::conformance::{Verdict, faultless, kubernetes, policy_api, summary};
use cilia_e2e::scenario::Stage;
use clap::{Parser, ValueEnum};

/// Runs others' tests of network policies on a local cluster with the programs built last.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The cluster, which is started and removed (`CILIA_E2E_KEEP=1` keeps it).
    #[arg(long, default_value = "conformance", env = "CILIA_CLUSTER")]
    name: String,
    /// Only this suite.
    #[arg(long)]
    suite: Option<Chosen>,
    /// How many of Kubernetes' tests run side by side.
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Of Kubernetes' tests, those whose names contain one of these.
    words: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Chosen {
    /// Kubernetes' end-to-end tests of `NetworkPolicy`.
    NetworkPolicy,
    /// The standard conformance tests of `ClusterNetworkPolicy`.
    ClusterNetworkPolicy,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cilia-conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<bool> {
    let stage = Stage::set(&cli.name).await?;
    let verdicts = tokio::select! {
        verdicts = suites(&stage, &cli) => verdicts,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    stage.strike().await?;
    verdicts
}

/// Whether all tests passed.
async fn suites(stage: &Stage, cli: &Cli) -> Result<bool> {
    let progress = Progress::new();
    let mut passed = true;
    if cli.suite != Some(Chosen::ClusterNetworkPolicy) {
        let words: Vec<_> = cli.words.iter().map(String::as_str).collect();
        let verdicts =
            kubernetes::network_policy(&stage.cluster, &words, cli.processes, &progress).await?;
        passed &= tell("Kubernetes' tests of NetworkPolicy", &verdicts);
    }
    if cli.suite != Some(Chosen::NetworkPolicy) {
        let verdicts = policy_api::standard(stage, &progress).await?;
        passed &= tell("conformance tests of ClusterNetworkPolicy", &verdicts);
    }
    Ok(passed)
}

fn tell(title: &str, verdicts: &[Verdict]) -> bool {
    println!("\n{title}\n{}", summary(verdicts));
    faultless(verdicts)
}
