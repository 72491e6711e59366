//! `cilia bpf lb`: services as the programs see them.

use serde_json::{Value, json};

use super::{Rows, ends, maps, named};
use crate::agent::Agent;
use crate::output::text;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Frontends and their backends
    #[command(alias = "ls")]
    List {
        /// Frontends by reverse-NAT id
        #[arg(long, conflicts_with_all = ["backends", "frontends", "source_ranges"])]
        revnat: bool,
        /// Frontends without their backends
        #[arg(long, conflicts_with_all = ["backends", "source_ranges"])]
        frontends: bool,
        /// Backends by id
        #[arg(long, conflicts_with = "source_ranges")]
        backends: bool,
        /// Who may use a service
        #[arg(long)]
        source_ranges: bool,
    },
}

const ID: &str = "ID";
const SERVICE: &str = "SERVICE ADDRESS";
const BACKEND: &str = "BACKEND ADDRESS (REVNAT_ID) (SLOT)";
const BACKEND_ID: &str = "BACKEND ID";
const SOURCES: &str = "SOURCE RANGE (REVNAT_ID)";

pub(super) async fn rows(
    agent: &Agent,
    command: &Command,
) -> anyhow::Result<([&'static str; 2], Rows)> {
    let both = |v4: &'static str, v6: &'static str| [v4, v6];
    Ok(match command {
        Command::List { revnat: true, .. } => {
            let names = both("cilium_lb4_reverse_nat", "cilium_lb6_reverse_nat");
            ([ID, BACKEND], rev_nat(&maps(agent, &names).await?))
        }
        Command::List { backends: true, .. } => {
            let names = both("cilium_lb4_backends_v3", "cilium_lb6_backends_v3");
            ([ID, BACKEND], backends(&maps(agent, &names).await?))
        }
        // Services are restricted by no map yet.
        Command::List { source_ranges: true, .. } => ([SOURCES, ""], Rows::new()),
        Command::List { frontends: true, .. } => {
            let names = both("cilium_lb4_services_v2", "cilium_lb6_services_v2");
            ([SERVICE, BACKEND_ID], frontends(&maps(agent, &names).await?))
        }
        Command::List { .. } => ([SERVICE, BACKEND], services(&with_backends(agent).await?)),
    })
}

fn rev_nat(entries: &[Value]) -> Rows {
    let row = |entry: &Value| (text(&entry["id"]), vec![ends(&entry["ip"], &entry["port"])]);
    entries.iter().map(row).collect()
}

fn backends(entries: &[Value]) -> Rows {
    let row = |entry: &Value| {
        let place = format!("{}://{}", named(&entry["proto"]), ends(&entry["ip"], &entry["port"]));
        (text(&entry["id"]), vec![place])
    };
    entries.iter().map(row).collect()
}

/// Frontends and slots, with their backends' addresses.
async fn with_backends(agent: &Agent) -> anyhow::Result<Vec<Value>> {
    let backends = maps(agent, &["cilium_lb4_backends_v3", "cilium_lb6_backends_v3"]).await?;
    let by_id: std::collections::HashMap<Option<u64>, &Value> =
        backends.iter().map(|backend| (backend["id"].as_u64(), backend)).collect();
    let mut services = maps(agent, &["cilium_lb4_services_v2", "cilium_lb6_services_v2"]).await?;
    for service in &mut services {
        service["address"] = json!(by_id.get(&service["backend"].as_u64()));
    }
    Ok(services)
}

/// The bit of a service's flags that says that clients keep their backends.
const AFFINITY: u64 = 16;

/// What is behind each frontend, by slot: the backend's id, how many there are and are in quarantine, the
/// reverse-NAT id, the flags.
fn frontends(entries: &[Value]) -> Rows {
    by_frontend(entries, |entry| {
        let count = |name: &str| entry[name].as_u64().unwrap_or(0);
        let [backend, backends, revnat] = ["backend", "count", "revnat"].map(count);
        let flags = count("flags");
        format!("{backend} {backends}[0] ({revnat}) [{:#x} {:#x}]", flags & 0xff, flags >> 8)
    })
}

fn services(entries: &[Value]) -> Rows {
    by_frontend(entries, |entry| {
        let (rev_nat, slot) = (text(&entry["revnat"]), text(&entry["slot"]));
        let backend = &entry["address"];
        if slot == "0" {
            let nowhere = if text(&entry["ip"]).contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let keeps = entry["flags"].as_u64().unwrap_or(0) & AFFINITY != 0;
            let affinity = if keeps { "sessionAffinity, " } else { "" };
            format!("{nowhere} ({rev_nat}) (0) [ClusterIP, {affinity}non-routable]")
        } else if backend.is_null() {
            format!("backend {} not found", text(&entry["backend"]))
        } else {
            let place = ends(&backend["ip"], &backend["port"]);
            format!("{place}/{} ({rev_nat}) ({slot})", named(&backend["proto"]))
        }
    })
}

/// A row for each slot of a frontend.
fn by_frontend(entries: &[Value], value: impl Fn(&Value) -> String) -> Rows {
    let row = |entry: &Value| {
        let frontend = ends(&entry["ip"], &entry["port"]);
        let (proto, slot) = (named(&entry["proto"]), text(&entry["slot"]));
        (format!("{frontend}/{proto} ({slot})"), vec![value(entry)])
    };
    entries.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{backends, frontends, services};
    use serde_json::json;

    #[test]
    fn a_slot_in_a_row() {
        let entry = |slot: u16, address: serde_json::Value| {
            json!({"ip": "10.96.0.1", "port": 443, "proto": 6, "slot": slot, "revnat": 3,
            "backend": 9, "address": address})
        };
        let backend = json!({"ip": "192.0.2.1", "port": 6443, "proto": 6});
        let rows = services(&[entry(0, json!(null)), entry(1, backend), entry(2, json!(null))]);
        let want = [
            ("10.96.0.1:443/TCP (0)", "0.0.0.0:0 (3) (0) [ClusterIP, non-routable]"),
            ("10.96.0.1:443/TCP (1)", "192.0.2.1:6443/TCP (3) (1)"),
            ("10.96.0.1:443/TCP (2)", "backend 9 not found"),
        ];
        let want = want.map(|(frontend, value)| (frontend.to_owned(), vec![value.to_owned()]));
        assert_eq!(rows, want);
        let mut keeping = entry(0, json!(null));
        keeping["flags"] = json!(16);
        let shown = "0.0.0.0:0 (3) (0) [ClusterIP, sessionAffinity, non-routable]";
        assert_eq!(services(&[keeping])[0].1, [shown]);
        let mut first = entry(0, json!(null));
        (first["count"], first["backend"], first["flags"]) = (json!(2), json!(0), json!(0x0110));
        let slots = frontends(&[first, entry(1, json!(null))]);
        let values: Vec<&str> = slots.iter().map(|(_, values)| values[0].as_str()).collect();
        assert_eq!(values, ["0 2[0] (3) [0x10 0x1]", "9 0[0] (3) [0x0 0x0]"]);
        let backend = json!({"id": 9, "ip": "fd00::1", "port": 80, "proto": 6});
        assert_eq!(backends(&[backend]), [("9".to_owned(), vec!["TCP://[fd00::1]:80".to_owned()])]);
    }
}
