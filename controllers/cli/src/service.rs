//! `cilia service`.

use serde_json::Value;

use crate::agent::Agent;
use crate::output::{Format, items, text};
use crate::table::Table;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// All services that are balanced on this node
    #[command(alias = "ls")]
    List {
        /// Which backends a service prefers by their clusters
        #[arg(long)]
        clustermesh_affinity: bool,
    },
}

pub(crate) async fn run(
    agent: &Agent,
    command: &Command,
    format: Option<&Format>,
) -> anyhow::Result<()> {
    let Command::List { clustermesh_affinity } = command;
    let services = agent.get("/v1/service").await?;
    match format {
        Some(format) => format.print(&services)?,
        None => list(items(&services), *clustermesh_affinity).print(),
    }
    Ok(())
}

/// Services in a table, by identifier.
pub(crate) fn list(services: &[Value], affinity: bool) -> Table {
    let mut services: Vec<&Value> = services.iter().map(|one| &one["status"]["realized"]).collect();
    services.sort_by_key(|service| service["id"].as_u64());
    let mut table = Table::new(5);
    table.closed(["ID", "Frontend", "Service Type", "Backend"]);
    for service in services {
        let backend = |(index, backend): (usize, &Value)| {
            let preferred = affinity && backend["preferred"].as_bool() == Some(true);
            let mark = if preferred { " (preferred)" } else { "" };
            format!("{} => {} ({}){mark}", index + 1, place(backend), text(&backend["state"]))
        };
        let mut backends = items(&service["backend-addresses"]).iter().enumerate().map(backend);
        let remote = if text(&service["flags"]["cluster"]).is_empty() { "" } else { " (Remote)" };
        let first = [
            text(&service["id"]),
            place(&service["frontend-address"]),
            text(&service["flags"]["type"]) + remote,
        ];
        let backend = backends.next().unwrap_or_default();
        table.closed(first.into_iter().chain([backend]));
        for backend in backends {
            table.closed(["", "", "", &backend]);
        }
    }
    table
}

/// `address:port/protocol`.
pub(crate) fn place(value: &Value) -> String {
    let (address, port, protocol) =
        (text(&value["ip"]), text(&value["port"]), text(&value["protocol"]));
    if address.contains(':') {
        format!("[{address}]:{port}/{protocol}")
    } else {
        format!("{address}:{port}/{protocol}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::list;

    #[test]
    fn backends_have_rows_of_their_own() {
        let backend = |ip: &str, state: &str, preferred: bool| json!({"ip": ip, "port": 8080, "protocol": "TCP", "state": state, "preferred": preferred});
        let service = |id: u16, ip: &str, backends: serde_json::Value| {
            let frontend = json!({"ip": ip, "port": 80, "protocol": "TCP"});
            let spec = json!({"id": id, "frontend-address": frontend, "backend-addresses": backends, "flags": {"type": "ClusterIP"}});
            json!({"status": {"realized": spec}})
        };
        let two =
            json!([backend("10.0.0.1", "active", true), backend("10.0.0.2", "terminating", false)]);
        let services = [service(12, "fd00::1", json!([])), service(3, "10.96.0.1", two)];
        let want = "\
ID   Frontend           Service Type   Backend
3    10.96.0.1:80/TCP   ClusterIP      1 => 10.0.0.1:8080/TCP (active)
                                       2 => 10.0.0.2:8080/TCP (terminating)
12   [fd00::1]:80/TCP   ClusterIP
";
        assert_eq!(list(&services, false).trimmed(), want);
        let preferred = list(&services, true).trimmed();
        assert!(preferred.contains("8080/TCP (active) (preferred)\n"), "{preferred}");
        assert!(preferred.contains("(terminating)\n"), "{preferred}");
    }
}
