//! Turns SIGTERM and SIGINT into one cancellation token that the whole process watches, and its
//! outcome into an exit code.

use std::fmt::Display;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How a program ends; why it failed is logged, or told on standard error where logging is not up.
pub fn exit_code(program: &str, outcome: Result<(), impl Display>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error:#}");
    } else {
        eprintln!("{program}: {error:#}");
    }
    ExitCode::FAILURE
}

/// A token that the first SIGTERM or SIGINT cancels; the second one ends the process at once.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        for count in 0.. {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if count > 0 {
                warn!(signal = name, "second signal: ending at once");
                std::process::exit(1);
            }
            info!(signal = name, "shutting down");
            stop.cancel();
        }
    });
    Ok(token)
}
