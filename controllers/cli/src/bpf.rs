//! `cilia bpf`: what the kernel's maps hold.

mod policy;

use anyhow::Context as _;
use cilia_policy::l4::protocol;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::identity;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Addresses and their identities
    #[command(subcommand)]
    Ipcache(List),
    /// Policies of endpoints
    #[command(subcommand)]
    Policy(policy::Command),
    /// Connections
    #[command(subcommand)]
    Ct(Ct),
    /// Local addresses
    #[command(subcommand)]
    Endpoint(List),
    /// Services
    #[command(subcommand)]
    Lb(Lb),
    /// Counters
    #[command(subcommand)]
    Metrics(List),
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum List {
    /// Every entry
    List,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Ct {
    /// Every connection
    List {
        /// Whose: global
        #[arg(default_value = "global", value_parser = ["global"])]
        whose: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Lb {
    /// Frontends and their backends
    List {
        /// Frontends by reverse-NAT id
        #[arg(long, conflicts_with = "backends")]
        revnat: bool,
        /// Backends by id
        #[arg(long)]
        backends: bool,
    },
}

async fn map(agent: &Agent, name: &str) -> anyhow::Result<Vec<Value>> {
    let map = agent
        .find(&format!("/v1/map/{name}"))
        .await?
        .with_context(|| format!("there is no map {name}"))?;
    Ok(items(&map["entries"]).to_vec())
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
        Command::Ct(Ct::List { .. }) => return connections(agent, format).await,
        Command::Metrics(List::List) => {
            let entries = map(agent, "cilium_metrics").await?;
            if let Some(format) = format {
                return format.print(&Value::Array(entries));
            }
            metrics(&entries).print();
            return Ok(());
        }
        Command::Ipcache(List::List) => {
            (["IP PREFIX/ADDRESS", "IDENTITY"], ipcache(&map(agent, "cilium_ipcache_v2").await?))
        }
        Command::Endpoint(List::List) => {
            (["IP ADDRESS", "LOCAL ENDPOINT INFO"], endpoint(&map(agent, "cilium_lxc").await?))
        }
        Command::Lb(Lb::List { revnat: true, .. }) => {
            let entries =
                maps(agent, &["cilium_lb4_reverse_nat", "cilium_lb6_reverse_nat"]).await?;
            (["ID", "SERVICE ADDRESS"], rev_nat(&entries))
        }
        Command::Lb(Lb::List { backends: true, .. }) => {
            let entries =
                maps(agent, &["cilium_lb4_backends_v3", "cilium_lb6_backends_v3"]).await?;
            (["BACKEND ID", "SERVICE ADDRESS"], backends(&entries))
        }
        Command::Lb(Lb::List { .. }) => {
            let header = ["SERVICE ADDRESS", "BACKEND ADDRESS (REVNAT_ID) (SLOT)"];
            (header, service(&services(agent).await?))
        }
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
        identity::rows(&mut table, &[key], values);
    }
    table.print();
    Ok(())
}

async fn connections(agent: &Agent, format: Option<&Format>) -> anyhow::Result<()> {
    let names = [
        "cilium_ct4_global",
        "cilium_ct_any4_global",
        "cilium_ct6_global",
        "cilium_ct_any6_global",
    ];
    let entries = maps(agent, &names).await?;
    if let Some(format) = format {
        return format.print(&Value::Array(entries));
    }
    for entry in &entries {
        println!("{}", connection(entry));
    }
    Ok(())
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
        (text(&entry["ip"]), vec![info.trim_end().to_owned()])
    };
    entries.iter().map(row).collect()
}

fn rev_nat(entries: &[Value]) -> Rows {
    let row = |entry: &Value| (text(&entry["id"]), vec![ends(&entry["ip"], &entry["port"])]);
    entries.iter().map(row).collect()
}

fn backends(entries: &[Value]) -> Rows {
    let row = |entry: &Value| {
        let place = format!("{}/{}", ends(&entry["ip"], &entry["port"]), named(&entry["proto"]));
        (text(&entry["id"]), vec![place])
    };
    entries.iter().map(row).collect()
}

/// Frontends and slots, with their backends' addresses.
async fn services(agent: &Agent) -> anyhow::Result<Vec<Value>> {
    let backends = maps(agent, &["cilium_lb4_backends_v3", "cilium_lb6_backends_v3"]).await?;
    let mut services = maps(agent, &["cilium_lb4_services_v2", "cilium_lb6_services_v2"]).await?;
    for service in &mut services {
        let found = backends.iter().find(|backend| backend["id"] == service["backend"]).cloned();
        service["address"] = json!(found);
    }
    Ok(services)
}

fn service(entries: &[Value]) -> Rows {
    let mut rows = Rows::new();
    for entry in entries {
        let frontend = format!("{}/{}", ends(&entry["ip"], &entry["port"]), named(&entry["proto"]));
        let (rev_nat, slot) = (text(&entry["revnat"]), text(&entry["slot"]));
        let backend = &entry["address"];
        let value = if slot == "0" {
            let nowhere = if text(&entry["ip"]).contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            format!("{nowhere} ({rev_nat}) (0) [ClusterIP, non-routable]")
        } else if backend.is_null() {
            format!("backend {} not found", text(&entry["backend"]))
        } else {
            let place = ends(&backend["ip"], &backend["port"]);
            format!("{place}/{} ({rev_nat}) ({slot})", named(&backend["proto"]))
        };
        match rows.last_mut() {
            Some((last, values)) if *last == frontend => values.push(value),
            _ => rows.push((frontend, vec![value])),
        }
    }
    rows
}

fn metrics(entries: &[Value]) -> Table {
    let mut table = Table::new(5);
    table.row(["REASON", "DIRECTION", "PACKETS", "BYTES"]);
    for entry in entries {
        table.row(["reason", "direction", "packets", "bytes"].map(|member| text(&entry[member])));
    }
    table
}

/// A connection in Cilium's words.
fn connection(entry: &Value) -> String {
    format!(
        "{} {} {} -> {} expires={} RxFlagsSeen=0x{:02x} TxFlagsSeen=0x{:02x} Flags=[ {}{}] RevNAT={} SourceSecurityID={} \
         BackendID={}",
        named(&entry["proto"]),
        text(&entry["direction"]),
        ends(&entry["source"], &entry["source_port"]),
        ends(&entry["destination"], &entry["destination_port"]),
        text(&entry["expires"]),
        entry["rx_flags"].as_u64().unwrap_or(0),
        entry["tx_flags"].as_u64().unwrap_or(0),
        if entry["closing"].as_bool() == Some(true) { "Closing " } else { "" },
        if entry["established"].as_bool() == Some(true) { "SeenNonSyn " } else { "" },
        text(&entry["revnat"]),
        text(&entry["identity"]),
        text(&entry["backend"]),
    )
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

#[cfg(test)]
mod tests {
    use super::ipcache;
    use serde_json::json;

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
    }
}
