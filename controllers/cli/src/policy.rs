//! `cilia policy`.

mod files;
mod offline;
mod selectors;
mod wait;

use std::process::ExitCode;

use anyhow::bail;
use http::Method;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

/// The status where there is no answer; 1 is an answer: dropped, cut, not valid.
pub(crate) const NO_ANSWER: u8 = 2;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The policies in use, and what their rules have decided
    Get,
    /// The peer selectors in use, and whom they select
    Selectors {
        /// Policies with all of their labels
        #[arg(short, long)]
        verbose: bool,
    },
    /// The endpoints that policies are for, by selector
    SubjectSelectors {
        /// Policies with all of their labels
        #[arg(short, long)]
        verbose: bool,
    },
    /// Waits until a revision of the policies is in place at all endpoints
    Wait(wait::Arguments),
    /// Checks policies in files as the agent does: 1 if one is not valid, 2 if a file can't be read
    Validate {
        /// YAML or JSON, one object or several; a folder; - for standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// What becomes of packets from one side to another, which rules make it so, and what to add: 0 if they
    /// pass, 1 if they are dropped, 2 if there is no answer
    #[command(after_help = SIDES)]
    Explain {
        /// Who sends
        from: String,
        /// Who receives
        to: String,
        /// The receiver's port by number or name, as 80/TCP or http; for ICMP the type, as 8/ICMP
        port: String,
        /// Manifests (pods, namespaces, policies) instead of the cluster: a file, a folder, or - for standard
        /// input; may be given several times
        #[arg(short, long, value_name = "FILE")]
        filename: Vec<String>,
    },
    /// Which flows that passed lately at this node's endpoints a change of policies would cut: 1 if there are
    /// some, 2 if there is no answer
    Diff {
        /// The changed policies, YAML or JSON: a file, a folder, or - for standard input; may be given several
        /// times
        #[arg(short, long, required = true, value_name = "FILE")]
        filename: Vec<String>,
    },
}

/// How sides are named.
const SIDES: &str = "A side is NAMESPACE/POD, an address, the number of an identity, or an entity such as host, \
                     remote-node, world or reserved:health; in manifests node/NAME, too.";

