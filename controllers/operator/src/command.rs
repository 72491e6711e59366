//! Decides whether the command line asks for something else than to run, and answers it.

mod client;
mod cmdref;
mod hive;
mod mesh;
mod metrics;
mod shell;
mod troubleshoot;

use std::path::Path;

use cilia_cli::output::Format;
use cilia_runtime::config::{Kind, Program};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, FromArgMatches, Subcommand};

/// What the program can do besides running.
#[derive(Debug, Subcommand)]
enum Command {
    /// A script that completes this command in a shell
    Completion {
        /// The shell
        #[arg(value_parser = PossibleValuesParser::new(["bash", "fish", "powershell", "zsh"]))]
        shell: String,
    },
    /// What the operator is made of
    Hive {
        #[command(subcommand)]
        command: Option<hive::Command>,
    },
    /// The metrics of the operator that runs here
    Metrics {
        #[command(subcommand)]
        command: metrics::Command,
    },
    /// How the operator that runs here is
    Status {
        #[command(subcommand)]
        command: mesh::Command,
    },
    /// Find out why a connection does not come about
    Troubleshoot {
        #[command(subcommand)]
        command: troubleshoot::Command,
    },
    /// Ask the operator that runs here, line by line
    Shell(shell::Arguments),
}

/// Where and how to ask the operator's API.
#[derive(Debug, clap::Args)]
struct Api {
    /// Address of the operator's API
    #[arg(short, long, value_name = "ADDRESS", default_value = "localhost:9234")]
    server_address: String,
    /// Answer as json, yaml or jsonpath='{.path}'
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

/// Whether these arguments (without the program's name) are a sub-command's.
pub(crate) fn is_asked_for(args: &[String]) -> bool {
    let Some(first) = args.first() else { return false };
    first == "help" || tree(&crate::config::program()).find_subcommand(first).is_some()
}

/// Does what a sub-command asks for.
pub(crate) async fn run(args: Vec<String>) -> anyhow::Result<()> {
    let program = crate::config::program();
    let name = program.name;
    let matches = tree(&program).get_matches_from([name.to_owned()].into_iter().chain(args));
    match Command::from_arg_matches(&matches)? {
        Command::Completion { shell } => {
            // Among the values that were allowed.
            if let Ok(shell) = shell.parse::<clap_complete::Shell>() {
                clap_complete::generate(shell, &mut tree(&program), name, &mut std::io::stdout());
            }
        }
        Command::Hive { command } => print!("{}", hive::show(command.as_ref())),
        Command::Metrics { command } => metrics::run(&command).await?,
        Command::Status { command } => mesh::run(&command).await?,
        Command::Troubleshoot { command } => troubleshoot::run(&command).await?,
        Command::Shell(arguments) => shell::run(&arguments).await?,
    }
    Ok(())
}

/// Writes the reference of all commands, for `--cmdref`.
pub(crate) fn write_reference(folder: &Path) -> anyhow::Result<()> {
    cmdref::write(tree(&crate::config::program()), folder)
}

/// All commands, with the flags of the program at their root.
fn tree(program: &Program) -> clap::Command {
    let flags = program.flags.iter().filter(|flag| flag.name != "help" && flag.name != "version");
    let root = clap::Command::new(program.name)
        .about(program.about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(flags.map(|flag| {
            let arg = Arg::new(flag.name.clone()).long(flag.name.clone()).hide(flag.hidden);
            let arg = flag.short.map_or(arg.clone(), |short| arg.short(short));
            match flag.kind {
                Kind::Bool => arg.action(ArgAction::SetTrue),
                kind => arg.value_name(kind.help_name()),
            }
        }));
    Command::augment_subcommands(root)
}

#[cfg(test)]
mod tests;
