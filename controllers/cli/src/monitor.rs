//! `cilia monitor`: events as they happen, of one agent or of all.

mod cilium;
mod packet;
mod show;

use std::cell::Cell;
use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use crate::access::{Access, Reach};
use crate::agent::{Agent, segment};
use crate::output::{Format, text};
use show::Show;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "one per flag")]
pub(crate) struct Arguments {
    /// Only events of this type; may be given more than once
    #[arg(short = 't', long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = TYPES)]
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
    /// Only from or to these pods of the node
    #[arg(long, value_name = "[NAMESPACE/]POD", value_delimiter = ',')]
    pod: Vec<String>,
    /// Only from or to these identities
    #[arg(long, value_name = "IDENTITY", value_delimiter = ',')]
    identity: Vec<u32>,
    /// Only what was forwarded, dropped, or would have been dropped
    #[arg(long, value_delimiter = ',', value_parser = ["forwarded", "dropped", "audit"])]
    verdict: Vec<String>,
    /// Only from or to these ports
    #[arg(long, value_delimiter = ',')]
    port: Vec<u16>,
    /// An object in a line for each event, as Cilium's monitor has it; -o json has all that is known
    #[arg(short, long)]
    json: bool,
    /// Numbers instead of the names of reserved identities
    #[arg(short, long)]
    numeric: bool,
    /// With the time and the parts of the packet; twice: with its bytes too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// With the packet's first bytes
    #[arg(long)]
    hex: bool,
    /// Ends when the agent does, instead of waiting for the next one
    #[arg(long)]
    once: bool,
    /// There is no such socket: events come from the agent's API
    #[arg(long, hide = true, value_parser = no_socket)]
    monitor_socket: Option<Infallible>,
}

fn no_socket(_: &str) -> Result<Infallible, String> {
    Err("events come from the agent's own socket: name it with --host unix://PATH".into())
}

/// The field's types of events; those that this datapath does not have never come.
const TYPES: [&str; 8] =
    ["agent", "capture", "debug", "drop", "l7", "policy-verdict", "trace", "trace-sock"];
/// The types that this datapath has.
const COME: [&str; 3] = ["drop", "policy-verdict", "trace"];
/// How long to wait for an agent that went away.
const WAITS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// The longest line that is taken for an event.
const LONGEST: usize = 1 << 20;

