//! The command line: asks agents, on their node or through the cluster, and shows the answers as
//! Cilium's tools do.
#![forbid(unsafe_code)]

// `print!`, `println!` and `eprintln!` are those of the library: see its `output`.
#[macro_use]
extern crate cilia_cli;

mod absent;
mod access;
mod agent;
mod bpf;
mod build_config;
mod cluster;
mod config;
mod debuginfo;
#[cfg(test)]
mod documentation_tests;
mod endpoint;
mod feature;
mod identity;
mod ip;
mod kvstore;
mod map;
mod metrics;
mod monitor;
mod node;
#[cfg(test)]
mod noise_tests;
mod paint;
mod policy;
mod relay;
mod remote;
mod service;
mod settings;
mod status;
mod sysdump;
mod troubleshoot;
mod version;
#[cfg(test)]
mod workstation_tests;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use cilia_cli::{output, table};

use access::{Access, Reach, each};
use agent::{Agent, SOCKET};
use output::{Choice, Format};

/// Looks into Cilia's agents: endpoints, identities, policies, maps, events.
///
/// On a node, and in the agent's pod, it asks the agent there. Elsewhere it asks every agent of
/// the cluster that the kubeconfig means.
#[derive(Debug, Parser)]
#[command(name = "cilia", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    access: Access,
    /// Answer as json, yaml, jsonpath='{.path}' or table
    #[arg(short, long, global = true, value_name = "FORMAT", value_parser = Formats,
          hide_possible_values = true)]
    output: Option<Choice>,
    #[command(subcommand)]
    command: Command,
}

/// Reads what `-o` says, and tells shells what it may say.
#[derive(Debug, Clone)]
struct Formats;

impl TypedValueParser for Formats {
    type Value = Choice;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Choice, clap::Error> {
        let read = StringValueParser::new().try_map(|text| text.parse::<Choice>());
        read.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["json", "yaml", "jsonpath=", "table"].into_iter().map(PossibleValue::new)))
    }
}

/// The status of the program, by what it found.
const EXIT_CODES: &str = "Exit status: 0 if all is well, 1 if something is wrong or could not be \
                          found or reached, 2 if the command line can't be understood. Of \
                          questions (policy explain, diff, validate) 1 is an answer, and 2 none.";

#[derive(Debug, Subcommand)]
enum Command {
    /// How the agent is; from a workstation, how the cluster is
    Status(status::Arguments),
    /// Endpoints of the node
    #[command(subcommand)]
    Endpoint(endpoint::Command),
    /// Identities of the cluster
    #[command(subcommand)]
    Identity(identity::Command),
    /// Addresses and their identities
    #[command(subcommand)]
    Ip(ip::Command),
    /// Nodes of the cluster
    #[command(subcommand)]
    Node(node::Command),
    /// Services and their backends
    #[command(subcommand)]
    Service(service::Command),
    /// Policies in use
    #[command(subcommand)]
    Policy(policy::Command),
    /// The kernel's maps, decoded
    #[command(subcommand)]
    Bpf(bpf::Command),
    /// The kernel's maps as such
    #[command(subcommand)]
    Map(map::Command),
    /// Events as they happen
    Monitor(monitor::Arguments),
    /// The agent's settings
    Config(config::Arguments),
    /// The agent's metrics
    #[command(subcommand)]
    Metrics(metrics::Command),
    /// Keys of etcd
    Kvstore(kvstore::Arguments),
    /// Looks for what is wrong on the way to an etcd
    #[command(subcommand)]
    Troubleshoot(troubleshoot::Command),
    /// Encryption between nodes
    #[command(subcommand)]
    Encrypt(feature::Encrypt),
    /// BGP
    #[command(subcommand)]
    Bgp(feature::Bgp),
    /// Names that policies use
    #[command(subcommand)]
    Fqdn(feature::Fqdn),
    /// Local redirects of services
    #[command(subcommand)]
    Lrp(feature::Listed),
    /// Numbers of nodes
    #[command(subcommand)]
    Nodeid(feature::Listed),
    /// Puts an agent's settings together from several sources, into a folder
    BuildConfig(build_config::Arguments),
    /// Everything that an agent knows, for a report
    Debuginfo(debuginfo::Arguments),
    /// Collects what it takes to find a fault into one file
    Sysdump(sysdump::Arguments),
    /// The versions of this program and of the agent
    Version(version::Arguments),
    /// A script that completes this command in a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes manual pages, one for each command
    Man {
        /// Where to
        folder: PathBuf,
    },
    /// Passes its input on to the agent and the answer back
    #[command(hide = true)]
    Relay,
}

