//! Decides in which order scenarios run on their one stage, and how the result is told.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Instant;

use tokio::signal::unix::{SignalKind, signal};

use super::Stage;
use crate::{Cluster, Layout};

/// What a scenario comes to.
pub type Outcome<'a> = Pin<Box<dyn Future<Output = Result<(), anyhow::Error>> + 'a>>;

/// A name, and what is to happen.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happens.
    pub run: for<'a> fn(&'a Stage) -> Outcome<'a>,
}

/// Runs the scenarios whose names contain an argument of the command line; all without one.
///
/// They run one after the other: each would disturb the next.
pub async fn run(cluster: &str, scenarios: &[Scenario]) -> ExitCode {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    let wanted: Vec<_> = if args.peek().is_none() {
        scenarios.iter().collect()
    } else {
        let words: Vec<_> = args.collect();
        let fits = |scenario: &&Scenario| words.iter().any(|word| scenario.name.contains(word));
        scenarios.iter().filter(fits).collect()
    };
    if std::env::args().any(|arg| arg == "--list") {
        for scenario in wanted {
            println!("{}: test", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    let mut interrupt = match signal(SignalKind::interrupt()) {
        Ok(interrupt) => interrupt,
        Err(error) => return fail(&format!("cannot listen to Ctrl-C: {error}")),
    };
    tokio::select! {
        code = perform(cluster, &wanted) => code,
        _ = interrupt.recv() => {
            eprintln!("interrupted: removing the cluster");
            match Layout::new(cluster) {
                Ok(layout) => match Cluster::down(&layout).await {
                    Ok(_) => ExitCode::FAILURE,
                    Err(error) => fail(&error.to_string()),
                },
                Err(error) => fail(&error.to_string()),
            }
        }
    }
}

async fn perform(cluster: &str, scenarios: &[&Scenario]) -> ExitCode {
    println!("\nrunning {} scenarios", scenarios.len());
    if scenarios.is_empty() {
        return ExitCode::SUCCESS;
    }
    let stage = match Stage::set(cluster).await {
        Ok(stage) => stage,
        Err(error) => return fail(&format!("the stage is not set: {error}")),
    };
    let mut failed = Vec::new();
    for scenario in scenarios {
        let start = Instant::now();
        let outcome = (scenario.run)(&stage).await;
        let took = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("scenario {} ... ok ({took:.1} s)", scenario.name),
            Err(error) => {
                println!("scenario {} ... FAILED ({took:.1} s)\n{error:#}", scenario.name);
                println!("{}", stage.state().await);
                failed.push(scenario.name);
            }
        }
    }
    let passed = scenarios.len() - failed.len();
    println!("\nscenario result: {passed} passed; {} failed: {}", failed.len(), failed.join(", "));
    if let Err(error) = stage.strike().await {
        return fail(&error.to_string());
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
