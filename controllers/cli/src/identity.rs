//! `cilia identity` and `cilia ip`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All identities, or those with all of these labels
    List {
        /// Labels such as k8s:app=web
        labels: Vec<String>,
    },
    /// One identity
    Get {
        /// Its number
        id: u32,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum IpCommand {
    /// All addresses with their identities
    List {
        /// Numbers instead of labels
        #[arg(short, long)]
        numeric: bool,
        /// Tunnel endpoints and keys too
        #[arg(short, long)]
        verbose: bool,
    },
    /// The address that is or contains this one
    Get {
        /// An address or a prefix
        cidr: String,
    },
}

/// The labels of every identity, by number.
pub(crate) async fn labels(agent: &Agent) -> anyhow::Result<BTreeMap<u64, Vec<String>>> {
    let identities = agent.get("/v1/identity").await?;
    let one = |identity: &Value| {
        let mut labels: Vec<String> = items(&identity["labels"]).iter().map(text).collect();
        labels.sort_unstable();
        Some((identity["id"].as_u64()?, labels))
    };
    Ok(items(&identities).iter().filter_map(one).collect())
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let (identities, only) = match command {
        Command::List { labels } => (agent.get("/v1/identity").await?, labels.as_slice()),
        Command::Get { id } => {
            let identity = agent.find(&format!("/v1/identity/{id}")).await?;
            (Value::Array(vec![identity.with_context(|| format!("no identity {id}"))?]), &[][..])
        }
    };
    let has = |identity: &&Value, wanted: &String| {
        let wanted = if wanted.contains(':') { wanted.clone() } else { format!("k8s:{wanted}") };
        items(&identity["labels"]).iter().any(|label| label.as_str() == Some(&wanted))
    };
    let selected =
        items(&identities).iter().filter(|identity| only.iter().all(|label| has(identity, label)));
    let selected: Vec<Value> = selected.cloned().collect();
    if let Some(format) = format {
        return format.print(&Value::Array(selected));
    }
    let mut table = Table::new(5);
    table.row(["ID", "LABELS"]);
    for identity in &selected {
        rows(
            &mut table,
            &[text(&identity["id"])],
            items(&identity["labels"]).iter().map(text).collect(),
        );
    }
    table.print();
    Ok(())
}

/// A row with the first of `many` behind `first`, and a row for each further one.
pub(crate) fn rows<const N: usize>(table: &mut Table, first: &[String; N], many: Vec<String>) {
    let mut many = many.into_iter();
    table.row(first.iter().cloned().chain([many.next().unwrap_or_default()]));
    for one in many {
        table.row(std::iter::repeat_n(String::new(), N).chain([one]));
    }
}

pub(crate) async fn run_ip(
    agent: &Agent,
    command: &IpCommand,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let mut entries = agent.get("/v1/ip").await?;
    let (numeric, verbose) = match command {
        IpCommand::List { numeric, verbose } => (*numeric, *verbose),
        IpCommand::Get { cidr } => {
            let longest =
                items(&entries).iter().filter(|entry| contains(&text(&entry["cidr"]), cidr));
            let found = longest.max_by_key(|entry| length(&text(&entry["cidr"]))).cloned();
            entries =
                Value::Array(vec![found.with_context(|| format!("nothing is known of {cidr}"))?]);
            (false, true)
        }
    };
    if let Some(format) = format {
        return format.print(&entries);
    }
    let known = if numeric { BTreeMap::new() } else { labels(agent).await? };
    let mut table = Table::new(5);
    table.row(["IP", "IDENTITY", "SOURCE"].into_iter().chain(if verbose {
        vec!["HOST", "ENCRYPT_KEY"]
    } else {
        vec![]
    }));
    for entry in items(&entries) {
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
            table.row([String::new(), label, String::new()]);
        }
    }
    table.print();
    Ok(())
}

fn length(cidr: &str) -> u8 {
    cidr.split_once('/').and_then(|(_, length)| length.parse().ok()).unwrap_or(u8::MAX)
}

/// Whether `prefix` is `wanted` or holds it.
fn contains(prefix: &str, wanted: &str) -> bool {
    use std::net::IpAddr;
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
    use super::contains;

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
}