impl Command {
    /// The status where there is no answer.
    fn failure(&self) -> ExitCode {
        match self {
            Self::Policy(command) if command.is_question() => ExitCode::from(policy::NO_ANSWER),
            _ => ExitCode::FAILURE,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let words = std::env::args_os().skip(1);
            // Bytes that are no text are no word of ours.
            let words: Vec<String> =
                words.map(|word| word.to_string_lossy().into_owned()).collect();
            if error.kind() == ErrorKind::InvalidSubcommand
                && let Some(why) = absent::why(&words, &Arguments::command())
            {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
            error.exit()
        }
    };
    let failure = arguments.command.failure();
    match run(arguments).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            failure
        }
    }
}

/// What needs no agent, or more than one.
async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { access, output, command } = arguments;
    let access = access.settled()?;
    let format = output.as_ref().and_then(|choice| choice.format.as_ref());
    if let Command::Policy(command) = &command
        && let Some(answer) = command.offline(format)
    {
        return answer;
    }
    match &command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "cilia", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("make the folder {}", folder.display()))?;
            clap_mangen::generate_to(Arguments::command(), folder)
                .with_context(|| format!("write manual pages to {}", folder.display()))?;
        }
        Command::Relay => relay::run(access.host.as_deref().unwrap_or(SOCKET))?,
        Command::Status(arguments) => return status::run(&access, arguments, format).await,
        Command::Monitor(arguments) => return monitor::run(&access, arguments, format).await,
        Command::Kvstore(arguments) => {
            return kvstore::run(&access, arguments, output.as_ref()).await;
        }
        Command::Troubleshoot(command) => return troubleshoot::run(&access, command).await,
        Command::BuildConfig(arguments) => build_config::run(&access, arguments).await?,
        Command::Sysdump(arguments) => return sysdump::run(&access, arguments).await,
        Command::Identity(identity::Command::Advise(arguments)) => {
            identity::advise::run(&access, arguments, format).await?;
        }
        Command::Map(map::Command::Events { name, follow: _ }) => {
            return map::events(&access, name, format).await;
        }
        Command::Version(arguments) => return version::run(&access, arguments, format).await,
        _ => {
            let reach = access.reach().await?;
            let one = matches!(reach, Reach::Here(_)) || access.node.is_some();
            let agents = access.agents(&reach).await?;
            return each(&agents, one, format, command.failure(), async |agent, format| {
                ask(agent, &command, format).await
            })
            .await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What one agent can answer.
async fn ask(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Endpoint(command) => endpoint::run(agent, command, format).await?,
        Command::Identity(command) => identity::run(agent, command, format).await?,
        Command::Ip(command) => ip::run(agent, command, format).await?,
        Command::Node(command) => node::run(agent, command, format).await?,
        Command::Service(command) => service::run(agent, command, format).await?,
        Command::Policy(command) => return policy::run(agent, command, format).await,
        Command::Bpf(command) => bpf::run(agent, command, format).await?,
        Command::Map(command) => map::run(agent, command, format).await?,
        Command::Config(arguments) => config::run(agent, arguments, format).await?,
        Command::Metrics(command) => metrics::run(agent, command, format).await?,
        Command::Encrypt(command) => feature::encrypt(agent, command, format).await?,
        Command::Bgp(command) => feature::bgp(agent, command, format).await?,
        Command::Fqdn(command) => feature::fqdn(agent, command, format).await?,
        Command::Lrp(command) => feature::lrp(agent, command, format).await?,
        Command::Nodeid(command) => feature::nodeid(agent, command, format).await?,
        Command::Debuginfo(arguments) => debuginfo::run(agent, arguments, format).await?,
        // `run` has dealt with the others.
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    use super::Arguments;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_shell_has_completions() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "cilia", &mut script);
            let script = String::from_utf8_lossy(&script);
            for word in ["sysdump", "ipcache", "related-to", "jsonpath="] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        clap_mangen::generate_to(Arguments::command(), folder.path()).expect("pages");
        for page in ["cilia.1", "cilia-status.1", "cilia-endpoint-list.1", "cilia-monitor.1"] {
            assert!(folder.path().join(page).is_file(), "{page}");
        }
    }
}