impl Command {
    /// Whether the status is the answer, so that no answer has one of its own.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self, Self::Validate { .. } | Self::Explain { .. } | Self::Diff { .. })
    }

    /// The answer to what needs no agent; nothing, if one must be asked.
    pub(crate) fn offline(&self, format: Option<&Format>) -> Option<anyhow::Result<ExitCode>> {
        match self {
            Self::Validate { files } => Some(offline::validate(files, format)),
            Self::Explain { from, to, port, filename } if !filename.is_empty() => {
                let told = offline::explain(from, to, port, filename);
                Some(told.and_then(|told| show(&told, format)))
            }
            _ => None,
        }
    }
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Get => {
            let answer = agent.get("/v1/policy").await?;
            if let Some(format) = format {
                format.print(&answer)?;
            } else {
                println!("{}\nRevision: {}", text(&answer["policy"]), text(&answer["revision"]));
                for fault in items(&answer["faults"]) {
                    println!("Not used: {}: {}", text(&fault["policy"]), text(&fault["fault"]));
                }
                let rules = items(&answer["rules"]);
                if !rules.is_empty() {
                    println!();
                    print!("{}", counted(rules));
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Selectors { verbose } | Command::SubjectSelectors { verbose } => {
            let path = match command {
                Command::Selectors { .. } => "/v1/policy/selectors",
                _ => "/v1/policy/subject-selectors",
            };
            let answer = agent.get(path).await?;
            match format {
                Some(format) => format.print(&answer)?,
                None => selectors::table(items(&answer), *verbose).print(),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Wait(arguments) => {
            wait::run(agent, arguments).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Validate { .. } => bail!("no agent is asked about files"),
        Command::Explain { from, to, port, .. } => {
            let (port, proto) = offline::port(port)?;
            let [from, to, port] = [from, to, port].map(crate::agent::segment);
            let path = format!("/v1/policy/explain?from={from}&to={to}&proto={proto}&port={port}");
            show(&agent.get(&path).await?, format)
        }
        Command::Diff { filename } => {
            let policies = Value::Array(files::objects(filename)?);
            let answer = agent.change(Method::POST, "/v1/policy/diff", Some(&policies)).await?;
            match format {
                Some(format) => format.print(&answer)?,
                None => println!("{}", diff(&answer)),
            }
            let cuts = !items(&answer["cut"]).is_empty();
            Ok(if cuts { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// Shows an explanation; the status says whether packets pass.
fn show(told: &Value, format: Option<&Format>) -> anyhow::Result<ExitCode> {
    match format {
        Some(format) => format.print(&told["explanation"])?,
        None => println!("{}", text(&told["text"])),
    }
    let passes = told["explanation"]["allowed"] == true;
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the rules have decided on this node.
fn counted(rules: &[Value]) -> String {
    let members = ["policy", "field", "log", "endpoints", "entries", "packets", "bytes"];
    let mut table = Table::new(5);
    table.row(["POLICY", "RULE", "LOG", "ENDPOINTS", "ENTRIES", "PACKETS", "BYTES"]);
    for rule in rules {
        table.row(members.map(|member| text(&rule[member])));
    }
    table.trimmed()
}

/// Which flows a change cuts, and why.
fn diff(answer: &Value) -> String {
    let cut = items(&answer["cut"]);
    let mut lines = Vec::new();
    for one in cut {
        let flow = &one["flow"];
        let peer = match text(&flow["peer"]["address"]) {
            address if address.is_empty() => text(&flow["peer"]["identity"]),
            address => format!("{address} (identity {})", text(&flow["peer"]["identity"])),
        };
        let proto = flow["proto"].as_u64().and_then(|proto| u8::try_from(proto).ok()).unwrap_or(0);
        let proto = cilia_policy::l4::protocol::name(proto)
            .map_or_else(|| proto.to_string(), str::to_owned);
        let way = if flow["direction"] == "egress" { "to" } else { "from" };
        let (pod, port, count) = (text(&flow["pod"]), text(&flow["port"]), text(&flow["count"]));
        lines.push(format!("{pod} {way} {peer}, {port}/{proto}, seen {count} times:"));
        lines.extend(text(&one["text"]).lines().map(|line| format!("  {line}")));
    }
    lines.push(format!("{} of {} flows would be cut", cut.len(), text(&answer["flows"])));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{counted, diff};

    #[test]
    fn rules_have_counters() {
        let rules = [
            json!({"policy": "CiliumNetworkPolicy shop/a", "field": "spec.ingress[0]", "log": null,
            "endpoints": 2, "entries": 3, "packets": 7, "bytes": 420}),
        ];
        let shown = counted(&rules);
        let row: Vec<&str> = shown.lines().nth(1).expect("a row").split_whitespace().collect();
        let want = ["CiliumNetworkPolicy", "shop/a", "spec.ingress[0]", "2", "3", "7", "420"];
        assert_eq!(row, want);
    }

    #[test]
    fn a_change_says_what_it_cuts_and_why() {
        let flow = json!({"pod": "shop/web", "direction": "ingress", "proto": 6, "port": 80, "count": 3,
            "peer": {"identity": 5000, "address": "10.0.1.5"}});
        let mut answer = json!({"flows": 7, "cut": [{"flow": flow, "text": "egress: allowed\ningress: dropped"}]});
        assert_eq!(
            diff(&answer),
            "shop/web from 10.0.1.5 (identity 5000), 80/TCP, seen 3 times:\n  egress: allowed\n  \
             ingress: dropped\n1 of 7 flows would be cut"
        );
        answer["cut"][0]["flow"]["direction"] = json!("egress");
        answer["cut"][0]["flow"]["peer"]["address"] = Value::Null;
        assert!(diff(&answer).starts_with("shop/web to 5000, 80/TCP"), "{}", diff(&answer));
        assert_eq!(diff(&json!({"flows": 0, "cut": []})), "0 of 0 flows would be cut");
    }
}
