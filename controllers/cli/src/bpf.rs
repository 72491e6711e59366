//! `cilia bpf`: what the kernel's maps hold.

mod conntrack;
mod filesystem;
mod lb;
mod policy;

use anyhow::{Context as _, bail};
use cilia_policy::l4::protocol;
use serde_json::{Value, json};

use crate::agent::{Agent, segment};
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Addresses and their identities
    #[command(subcommand)]
    Ipcache(Ipcache),
    /// Policies of endpoints
    #[command(subcommand)]
    Policy(policy::Command),
    /// Connections
    #[command(subcommand)]
    Ct(conntrack::Command),
    /// Local addresses
    #[command(subcommand)]
    Endpoint(List),
    /// Services
    #[command(subcommand)]
    Lb(lb::Command),
    /// Nodes that packets are tunnelled to (they are in the ipcache: there is no map of tunnels)
    #[command(subcommand)]
    Tunnel(List),
    /// Counters
    #[command(subcommand)]
    Metrics(List),
    /// What the programs have been told of their node
    #[command(subcommand)]
    Config(List),
    /// Datagrams in fragments, and the ports that later fragments lack
    #[command(subcommand)]
    Frag(List),
    /// The file system that maps and programs are pinned in
    #[command(subcommand)]
    Fs(filesystem::Command),
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum List {
    /// Every entry
    #[command(alias = "ls")]
    List,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Ipcache {
    /// Every entry
    #[command(alias = "ls")]
    List,
    /// The entry that decides about an address
    Get {
        /// An address
        address: String,
    },
    /// The entry of just this prefix
    Match {
        /// An address or a prefix
        prefix: String,
    },
}

async fn map(agent: &Agent, name: &str) -> anyhow::Result<Vec<Value>> {
    find(agent, name).await?.with_context(|| format!("there is no map {name}"))
}

/// The entries of a map, if it is there.
async fn find(agent: &Agent, name: &str) -> anyhow::Result<Option<Vec<Value>>> {
    let map = agent.find(&format!("/v1/map/{}", segment(name))).await?;
    let entries = |map: Value| {
        items(&map["entries"]).iter().filter(|entry| entry.is_object()).cloned().collect()
    };
    Ok(map.map(entries))
}

async fn maps(agent: &Agent, names: &[&str]) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for name in names {
        all.extend(map(agent, name).await?);
    }
    Ok(all)
}

/// Rows of a list, each a key with its values.
type Rows = Vec<(String, Vec<String>)>;

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let (header, rows) = match command {
        Command::Policy(command) => return policy::run(agent, command, format).await,
        Command::Ct(command) => return conntrack::run(agent, command, format).await,
        Command::Metrics(List::List) => {
            let entries = map(agent, "cilium_metrics").await?;
            if let Some(format) = format {
                return format.print(&counted(entries));
            }
            metrics(&entries).print();
            return Ok(());
        }
        Command::Ipcache(command) => {
            let entries = map(agent, "cilium_ipcache_v2").await?;
            let rows = ipcache(&chosen(command, entries)?);
            match (command, rows.first()) {
                (Ipcache::Get { address }, Some((_, value))) if format.is_none() => {
                    println!("{address} maps to identity {}", value.join(","));
                    return Ok(());
                }
                (Ipcache::Match { .. }, Some((prefix, value))) if format.is_none() => {
                    println!("key {prefix} has value {:?}", value.join(","));
                    return Ok(());
                }
                _ => (["IP PREFIX/ADDRESS", "IDENTITY"], rows),
            }
        }
        Command::Endpoint(List::List) => {
            (["IP ADDRESS", "LOCAL ENDPOINT INFO"], endpoint(&map(agent, "cilium_lxc").await?))
        }
        Command::Tunnel(List::List) => {
            (["TUNNEL", "VALUE"], tunnels(&map(agent, "cilium_ipcache_v2").await?))
        }
        Command::Lb(command) => lb::rows(agent, command).await?,
        Command::Config(List::List) => {
            (["KEY", "VALUE"], settings(&map(agent, "cilium_node_config").await?))
        }
        Command::Frag(List::List) => {
            let names = ["cilium_ipv4_frag_datagrams", "cilium_ipv6_frag_datagrams"];
            (["DATAGRAM", "PORTS"], fragments(&maps(agent, &names).await?))
        }
        Command::Fs(command) => return filesystem::run(agent, *command, format).await,
    };
    show(header, rows, format)
}

/// Prints rows: the key is blank from its second value on, and in JSON names the list of them.
fn show(header: [&str; 2], rows: Rows, format: Option<&Format>) -> anyhow::Result<()> {
    if let Some(format) = format {
        let members = rows.into_iter().map(|(key, values)| (key, Value::from(values)));
        return format.print(&Value::Object(members.collect()));
    }
    if rows.is_empty() {
        eprintln!("No entries found.");
        return Ok(());
    }
    let mut table = Table::new(5);
    table.row(header);
    for (key, values) in rows {
        let mut values = values.into_iter();
        table.closed([key, values.next().unwrap_or_default()]);
        values.for_each(|value| table.closed([String::new(), value]));
    }
    table.print();
    Ok(())
}