pub(crate) async fn run(
    access: &Access,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    if let Some(never) = arguments.monitor_socket {
        match never {}
    }
    let reach = access.reach().await?;
    let named = matches!(reach, Reach::There(_)) && access.node.is_none();
    let agents = access.agents(&reach).await?;
    let show = Show {
        cilium: arguments.json && format.is_none(),
        json: matches!(format, Some(Format::Json)),
        format: format.filter(|format| !matches!(format, Format::Json)),
        verbose: arguments.verbose > 0,
        hex: arguments.hex || arguments.verbose > 1,
        named,
    };
    let never: Vec<&str> =
        arguments.types.iter().map(String::as_str).filter(|kind| !COME.contains(kind)).collect();
    if !never.is_empty() {
        let (never, come) = (never.join(", "), COME.join(", "));
        eprintln!("no events of type {never} come from Cilia's agents: those that come are {come}");
    }
    eprintln!("Press Ctrl-C to quit");
    let (asked, absent) = (agents.len(), Cell::new(0));
    // Whether it is the last of them that is not there.
    let nobody = || {
        absent.set(absent.get() + 1);
        absent.get() == asked
    };
    let mut follow: FuturesUnordered<_> =
        agents.into_iter().map(|agent| follow(agent, &reach, arguments, &show, &nobody)).collect();
    let all = async {
        let mut code = ExitCode::SUCCESS;
        while let Some(ended) = follow.next().await {
            match ended {
                Err(error) if absent.get() < asked => {
                    eprintln!("{error:#}");
                    code = ExitCode::FAILURE;
                }
                ended => ended?,
            }
        }
        Ok::<_, anyhow::Error>(code)
    };
    tokio::select! {
        ended = all => ended,
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}

/// Follows an agent and those that come after it; `nobody` is told if it is not there to begin with, and
/// says whether none is.
async fn follow(
    mut agent: Agent,
    reach: &Reach,
    arguments: &Arguments,
    show: &Show<'_>,
    nobody: &impl Fn() -> bool,
) -> anyhow::Result<()> {
    let path = path(arguments);
    // Attempts since it was heard last.
    let (mut heard, mut failures) = (false, 0);
    loop {
        match agent.stream(&path).await {
            Ok(events) => {
                if heard || failures > 0 {
                    eprintln!("{}: the agent is back", agent.name());
                }
                (heard, failures) = (true, 0);
                listen(&agent, events, show).await?;
                if arguments.once {
                    return Ok(());
                }
                eprintln!("{}: the agent went away; waiting for the next one", agent.name());
            }
            // What was never there is an error, if nothing else is; what goes away comes back.
            Err(error) if arguments.once || (!heard && failures == 0 && nobody()) => {
                return Err(error.context(agent.name()));
            }
            Err(error) if !heard && failures == 0 => {
                eprintln!("{}: {error:#}; waiting for it", agent.name());
            }
            Err(_) => {}
        }
        loop {
            tokio::time::sleep(WAITS[failures.min(WAITS.len() - 1)]).await;
            failures += 1;
            if let Reach::There(cluster) = reach
                && let Ok(found) = cluster.agents(Some(&agent.name())).await
                && let Some(next) = found.into_iter().next()
            {
                // The next agent has a pod of its own.
                agent = next;
            }
            if agent.find("/v1/healthz?brief=true").await.is_ok() {
                break;
            }
        }
    }
}

/// Shows an agent's events until it ends.
async fn listen(agent: &Agent, mut events: Incoming, show: &Show<'_>) -> anyhow::Result<()> {
    let name = agent.name();
    let mut lines = Lines::default();
    while let Some(frame) = events.frame().await {
        // The agent went away in the middle of it: that is its end.
        let Ok(frame) = frame else { return Ok(()) };
        let Ok(data) = frame.into_data() else { continue };
        for line in lines.add(&data) {
            let Ok(event @ Value::Object(_)) = serde_json::from_slice(&line) else { continue };
            match text(&event["type"]).as_str() {
                "start" => eprintln!("{}", text(&event["line"])),
                "lost" => eprintln!(
                    "{} events lost: they came faster than they could be shown",
                    text(&event["count"])
                ),
                _ => show.event(&name, event)?,
            }
        }
    }
    Ok(())
}

/// Puts lines together that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// The lines that end in this piece.
    pub(crate) fn add(&mut self, data: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let mut rest = data;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.0.extend_from_slice(&rest[..end]);
            lines.push(std::mem::take(&mut self.0));
            rest = &rest[end + 1..];
        }
        if self.0.len() + rest.len() <= LONGEST {
            self.0.extend_from_slice(rest);
        }
        lines
    }
}

fn path(arguments: &Arguments) -> String {
    fn list<T: ToString>(name: &str, list: &[T]) -> Option<String> {
        let words: Vec<String> = list.iter().map(|one| segment(&one.to_string())).collect();
        (!list.is_empty()).then(|| format!("{name}={}", words.join(",")))
    }
    let flag = |name: &str, on: bool| on.then(|| format!("{name}=true"));
    let query: Vec<String> = [
        list("type", &arguments.types),
        list("from", &arguments.from),
        list("to", &arguments.to),
        list("related-to", &arguments.related_to),
        list("pod", &arguments.pod),
        list("identity", &arguments.identity),
        list("verdict", &arguments.verdict),
        list("port", &arguments.port),
        flag("numeric", arguments.numeric),
        flag("bytes", arguments.hex || arguments.json || arguments.verbose > 0),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("/v1/monitor?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{Lines, path};
    use crate::{Arguments, Command};

    #[test]
    fn filters_are_passed_on() {
        let cases: &[(&[&str], &str)] = &[
            (&[], "/v1/monitor?"),
            (
                &["-t", "drop", "--type", "trace", "--from", "1,2", "-n"],
                "/v1/monitor?type=drop,trace&from=1,2&numeric=true",
            ),
            (
                &[
                    "--pod",
                    "shop/web",
                    "--verdict",
                    "dropped",
                    "--port",
                    "80",
                    "--identity",
                    "9",
                    "-vv",
                ],
                "/v1/monitor?pod=shop%2Fweb&identity=9&verdict=dropped&port=80&bytes=true",
            ),
        ];
        for (words, want) in cases {
            let words = ["cilia", "monitor"].iter().chain(words.iter());
            let Command::Monitor(arguments) = Arguments::try_parse_from(words).expect(want).command
            else {
                panic!("{want}")
            };
            assert_eq!(path(&arguments), *want);
        }
    }

    #[test]
    fn lines_come_in_pieces() {
        let mut lines = Lines::default();
        assert!(lines.add(b"{\"a\"").is_empty());
        assert_eq!(lines.add(b":1}\n{}\n{"), [b"{\"a\":1}".to_vec(), b"{}".to_vec()]);
        assert_eq!(lines.add(b"}\n"), [b"{}".to_vec()]);
    }
}
