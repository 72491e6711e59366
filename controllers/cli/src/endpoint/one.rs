//! What is shown of one endpoint.

use serde_json::Value;

use crate::output::{items, text};
use crate::table::Table;

/// Its states, the last one first.
pub(super) fn log(log: &Value) -> Table {
    let mut table = Table::new(5);
    table.row(["Timestamp", "Status", "State", "Message"]);
    for entry in items(log) {
        table.row(["timestamp", "code", "state", "message"].map(|member| text(&entry[member])));
    }
    table
}

pub(super) fn health(health: &Value) -> Table {
    let mut table = Table::new(2);
    let connected = if health["connected"].as_bool() == Some(true) { "yes" } else { "no" };
    table.row(["Overall Health:", &text(&health["overallHealth"])]);
    table.row(["BPF Health:", &text(&health["bpf"])]);
    table.row(["Policy Health:", &text(&health["policy"])]);
    table.row(["Connected:", connected]);
    table
}

/// The labels that make its identity, and those of its pod that were taken away.
pub(super) fn labels(labels: &Value) -> Table {
    let mut table = Table::new(2);
    let status = &labels["status"];
    let kinds = [
        ("Enabled", [&status["security-relevant"], &status["realized"]["user"]]),
        ("Disabled", [&status["disabled"], &Value::Null]),
    ];
    for (kind, lists) in kinds {
        let mut labels: Vec<String> = lists.into_iter().flat_map(items).map(text).collect();
        labels.sort_unstable();
        labels.dedup();
        for label in labels {
            table.row([label, kind.to_owned()]);
        }
    }
    table
}

/// Its options, as `cilia config` writes them.
pub(super) fn config(config: &Value) -> String {
    let options = config["realized"]["options"].as_object().into_iter().flatten();
    options.fold(String::new(), |all, (option, value)| {
        all + &format!("{option:<34}: {}\n", text(value))
    })
}

#[cfg(test)]
mod tests {
    use super::{config, health, labels, log};
    use serde_json::json;

    #[test]
    fn tables_of_one_endpoint() {
        let entry = json!({"timestamp": "2026-01-01T00:00:00Z", "code": "OK", "state": "ready", "message": "Set policy"});
        let shown = log(&json!([entry])).render();
        let want = "Timestamp              Status   State   Message\n\
                    2026-01-01T00:00:00Z   OK       ready   Set policy\n";
        assert_eq!(shown, want);

        let shown =
            health(&json!({"overallHealth": "OK", "bpf": "OK", "policy": "OK", "connected": true}));
        let want = "Overall Health:   OK\nBPF Health:       OK\nPolicy Health:    OK\nConnected:        yes\n";
        assert_eq!(shown.render(), want);

        let shown = labels(&json!({"status": {"security-relevant": ["k8s:b=1", "k8s:a=1"],
            "realized": {"user": ["unspec:c"]}, "disabled": ["k8s:d=1"]}}));
        let want =
            "k8s:a=1    Enabled\nk8s:b=1    Enabled\nunspec:c   Enabled\nk8s:d=1    Disabled\n";
        assert_eq!(shown.render(), want);

        let shown = config(&json!({"realized": {"options": {"PolicyAuditMode": "Disabled"}}}));
        assert_eq!(shown, "PolicyAuditMode                   : Disabled\n");
    }
}
