//! Benchmarks of Cilia, and of any program that does the same job, on this machine.
//!
//! Figures of two operators are comparable when they come from one run: the API server, the load
//! and the machine's mood are then the same. A table is for people, `--json` for programs.
#![forbid(unsafe_code)]

mod ces;
mod identities;
mod kvstore;
mod nodes;
mod operator;
mod policy;
mod report;
mod start;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cilia-bench", about = "Benchmarks on a local API server")]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// `CiliumEndpointSlices`: cold start, restart at rest, churn
    Ces(ces::Arguments),
    /// `CiliumIdentities`: memory, a run of the collector, new label sets
    Identities(identities::Arguments),
    /// The kvstore: another cluster's addresses, identities
    Kvstore(kvstore::Arguments),
    /// Addresses: until every node of a new cluster has its first range
    Nodes(nodes::Arguments),
    /// The policy core: start, changes, memory
    Policy(policy::Arguments),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().benchmark {
        Benchmark::Ces(arguments) => ces::run(arguments).await,
        Benchmark::Identities(arguments) => identities::run(arguments).await,
        Benchmark::Kvstore(arguments) => kvstore::run(&arguments).await,
        Benchmark::Nodes(arguments) => nodes::run(arguments).await,
        Benchmark::Policy(arguments) => policy::run(&arguments),
    }
}
