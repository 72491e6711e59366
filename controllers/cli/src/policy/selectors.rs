//! `cilia policy selectors`: whom the peers of policies' rules are.

use serde_json::Value;

use crate::output::{items, text};
use crate::table::Table;

/// The selectors in use, in order, each with its identities below one another. Policies are named by namespace
/// and name; `verbose`, by all of their labels.
pub(super) fn table(listed: &[Value], verbose: bool) -> Table {
    let mut table = Table::new(5);
    table.row(["SELECTOR", "LABELS", "USERS", "IDENTITIES"]);
    let mut listed: Vec<&Value> = listed.iter().collect();
    listed.sort_by_key(|one| text(&one["selector"]));
    for one in listed {
        let mut identities = items(&one["identities"]).iter().map(text);
        let row = [
            text(&one["selector"]),
            if verbose { labels(one) } else { names(one) },
            text(&one["users"]),
        ];
        table.closed(row.into_iter().chain(identities.next()));
        identities.for_each(|identity| table.closed(["", "", "", &identity]));
    }
    table
}

/// The policies that have the selector; those that are not of a namespace have no name here.
fn names(one: &Value) -> String {
    if let Some(policies) = one["policies"].as_array() {
        let short = |policy: &Value| {
            let policy = text(policy);
            policy.split_once(' ').map_or(policy.clone(), |(_, name)| name.to_owned())
        };
        return policies.iter().map(short).collect::<Vec<_>>().join(", ");
    }
    let label = |name: &str| {
        let key = format!("io.cilium.k8s.policy.{name}");
        items(&one["labels"])
            .iter()
            .find(|label| label["key"] == key.as_str())
            .map(|label| text(&label["value"]))
    };
    label("namespace").map_or_else(String::new, |namespace| {
        format!("{namespace}/{}", label("name").unwrap_or_default())
    })
}

/// `[source:key=value ...]` by key.
fn labels(one: &Value) -> String {
    let mut labels: Vec<[String; 3]> = items(&one["labels"])
        .iter()
        .map(|label| ["key", "value", "source"].map(|member| text(&label[member])))
        .collect();
    if labels.is_empty() {
        return String::new();
    }
    labels.sort_unstable();
    let written = labels.into_iter().map(|[key, value, source]| {
        let value = if value.is_empty() { value } else { format!("={value}") };
        format!("{source}:{key}{value}")
    });
    format!("[{}]", written.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::table;

    #[test]
    fn selectors_have_a_row_for_each_identity() {
        let listed = [
            json!({"selector": "{app=client}", "policies": ["CiliumNetworkPolicy shop/a", "NetworkPolicy shop/b"],
                "users": 2, "identities": [5000, 5001]}),
            json!({"selector": "{app=a}", "users": 1, "identities": [], "labels": [
                {"key": "io.cilium.k8s.policy.namespace", "value": "shop", "source": "k8s"},
                {"key": "io.cilium.k8s.policy.name", "value": "c", "source": "k8s"}]}),
            json!({"selector": "{app=none}", "policies": [], "users": 1, "identities": []}),
        ];
        let rows = |verbose| -> Vec<String> {
            let shown = table(&listed, verbose).render();
            shown
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect()
        };
        let short = rows(false);
        assert_eq!(short[0], "SELECTOR LABELS USERS IDENTITIES");
        let want =
            ["{app=a} shop/c 1", "{app=client} shop/a, shop/b 2 5000", "5001", "{app=none} 1"];
        assert_eq!(short[1..], want);
        let first =
            "{app=a} [k8s:io.cilium.k8s.policy.name=c k8s:io.cilium.k8s.policy.namespace=shop] 1";
        assert_eq!(rows(true)[1], first);
    }
}
