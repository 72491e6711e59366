//! The CNI plugin: hands each request of the container runtime to the node's agent, and speaks for
//! it where it is away.
//!
//! It does nothing to devices itself, so that it stays small, starts fast and needs no upgrade of
//! its own when the agent learns something new.
#![forbid(unsafe_code)]

mod agent;
mod delete_queue;
mod environment;
mod error;
mod log;
mod loopback;
mod netconf;
mod request;
mod result;
mod verbs;
mod version;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

/// A network configuration larger than this is no network configuration.
const MAX_INPUT: u64 = 1 << 20;

/// Answers the container runtime: reads its request from environment and stdin, prints the result.
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let answer = match std::io::stdin().take(MAX_INPUT).read_to_end(&mut input) {
        Ok(_) => verbs::run(&environment::Environment::of_process(), &input),
        Err(cause) => {
            let error = error::Error::io("read", "the network configuration from stdin", &cause);
            Err(error.into_answer(version::CURRENT))
        }
    };
    let (text, code) = match answer {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(result)) => (result, ExitCode::SUCCESS),
        Err(error) => (error, ExitCode::FAILURE),
    };
    // Nobody is left to tell when stdout is closed.
    let _ = writeln!(std::io::stdout(), "{text}");
    code
}

/// Whether `input` is a network configuration that the plugin can use; else what is wrong with it.
pub fn check_configuration(input: &[u8]) -> Result<(), String> {
    netconf::NetConf::parse(input).map(drop).map_err(|error| error.to_string())
}
