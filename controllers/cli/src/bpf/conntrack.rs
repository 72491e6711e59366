//! `cilia bpf ct`: connections, in Cilium's words.

use std::collections::BTreeMap;

use anyhow::Context as _;
use http::Method;
use serde_json::{Value, json};

use super::{ends, maps, named, pairs};
use crate::agent::Agent;
use crate::output::{Format, text};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Connections
    #[command(alias = "ls")]
    List {
        /// Whose: global, or endpoint
        #[arg(default_value = "global", value_parser = ["global", "endpoint"])]
        whose: String,
        /// The endpoint's number
        #[arg(required_if_eq("whose", "endpoint"))]
        endpoint: Option<u16>,
        /// How long each has left
        #[arg(short = 'd', long)]
        time_diff: bool,
        /// The clock of the entries: they have but one
        #[arg(long, value_name = "CLOCK", value_parser = ["ktime"])]
        time_diff_clocksource_mode: Option<String>,
    },
    /// Forgets connections: what is under way is judged by policy again, and replies that nothing allows are dropped
    Flush {
        /// Whose: global, or endpoint
        #[arg(default_value = "global", value_parser = ["global", "endpoint"])]
        whose: String,
        /// The endpoint's number
        #[arg(required_if_eq("whose", "endpoint"))]
        endpoint: Option<u16>,
    },
}

const MAPS: [&str; 4] =
    ["cilium_ct4_global", "cilium_ct_any4_global", "cilium_ct6_global", "cilium_ct_any6_global"];

pub(super) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let (endpoint, time_diff) = match command {
        Command::Flush { endpoint, .. } => return flush(agent, *endpoint, format).await,
        Command::List { endpoint, time_diff, .. } => (*endpoint, *time_diff),
    };
    let mut entries = maps(agent, &MAPS).await?;
    if let Some(id) = endpoint {
        let addresses = addresses(agent, id).await?;
        let own =
            |address: &Value| addresses.iter().any(|own| Some(own.as_str()) == address.as_str());
        entries.retain(|entry| own(&entry["source"]) || own(&entry["destination"]));
    }
    if let Some(format) = format {
        let key =
            ["proto", "direction", "source", "source_port", "destination", "destination_port"];
        return format.print(&pairs(&entries, |name| key.contains(&name)));
    }
    for entry in &entries {
        println!("{}", line(entry, time_diff));
    }
    Ok(())
}

/// The addresses of an endpoint.
async fn addresses(agent: &Agent, id: u16) -> anyhow::Result<Vec<String>> {
    let found = agent.find(&format!("/v1/endpoint/{id}")).await?;
    let found = found.with_context(|| format!("no endpoint {id} on this node"))?;
    let addresses = &found["status"]["networking"]["addressing"][0];
    let families = ["ipv4", "ipv6"].map(|family| text(&addresses[family]));
    Ok(families.into_iter().filter(|address| !address.is_empty()).collect())
}

async fn flush(
    agent: &Agent,
    endpoint: Option<u16>,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let of = match endpoint {
        Some(id) => {
            addresses(agent, id).await?.into_iter().map(|a| format!("?address={a}")).collect()
        }
        None => vec![String::new()],
    };
    let mut flushed = BTreeMap::new();
    for map in MAPS {
        for of in &of {
            let path = format!("/v1/map/{map}{of}");
            let answer = agent.change(Method::DELETE, &path, None).await?;
            *flushed.entry(map).or_insert(0) += answer["removed"].as_u64().unwrap_or(0);
        }
    }
    if let Some(format) = format {
        return format.print(&json!(flushed));
    }
    for (map, removed) in flushed {
        println!("Flushed {removed} entries from /sys/fs/bpf/tc/globals/{map}");
    }
    Ok(())
}

/// Names of the bits of an entry's flags.
const FLAGS: [(u64, &str); 11] = [
    (1, "RxClosing"),
    (1 << 1, "TxClosing"),
    (1 << 3, "LBLoopback"),
    (1 << 4, "SeenNonSyn"),
    (1 << 5, "NodePort"),
    (1 << 6, "ProxyRedirect"),
    (1 << 7, "DSRInternal"),
    (1 << 8, "FromL7LB"),
    (1 << 10, "FromTunnel"),
    (1 << 2, "Nat64"),
    (1 << 9, "AuthRequired"),
];

fn line(entry: &Value, time_diff: bool) -> String {
    let count = |name: &str| entry[name].as_u64().unwrap_or(0);
    let left = match entry["remaining"].as_i64() {
        Some(seconds) if time_diff && seconds >= 0 => format!(" (remaining: {seconds} sec(s))"),
        Some(seconds) if time_diff => format!(" (expired: {} sec(s) ago)", -seconds),
        _ => String::new(),
    };
    let bits = count("flags");
    let set = FLAGS.iter().filter(|(bit, _)| bits & bit != 0);
    let names = set.fold(String::new(), |names, (_, name)| names + name + " ");
    format!(
        "{} {} {} -> {} expires={}{left} Packets={} Bytes={} RxFlagsSeen=0x{:02x} LastRxReport={} \
         TxFlagsSeen=0x{:02x} LastTxReport={} Flags=0x{bits:04x} [ {names}] RevNAT={} \
         SourceSecurityID={} BackendID={} NatPort=0 ",
        named(&entry["proto"]),
        text(&entry["direction"]),
        ends(&entry["source"], &entry["source_port"]),
        ends(&entry["destination"], &entry["destination_port"]),
        text(&entry["expires"]),
        count("packets"),
        count("bytes"),
        count("rx_flags"),
        count("last_rx_report"),
        count("tx_flags"),
        count("last_tx_report"),
        text(&entry["revnat"]),
        text(&entry["identity"]),
        text(&entry["backend"]),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{line, pairs};

    #[test]
    fn a_connection_in_a_line() {
        let entry = json!({"proto": 6, "direction": "OUT", "source": "10.0.0.2", "source_port": 4711,
            "destination": "fd00::1", "destination_port": 80, "expires": 900, "remaining": 20, "packets": 3, "bytes": 180,
            "rx_flags": 0x1b, "tx_flags": 2, "last_rx_report": 5, "last_tx_report": 6, "flags": 0x13, "revnat": 1,
            "identity": 4712, "backend": 9});
        let want = "TCP OUT 10.0.0.2:4711 -> [fd00::1]:80 expires=900 (remaining: 20 sec(s)) Packets=3 Bytes=180 \
                    RxFlagsSeen=0x1b LastRxReport=5 TxFlagsSeen=0x02 LastTxReport=6 \
                    Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ] RevNAT=1 SourceSecurityID=4712 BackendID=9 NatPort=0 ";
        assert_eq!(line(&entry, true), want);
        assert!(line(&entry, false).contains("expires=900 Packets=3"));
        let split = pairs(&[json!({"proto": 6, "expires": 9})], |name| name == "proto");
        assert_eq!(split, json!([{"Key": {"proto": 6}, "Value": {"expires": 9}}]));
    }
}
