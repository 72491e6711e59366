//! `cilia bpf ct`: connections, in Cilium's words.

use anyhow::Context as _;
use serde_json::Value;

use super::{ends, maps, named, pairs};
use crate::agent::Agent;
use crate::output::{Format, text};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Connections
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
    },
}

const MAPS: [&str; 4] =
    ["cilium_ct4_global", "cilium_ct_any4_global", "cilium_ct6_global", "cilium_ct_any6_global"];

pub(super) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List { endpoint, time_diff, .. } = command;
    let mut entries = maps(agent, &MAPS).await?;
    if let Some(id) = endpoint {
        let found = agent.find(&format!("/v1/endpoint/{id}")).await?;
        let found = found.with_context(|| format!("no endpoint {id} on this node"))?;
        let addresses = &found["status"]["networking"]["addressing"][0];
        let own = |address: &Value| {
            !address.is_null() && (*address == addresses["ipv4"] || *address == addresses["ipv6"])
        };
        entries.retain(|entry| own(&entry["source"]) || own(&entry["destination"]));
    }
    if let Some(format) = format {
        let key =
            ["proto", "direction", "source", "source_port", "destination", "destination_port"];
        return format.print(&pairs(&entries, |name| key.contains(&name)));
    }
    for entry in &entries {
        println!("{}", line(entry, *time_diff));
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
         SourceSecurityID={} BackendID={} ",
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
                    Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ] RevNAT=1 SourceSecurityID=4712 BackendID=9 ";
        assert_eq!(line(&entry, true), want);
        assert!(line(&entry, false).contains("expires=900 Packets=3"));
        let split = pairs(&[json!({"proto": 6, "expires": 9})], |name| name == "proto");
        assert_eq!(split, json!([{"Key": {"proto": 6}, "Value": {"expires": 9}}]));
    }
}
