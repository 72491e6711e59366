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

pub(super) fn labels(labels: &Value) -> Table {
    let mut table = Table::new(5);
    table.row(["SOURCE", "LABELS (source:key[=value])"]);
    let status = &labels["status"];
    let kinds = [
        ("security-relevant", &status["security-relevant"]),
        ("derived", &status["derived"]),
        ("disabled", &status["disabled"]),
        ("user", &status["realized"]["user"]),
    ];
    for (kind, labels) in kinds {
        let mut labels: Vec<String> = items(labels).iter().map(text).collect();
        labels.sort_unstable();
        for (index, label) in labels.iter().enumerate() {
            table.row([if index == 0 { kind } else { "" }, label]);
        }
    }
    table
}

pub(super) fn config(config: &Value) -> Table {
    let mut table = Table::new(5);
    for (option, value) in config["realized"]["options"].as_object().into_iter().flatten() {
        table.row([format!("{option}:"), text(value)]);
    }
    table
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

        let shown = labels(
            &json!({"status": {"security-relevant": ["k8s:b=1", "k8s:a=1"], "realized": {"user": []}}}),
        );
        let words: Vec<Vec<String>> = shown
            .render()
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(words, [vec!["security-relevant", "k8s:a=1"], vec!["k8s:b=1"]]);

        let shown = config(&json!({"realized": {"options": {"PolicyAuditMode": "Disabled"}}}));
        assert_eq!(shown.render(), "PolicyAuditMode:   Disabled\n");
    }
}
