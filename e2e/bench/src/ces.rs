//! The benchmark of slices: how long until every endpoint is in one, and at what price.
//!
//! Every operator gets an API server of its own, with nothing in it. In order:
//!
//! 1. cold: the endpoints exist, no slice does; until each one is in a slice;
//! 2. restart: killed and started again, with nothing to do; any write is one too many;
//! 3. churn: creates and deletes in the standard namespaces, a create a second in a priority one.

mod follow;
pub(crate) mod load;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::testing::{ApiServer, eventually_for};
use clap::Args;

use crate::operator::Operator;
use crate::report::{self, Churn, Cold, Latency, Report, Restart};
use crate::start::{forget_leader, is_served, named, register_crds};
use follow::Slices;
use load::Load;

/// How long an operator may take for the cold start.
const COLD_LIMIT: Duration = Duration::from_mins(10);
/// How long a restarted operator is watched for writes that it should not do.
const RESTART_WATCHED: Duration = Duration::from_secs(15);
/// How long after the churn every endpoint must be in a slice.
const SETTLE_LIMIT: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// `CiliumEndpoints` that exist before the operator starts
    #[arg(long, default_value_t = 5000)]
    endpoints: usize,
    /// Standard namespaces that they are spread over
    #[arg(long, default_value_t = 50)]
    namespaces: usize,
    /// Creates a second, and as many deletes, in the standard namespaces
    #[arg(long, default_value_t = 50)]
    churn_rate: usize,
    /// Seconds of churn
    #[arg(long, default_value_t = 20)]
    churn_seconds: u64,
    /// NAME=COMMAND of an operator, words parted by blanks; {kubeconfig} stands for the
    /// kubeconfig's path. Give it again to compare.
    #[arg(long = "operator", required = true, value_name = "NAME=COMMAND")]
    operators: Vec<String>,
    /// Where the operators' output goes
    #[arg(long, default_value = "/tmp")]
    logs: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write JSON to this file as well
    #[arg(long)]
    write_json: Option<PathBuf>,
}

/// Measures each operator in turn and prints the figures side by side.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let mut reports = Vec::new();
    for operator in &arguments.operators {
        let (name, command) = named(operator)?;
        reports.push(measure(&arguments, name, &command).await.with_context(|| name.to_owned())?);
    }
    let json = serde_json::to_string_pretty(&reports)?;
    if let Some(file) = &arguments.write_json {
        std::fs::write(file, &json).with_context(|| format!("write {}", file.display()))?;
    }
    if arguments.json {
        println!("{json}");
    } else {
        report::print_table(&reports);
    }
    Ok(())
}

async fn measure(arguments: &Arguments, name: &str, command: &[String]) -> Result<Report> {
    eprintln!("{name}: starting an API server");
    let server = ApiServer::start().await;
    let client = server.client();
    let kubeconfig = server.kubeconfig();
    let log = arguments.logs.join(format!("cilia-bench-{name}.log"));
    let start = || Operator::start(command, &kubeconfig, &log);

    eprintln!("{name}: creating {} CiliumEndpoints", arguments.endpoints);
    let there = async || {
        is_served::<CiliumEndpointSlice>(&client).await
            && is_served::<CiliumEndpoint>(&client).await
    };
    register_crds(&client, start, there).await?;
    let load = Load::new(client.clone(), arguments.namespaces);
    load.namespaces().await?;
    load.seed(arguments.endpoints).await?;

    let slices = Slices::follow(client.clone()).await?;
    eprintln!("{name}: cold start");
    let mut operator = start()?;
    let cold = cold(&slices, &operator, arguments.endpoints).await?;
    operator.kill()?;
    forget_leader(&client).await?;

    eprintln!("{name}: restart at rest");
    slices.reset_writes();
    let operator = start()?;
    tokio::time::sleep(RESTART_WATCHED).await;
    let restart = Restart {
        writes: slices.writes(),
        cpu_seconds: operator.cpu_seconds()?,
        peak_mib: operator.memory_mib("VmHWM")?,
    };

    eprintln!("{name}: churn");
    let churn = churn(arguments, &load, &slices, &operator).await?;
    Ok(Report { operator: name.to_owned(), cold, restart, churn })
}

async fn cold(slices: &Slices, operator: &Operator, endpoints: usize) -> Result<Cold> {
    slices.reset_writes();
    let begin = Instant::now();
    eventually_for(COLD_LIMIT, async || {
        let members = slices.members();
        if members >= endpoints { Ok(()) } else { Err(format!("{members} are in slices")) }
    })
    .await;
    Ok(Cold {
        seconds: begin.elapsed().as_secs_f64(),
        in_slices: slices.members(),
        slices: slices.count(),
        writes: slices.writes(),
        cpu_seconds: operator.cpu_seconds()?,
        peak_mib: operator.memory_mib("VmHWM")?,
    })
}

async fn churn(
    arguments: &Arguments,
    load: &Load,
    slices: &Slices,
    operator: &Operator,
) -> Result<Churn> {
    slices.reset_writes();
    let cpu_before = operator.cpu_seconds()?;
    let duration = Duration::from_secs(arguments.churn_seconds);
    let storm = load.churn(arguments.endpoints, arguments.churn_rate, duration).await?;

    let end = Instant::now();
    let all_there = eventually_for(SETTLE_LIMIT * 2, async || {
        let missing = storm.made.keys().filter(|key| !slices.contains(key)).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    });
    // What never comes is a figure, too.
    let _ = tokio::time::timeout(SETTLE_LIMIT, all_there).await;
    let drained_seconds = end.elapsed().as_secs_f64();
    let latency = |priority: bool| {
        let of_class = storm.made.iter().filter(|(key, _)| load::is_priority(key) == priority);
        Latency::of(of_class.filter_map(|(key, made)| slices.seconds_since(key, *made)).collect())
    };
    let answers = storm.answered.iter().filter(|(key, _)| load::is_priority(key));
    let answers = answers.map(|(key, answered)| answered.duration_since(storm.made[key]));
    Ok(Churn {
        standard: latency(false),
        priority: latency(true),
        priority_answer: Latency::of(answers.map(|took| took.as_secs_f64()).collect()),
        missing: storm.made.keys().filter(|key| !slices.contains(key)).count(),
        changes: storm.made.len() + storm.deleted,
        writes: slices.writes(),
        drained_seconds,
        cpu_seconds: operator.cpu_seconds()? - cpu_before,
        rss_mib: operator.memory_mib("VmRSS")?,
    })
}
