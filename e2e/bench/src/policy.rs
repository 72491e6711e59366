//! The benchmark of policy: how long the core takes in a large cluster, and how much it keeps.
//!
//! One thread, no kernel: from objects as the API server gives them to what is to be written into
//! the maps. In order:
//!
//! 1. prefixes: 1,000 allowed and 1,000 denied ranges for one endpoint, until its map is known;
//! 2. start: all policies and identities, until the maps of all local endpoints are known;
//! 3. more, less: an identity comes, or goes, until what changes in all these maps is known;
//! 4. edit: a policy changes, until the same.

mod cluster;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use cluster::{Cluster, Size};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Policies of the cluster
    #[arg(long, default_value_t = 30_000)]
    policies: u32,
    /// Identities of the cluster
    #[arg(long, default_value_t = 6_000)]
    identities: u32,
    /// Endpoints of the node, each of an identity of its own
    #[arg(long, default_value_t = 100)]
    endpoints: u32,
    /// How often an identity comes and goes
    #[arg(long, default_value_t = 1_000)]
    rounds: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write JSON to this file as well
    #[arg(long)]
    write_json: Option<PathBuf>,
}

/// What was measured; times in milliseconds.
#[derive(Debug, Default, Serialize)]
struct Report {
    policies: u32,
    identities: u32,
    endpoints: u32,
    /// 2,000 prefixes to the map's entries.
    prefixes_ms: f64,
    prefixes_entries: usize,
    /// Objects read into rules, before the first map.
    read_ms: f64,
    /// The maps of all endpoints.
    compile_ms: f64,
    entries: usize,
    /// What the process keeps of policies, identities and maps.
    mib: f64,
    more: Times,
    less: Times,
    edit: Times,
}

/// Quantiles, in milliseconds.
#[derive(Debug, Default, Serialize)]
struct Times {
    p50: f64,
    p99: f64,
}

impl Times {
    /// Nearest rank.
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(rank).map_or(0.0, |time| ms(*time))
        };
        Self { p50: at(50), p99: at(99) }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures, and prints the figures.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let report = measure(arguments)?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(file) = &arguments.write_json {
        std::fs::write(file, &json).with_context(|| format!("write {}", file.display()))?;
    }
    if arguments.json {
        println!("{json}");
    } else {
        print_table(&report);
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Report> {
    let size = Size {
        policies: arguments.policies,
        identities: arguments.identities,
        endpoints: arguments.endpoints,
    };
    let mut report = Report {
        policies: size.policies,
        identities: size.identities,
        endpoints: size.endpoints,
        ..Report::default()
    };
    eprintln!("1,000 allowed and 1,000 denied prefixes");
    let (time, entries) = cluster::prefixes();
    (report.prefixes_ms, report.prefixes_entries) = (ms(time), entries);

    eprintln!("{} policies, {} identities", size.policies, size.identities);
    let before = resident_mib()?;
    let start = Instant::now();
    let mut cluster = Cluster::new(size);
    report.read_ms = ms(start.elapsed());
    let start = Instant::now();
    report.entries = cluster.compile();
    report.compile_ms = ms(start.elapsed());
    report.mib = resident_mib()? - before;

    eprintln!("{} identities more and less, one after the other", arguments.rounds);
    let (mut more, mut less) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let start = Instant::now();
        cluster.add(round);
        more.push(start.elapsed());
        let start = Instant::now();
        cluster.remove(round);
        less.push(start.elapsed());
    }
    (report.more, report.less) = (Times::of(more), Times::of(less));
    let edits = (0..arguments.rounds.min(size.policies)).map(|round| {
        let start = Instant::now();
        cluster.edit(round);
        start.elapsed()
    });
    report.edit = Times::of(edits.collect());
    Ok(report)
}

/// The memory that the process has now.
fn resident_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .context("read memory: VmRSS is missing")?;
    Ok(kib / 1024.0)
}

fn print_table(report: &Report) {
    let pair = |times: &Times| format!("{:.3} / {:.3} ms", times.p50, times.p99);
    let rows = [
        (
            "2,000 prefixes to the map's entries",
            format!("{:.1} ms ({} entries)", report.prefixes_ms, report.prefixes_entries),
            "300 ms",
        ),
        ("objects read", format!("{:.0} ms", report.read_ms), ""),
        (
            "all maps at start",
            format!("{:.0} ms ({} entries)", report.compile_ms, report.entries),
            "3,000 ms",
        ),
        ("one identity more, p50 / p99", pair(&report.more), "1 / 10 ms"),
        ("one identity less, p50 / p99", pair(&report.less), ""),
        ("one policy changed, p50 / p99", pair(&report.edit), ""),
        ("memory", format!("{:.0} MiB", report.mib), "200 MiB"),
    ];
    println!(
        "{} policies, {} identities, {} local endpoints",
        report.policies, report.identities, report.endpoints
    );
    println!("{:<38}{:>30}{:>14}", "", "measured", "target");
    for (name, figure, target) in rows {
        println!("{name:<38}{figure:>30}{target:>14}");
    }
}
