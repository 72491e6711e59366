//! `cilia bpf lb`: services as the programs see them.

use serde_json::{Value, json};

use super::{Rows, ends, maps, named};
use crate::agent::Agent;
use crate::output::text;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Frontends and their backends
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

pub(super) async fn rows(
    agent: &Agent,
    command: &Command,
) -> anyhow::Result<([&'static str; 2], Rows)> {
    let both = |v4: &'static str, v6: &'static str| [v4, v6];
    Ok(match command {
        Command::List { revnat: true, .. } => {
            let names = both("cilium_lb4_reverse_nat", "cilium_lb6_reverse_nat");
            (["ID", "SERVICE ADDRESS"], rev_nat(&maps(agent, &names).await?))
        }
        Command::List { backends: true, .. } => {
            let names = both("cilium_lb4_backends_v3", "cilium_lb6_backends_v3");
            (["ID", "SERVICE ADDRESS"], backends(&maps(agent, &names).await?))
        }
        // Services are restricted by no map yet.
        Command::List { source_ranges: true, .. } => {
            (["SOURCE RANGE (REVNAT_ID)", ""], Rows::new())
        }
        Command::List { frontends, .. } => {
            let mut rows = services(&with_backends(agent).await?);
            if *frontends {
                for (_, values) in &mut rows {
                    values.truncate(1);
                }
            }
            (["SERVICE ADDRESS", "BACKEND ADDRESS (REVNAT_ID) (SLOT)"], rows)
        }
    })
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

fn services(entries: &[Value]) -> Rows {
    let mut rows = Rows::new();
    for entry in entries {
        let frontend = format!("{}/{}", ends(&entry["ip"], &entry["port"]), named(&entry["proto"]));
        let (rev_nat, slot) = (text(&entry["revnat"]), text(&entry["slot"]));
        let backend = &entry["address"];
        let value = if slot == "0" {
            let nowhere = if text(&entry["ip"]).contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let keeps = entry["flags"].as_u64().unwrap_or(0) & AFFINITY != 0;
            let affinity = if keeps { "sessionAffinity, " } else { "" };
            format!("{nowhere} ({rev_nat}) (0) [ClusterIP, {affinity}non-routable]")
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

#[cfg(test)]
mod tests {
    use super::services;
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
            "0.0.0.0:0 (3) (0) [ClusterIP, non-routable]",
            "192.0.2.1:6443/TCP (3) (1)",
            "backend 9 not found",
        ];
        assert_eq!(rows, [("10.96.0.1:443/TCP".to_owned(), want.map(str::to_owned).to_vec())]);
        let mut keeping = entry(0, json!(null));
        keeping["flags"] = json!(16);
        let shown = "0.0.0.0:0 (3) (0) [ClusterIP, sessionAffinity, non-routable]";
        assert_eq!(services(&[keeping])[0].1, [shown]);
    }
}
