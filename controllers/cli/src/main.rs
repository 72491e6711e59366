//! The command line: asks the agent of this node, and shows the answer as Cilium's tools do.
#![forbid(unsafe_code)]

mod agent;
mod bpf;
mod config;
mod endpoint;
mod identity;
mod metrics;
mod monitor;
mod node;
mod policy;
mod service;
mod status;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use agent::Agent;
use cilia_cli::{output, table};
use output::Format;

/// Looks into the agent of this node: endpoints, identities, policies, maps, events.
#[derive(Debug, Parser)]
#[command(name = "cilia", version, disable_help_subcommand = true)]
struct Arguments {
    /// The agent's socket
    #[arg(
        short = 'H',
        long,
        global = true,
        env = "CILIUM_SOCK",
        default_value = "unix:///var/run/cilium/cilium.sock"
    )]
    host: String,
    /// Answer as json, yaml or jsonpath='{.path}'
    #[arg(short, long, global = true, value_name = "FORMAT")]
    output: Option<Format>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How the agent is
    Status(status::Arguments),
    /// Endpoints of this node
    #[command(subcommand)]
    Endpoint(endpoint::Command),
    /// Identities of the cluster
    #[command(subcommand)]
    Identity(identity::Command),
    /// Addresses and their identities
    #[command(subcommand)]
    Ip(identity::IpCommand),
    /// Nodes of the cluster
    #[command(subcommand)]
    Node(node::Command),
    /// Services and their backends
    #[command(subcommand)]
    Service(service::Command),
    /// Policies in use
    #[command(subcommand)]
    Policy(policy::Command),
    /// The kernel's maps
    #[command(subcommand)]
    Bpf(bpf::Command),
    /// Events as they happen
    Monitor(monitor::Arguments),
    /// The agent's settings
    Config(config::Arguments),
    /// The agent's metrics
    #[command(subcommand)]
    Metrics(metrics::Command),
    /// The version
    Version,
    /// A script that completes this command in a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { host, output, command } = arguments;
    let agent = Agent::new(&host)?;
    let format = output.as_ref();
    match command {
        Command::Status(arguments) => return status::run(&agent, &arguments, format).await,
        Command::Endpoint(command) => endpoint::run(&agent, &command, format).await?,
        Command::Identity(command) => identity::run(&agent, &command, format).await?,
        Command::Ip(command) => identity::run_ip(&agent, &command, format).await?,
        Command::Node(command) => node::run(&agent, &command, format).await?,
        Command::Service(command) => service::run(&agent, &command, format).await?,
        Command::Policy(command) => return policy::run(&agent, &command, format).await,
        Command::Bpf(command) => bpf::run(&agent, &command, format).await?,
        Command::Monitor(arguments) => monitor::run(&agent, &arguments).await?,
        Command::Config(arguments) => config::run(&agent, &arguments, format).await?,
        Command::Metrics(command) => metrics::run(&agent, &command, format).await?,
        Command::Version => {
            println!("Client: {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        }
        Command::Completion { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "cilia",
                &mut std::io::stdout(),
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
