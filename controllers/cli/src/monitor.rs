//! `cilia monitor`: events as they happen.

use std::io::Write as _;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only events of this type; may be given more than once
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = ["drop", "trace", "policy-verdict"])]
    types: Vec<String>,
    /// Only from these endpoints
    #[arg(long, value_name = "ENDPOINT", value_delimiter = ',')]
    from: Vec<u16>,
    /// Only to these endpoints
    #[arg(long, value_name = "ENDPOINT", value_delimiter = ',')]
    to: Vec<u16>,
    /// Only from or to these endpoints
    #[arg(long, value_name = "ENDPOINT", value_delimiter = ',')]
    related_to: Vec<u16>,
    /// Everything that is known of each event, as JSON
    #[arg(short, long)]
    json: bool,
    /// With the time of each event
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) async fn run(agent: &Agent, arguments: &Arguments) -> anyhow::Result<()> {
    let mut body = agent.stream(&path(arguments)).await?;
    eprintln!("Press Ctrl-C to quit");
    let mut pending = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("the agent ended the connection")?.into_data() else {
            continue;
        };
        pending.extend_from_slice(&data);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            if !show(&line, arguments) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn path(arguments: &Arguments) -> String {
    let numbers = |name: &str, list: &[u16]| {
        (!list.is_empty()).then(|| {
            format!("{name}={}", list.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        })
    };
    let types =
        (!arguments.types.is_empty()).then(|| format!("type={}", arguments.types.join(",")));
    let query: Vec<String> = [
        types,
        numbers("from", &arguments.from),
        numbers("to", &arguments.to),
        numbers("related-to", &arguments.related_to),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("/v1/monitor?{}", query.join("&"))
}

/// Prints an event. False if nobody reads any more.
fn show(line: &[u8], arguments: &Arguments) -> bool {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        return out.write_all(line).and_then(|()| out.flush()).is_ok();
    }
    let Ok(event) = serde_json::from_slice::<Value>(line) else { return true };
    if event["type"] == "lost" {
        eprintln!(
            "{} events lost: they came faster than they could be shown",
            text(&event["count"])
        );
        return true;
    }
    let time = if arguments.verbose {
        format!("{:.3} ", event["time"].as_f64().unwrap_or(0.0))
    } else {
        String::new()
    };
    writeln!(out, "{time}{}", text(&event["line"])).and_then(|()| out.flush()).is_ok()
}
