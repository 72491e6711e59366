//! `cilia ip`: addresses, and who is behind them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::agent::Agent;
use crate::identity::{labels, with_source};
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All addresses with their identities
    #[command(alias = "ls")]
    List {
        /// Numbers instead of labels
        #[arg(short, long)]
        numeric: bool,
        /// Tunnel endpoints and keys too
        #[arg(short, long)]
        verbose: bool,
    },
    /// The entry that is or contains an address, or those of labels
    Get {
        /// An address or a prefix
        cidr: Option<String>,
        /// Addresses of identities with all of these labels, such as k8s:app=web
        #[arg(short, long, value_delimiter = ',', conflicts_with = "cidr")]
        labels: Vec<String>,
        /// Tunnel endpoints and keys too
        #[arg(short, long)]
        verbose: bool,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    // What is not there is nothing: no address is known yet.
    let entries = agent.find("/v1/ip").await?.unwrap_or_default();
    let mut entries = items(&entries).to_vec();
    entries.sort_by_key(|entry| order(&text(&entry["cidr"])));
    let (numeric, verbose) = match command {
        Command::List { numeric, verbose } => (*numeric, *verbose),
        Command::Get { verbose, .. } => (false, *verbose),
    };
    let known = if numeric { BTreeMap::new() } else { labels(agent).await? };
    let entries: Vec<Value> = match command {
        Command::List { .. } => entries,
        Command::Get { cidr: Some(cidr), .. } => {
            let address = cidr.split_once('/').map_or(cidr.as_str(), |(address, _)| address);
            if address.parse::<IpAddr>().is_err() {
                bail!("{cidr:?} is neither an address nor a prefix");
            }
            let around = entries.into_iter().filter(|entry| contains(&text(&entry["cidr"]), cidr));
            let found = around.max_by_key(|entry| length(&text(&entry["cidr"])));
            vec![found.with_context(|| format!("nothing is known of {cidr}"))?]
        }
        Command::Get { labels, .. } if labels.is_empty() => {
            bail!("name an address, or --labels that its identity has")
        }
        Command::Get { labels, .. } => {
            let wanted: Vec<String> = labels.iter().map(|label| with_source(label)).collect();
            let has = |entry: &Value| {
                let of = entry["identity"].as_u64().and_then(|number| known.get(&number));
                of.is_some_and(|of| wanted.iter().all(|label| of.contains(label)))
            };
            let found: Vec<Value> = entries.into_iter().filter(has).collect();
            if found.is_empty() {
                bail!("no address has an identity with all of these labels");
            }
            found
        }
    };
    if let Some(format) = format {
        return format.print(&Value::Array(entries));
    }
    if let Command::Get { labels, .. } = command
        && !labels.is_empty()
    {
        const RULE: &str = "===========================";
        println!("{RULE}\nLabels:");
        for label in labels {
            println!("    {}", with_source(label));
        }
        println!("{RULE}");
        if !verbose {
            brief(&entries).print();
            return Ok(());
        }
    }
    table(&entries, &known, verbose).print();
    Ok(())
}

/// The widest prefixes first, as Cilium's tool has it.
fn order(cidr: &str) -> (u8, Option<IpAddr>) {
    let address = cidr.split('/').next().and_then(|address| address.parse().ok());
    (length(cidr), address)
}

/// Addresses of labels that are known: who has them.
fn brief(entries: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["IP", "HOST", "IDENTITY", "POD", "NAMESPACE"]);
    for entry in entries {
        let of = &entry["metadata"];
        table.row(
            [&entry["cidr"], &entry["hostIP"], &entry["identity"], &of["name"], &of["namespace"]]
                .map(text),
        );
    }
    table
}

fn table(entries: &[Value], known: &BTreeMap<u64, Vec<String>>, verbose: bool) -> Table {
    let mut table = Table::new(5);
    let more: &[&str] = if verbose { &["HOST", "ENCRYPT_KEY"] } else { &[] };
    table.row(["IP", "IDENTITY", "SOURCE"].iter().chain(more).copied());
    for entry in entries {
        let number = entry["identity"].as_u64().unwrap_or(0);
        let named = known.get(&number).filter(|labels| !labels.is_empty());
        let mut shown = named.cloned().unwrap_or_else(|| vec![number.to_string()]).into_iter();
        let mut row = vec![
            text(&entry["cidr"]),
            shown.next().unwrap_or_default(),
            text(&entry["metadata"]["source"]),
        ];
        if verbose {
            row.extend([text(&entry["hostIP"]), text(&entry["encryptKey"])]);
        }
        table.row(row);
        for label in shown {
            table.closed(["", &label]);
        }
    }
    table
}

fn length(cidr: &str) -> u8 {
    cidr.split_once('/').and_then(|(_, length)| length.parse().ok()).unwrap_or(u8::MAX)
}

/// Whether `prefix` is `wanted` or holds it.
fn contains(prefix: &str, wanted: &str) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let parse = |text: &str| {
        let address: IpAddr = text.split('/').next()?.parse().ok()?;
        let (bits, whole) = bits(address);
        Some((address.is_ipv4(), bits, length(text).min(whole)))
    };
    let (Some(outer), Some(inner)) = (parse(prefix), parse(wanted)) else { return false };
    let mask = if outer.2 == 0 { 0 } else { u128::MAX << (128 - u32::from(outer.2)) };
    outer.0 == inner.0 && outer.2 <= inner.2 && (outer.1 ^ inner.1) & mask == 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{contains, table};

    #[test]
    fn prefixes_hold_addresses() {
        let cases = [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("::/0", "192.0.2.1", false),
            ("fd00::/8", "fd12::1", true),
            ("nonsense", "fd12::1", false),
        ];
        for (prefix, wanted, want) in cases {
            assert_eq!(contains(prefix, wanted), want, "{prefix} {wanted}");
        }
    }

    #[test]
    fn a_label_in_a_row() {
        let entries = [
            json!({"cidr": "10.0.0.7/32", "identity": 4711, "hostIP": "192.0.2.1", "encryptKey": 0, "metadata": {"source": "custom-resource"}}),
            json!({"cidr": "10.0.0.8/32", "identity": 9, "hostIP": null, "encryptKey": 0, "metadata": {"source": "agent-local"}}),
        ];
        let known = BTreeMap::from([(4711, vec!["k8s:a=1".to_owned(), "k8s:b=2".to_owned()])]);
        let want = "\
IP            IDENTITY   SOURCE
10.0.0.7/32   k8s:a=1    custom-resource
              k8s:b=2
10.0.0.8/32   9          agent-local
";
        assert_eq!(table(&entries, &known, false).trimmed(), want);
        let verbose = table(&entries, &known, true).render();
        assert!(
            verbose.starts_with(
                "IP            IDENTITY   SOURCE            HOST        ENCRYPT_KEY\n"
            ),
            "{verbose}"
        );
    }
}