/// The entries that a command is about.
fn chosen(command: &Ipcache, entries: Vec<Value>) -> anyhow::Result<Vec<Value>> {
    use ipnet::IpNet;
    let net = |text: &str| {
        let host = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
        text.parse::<IpNet>().ok().or_else(host)
    };
    let (wanted, one) = match command {
        Ipcache::List => return Ok(entries),
        Ipcache::Get { address } => (address, true),
        Ipcache::Match { prefix } => (prefix, false),
    };
    let Some(asked) = net(wanted) else {
        bail!("{wanted:?} is neither an address nor a prefix");
    };
    let mut found: Vec<(u8, Value)> = entries
        .into_iter()
        .filter_map(|entry| {
            let has = net(&text(&entry["cidr"]))?;
            let fits = if one { has.contains(&asked) } else { has == asked.trunc() };
            fits.then(|| (has.prefix_len(), entry))
        })
        .collect();
    found.sort_by_key(|(length, _)| *length);
    found.drain(..found.len().saturating_sub(1));
    if found.is_empty() {
        let none = if one { "map to any identity" } else { "match to any ipcache entry" };
        bail!("{wanted} does not {none}");
    }
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

fn ipcache(entries: &[Value]) -> Rows {
    let row = |entry: &Value| {
        let tunnel = text(&entry["tunnelendpoint"]);
        let flags = match tunnel.as_str() {
            "" => "<none>",
            address if address.contains(':') => "hastunnel,ipv6tunnel",
            _ => "hastunnel",
        };
        let tunnel = if tunnel.is_empty() { "0.0.0.0".to_owned() } else { tunnel };
        let (identity, key) = (text(&entry["identity"]), text(&entry["encryptkey"]));
        let value =
            format!("identity={identity} encryptkey={key} tunnelendpoint={tunnel} flags={flags}");
        (text(&entry["cidr"]), vec![value])
    };
    entries.iter().map(row).collect()
}

/// The prefixes behind each node.
fn tunnels(entries: &[Value]) -> Rows {
    let mut by_node = std::collections::BTreeMap::<String, Vec<String>>::new();
    for entry in entries.iter().filter(|entry| !entry["tunnelendpoint"].is_null()) {
        by_node.entry(text(&entry["tunnelendpoint"])).or_default().push(text(&entry["cidr"]));
    }
    by_node.into_iter().collect()
}

fn endpoint(entries: &[Value]) -> Rows {
    let row = |entry: &Value| {
        let info = if entry["host"].as_bool() == Some(true) {
            "(localhost)".to_owned()
        } else {
            format!(
                "id={:<5} sec_id={:<5} flags=0x{:04X} ifindex={:<3} mac={} nodemac={} parent_ifindex={:<3}",
                text(&entry["id"]),
                text(&entry["identity"]),
                0,
                text(&entry["ifindex"]),
                text(&entry["mac"]),
                text(&entry["nodemac"]),
                0,
            )
        };
        // The cluster's id stands behind the address; all of these are here.
        (format!("{}:0", text(&entry["ip"])), vec![info])
    };
    entries.iter().map(row).collect()
}

fn settings(entries: &[Value]) -> Rows {
    entries.iter().map(|entry| (text(&entry["setting"]), vec![text(&entry["value"])])).collect()
}

fn fragments(entries: &[Value]) -> Rows {
    let row = |entry: &Value| {
        let [source, destination, id] =
            ["source", "destination", "id"].map(|name| text(&entry[name]));
        let [from, to] = ["source_port", "destination_port"].map(|name| text(&entry[name]));
        let datagram = format!("{source} -> {destination} {} id={id}", named(&entry["proto"]));
        (datagram, vec![format!("{from} -> {to}")])
    };
    entries.iter().map(row).collect()
}

fn metrics(entries: &[Value]) -> Table {
    let members = ["reason", "direction", "packets", "bytes", "line", "file"];
    let mut table = Table::new(5);
    table.row(members.map(str::to_uppercase));
    let mut rows: Vec<[String; 6]> =
        entries.iter().map(|entry| members.map(|member| text(&entry[member]))).collect();
    for [.., file] in &mut rows {
        named_file(file);
    }
    rows.sort();
    for row in rows {
        table.row(row);
    }
    table
}

/// Counters as Cilium's tool has them in JSON: the direction in small letters.
fn counted(mut entries: Vec<Value>) -> Value {
    for entry in &mut entries {
        entry["direction"] = text(&entry["direction"]).to_lowercase().into();
        let mut file = text(&entry["file"]);
        named_file(&mut file);
        entry["file"] = file.into();
    }
    Value::Array(entries)
}

/// A program's file that has no number.
fn named_file(file: &mut String) {
    if file.is_empty() {
        file.push_str("unknown(0)");
    }
}

fn ends(address: &Value, port: &Value) -> String {
    let address = text(address);
    if address.contains(':') {
        format!("[{address}]:{}", text(port))
    } else {
        format!("{address}:{}", text(port))
    }
}

fn number<T: TryFrom<u64> + Default>(value: &Value) -> T {
    value.as_u64().and_then(|number| T::try_from(number).ok()).unwrap_or_default()
}

fn named(proto: &Value) -> String {
    protocol::name(number(proto)).map_or_else(|| text(proto), str::to_owned)
}

/// An answer of keys and values, for programs.
fn pairs(entries: &[Value], is_key: impl Fn(&str) -> bool) -> Value {
    let pair = |entry: &Value| {
        let (key, value): (Vec<_>, Vec<_>) =
            entry.as_object().into_iter().flatten().partition(|(name, _)| is_key(name));
        let object = |members: Vec<(&String, &Value)>| -> Value {
            Value::Object(members.into_iter().map(|(n, v)| (n.clone(), v.clone())).collect())
        };
        json!({"Key": object(key), "Value": object(value)})
    };
    entries.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::{Ipcache, chosen, endpoint, fragments, ipcache, metrics, tunnels};
    use serde_json::{Value, json};

    #[test]
    fn tables_read_as_habits_expect() {
        let entries = [
            json!({"cidr": "10.0.1.7/32", "identity": 4711, "encryptkey": 0, "tunnelendpoint": "192.168.0.2"}),
            json!({"cidr": "192.168.0.1/32", "identity": 1, "encryptkey": 0, "tunnelendpoint": null}),
        ];
        let rows = ipcache(&entries);
        let remote = "identity=4711 encryptkey=0 tunnelendpoint=192.168.0.2 flags=hastunnel";
        assert_eq!(rows[0], ("10.0.1.7/32".to_owned(), vec![remote.to_owned()]));
        assert_eq!(rows[1].1, ["identity=1 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>"]);
        assert_eq!(tunnels(&entries), [("192.168.0.2".to_owned(), vec!["10.0.1.7/32".to_owned()])]);
        let pod = json!({"ip": "10.0.0.2", "id": 7, "identity": 4711, "ifindex": 12, "mac": "0A:00:00:00:00:01", "nodemac": "0A:00:00:00:00:02"});
        let want = "id=7     sec_id=4711  flags=0x0000 ifindex=12  mac=0A:00:00:00:00:01 nodemac=0A:00:00:00:00:02 parent_ifindex=0  ";
        let rows = endpoint(&[pod, json!({"ip": "10.0.0.1", "host": true})]);
        assert_eq!(rows[0], ("10.0.0.2:0".to_owned(), vec![want.to_owned()]));
        let datagram = json!({"source": "10.0.0.2", "destination": "10.0.1.7", "id": 9, "proto": 17, "source_port": 4711, "destination_port": 53});
        let want = ("10.0.0.2 -> 10.0.1.7 UDP id=9".to_owned(), vec!["4711 -> 53".to_owned()]);
        assert_eq!(fragments(&[datagram]), [want]);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let entry = |cidr: &str| json!({"cidr": cidr});
        let all = || ["0.0.0.0/0", "10.0.0.0/8", "10.0.1.7/32", "fd00::/8"].map(entry).to_vec();
        let cidrs = |command: &Ipcache| -> Option<Vec<Value>> {
            Some(chosen(command, all()).ok()?.into_iter().map(|one| one["cidr"].clone()).collect())
        };
        let get = |address: &str| cidrs(&Ipcache::Get { address: address.into() });
        assert_eq!(get("10.0.1.7"), Some(vec![json!("10.0.1.7/32")]));
        assert_eq!(get("10.0.1.8"), Some(vec![json!("10.0.0.0/8")]));
        assert_eq!(get("fe80::1"), None);
        assert_eq!(get("web"), None);
        let exact = |prefix: &str| cidrs(&Ipcache::Match { prefix: prefix.into() });
        assert_eq!(exact("10.0.0.0/8"), Some(vec![json!("10.0.0.0/8")]));
        assert_eq!(exact("10.0.1.7"), Some(vec![json!("10.0.1.7/32")]));
        assert_eq!(exact("10.0.0.0/16"), None);
    }

    #[test]
    fn counters_are_sorted() {
        let entry = |reason: &str, direction: &str| json!({"reason": reason, "direction": direction, "packets": 1, "bytes": 60, "line": 0, "file": ""});
        let want = "\
REASON          DIRECTION   PACKETS   BYTES   LINE   FILE
Policy denied   INGRESS     1         60      0      unknown(0)
Success         EGRESS      1         60      0      unknown(0)
Success         INGRESS     1         60      0      unknown(0)
";
        let entries = [
            entry("Success", "INGRESS"),
            entry("Policy denied", "INGRESS"),
            entry("Success", "EGRESS"),
        ];
        assert_eq!(metrics(&entries).render(), want);
    }
}
