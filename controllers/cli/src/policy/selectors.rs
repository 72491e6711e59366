//! `cilia policy selectors`: whom the peers of policies' rules are.

use serde_json::Value;

use crate::output::{items, text};
use crate::table::Table;

/// The selectors in use, each with its identities below one another. Policies are named by namespace and name;
/// `verbose`, by their kind too.
pub(super) fn table(listed: &[Value], verbose: bool) -> Table {
    let mut table = Table::new(5);
    table.row(["SELECTOR", "LABELS", "USERS", "IDENTITIES"]);
    for one in listed {
        let mut identities = items(&one["identities"]).iter().map(text);
        let label = |policy: &Value| {
            let policy = text(policy);
            let short = policy.split_once(' ').map_or(policy.as_str(), |(_, name)| name);
            if verbose { policy.clone() } else { short.to_owned() }
        };
        let labels: Vec<String> = items(&one["policies"]).iter().map(label).collect();
        table.row([
            text(&one["selector"]),
            labels.join(", "),
            text(&one["users"]),
            identities.next().unwrap_or_default(),
        ]);
        identities.for_each(|identity| table.row(["", "", "", &identity]));
    }
    table
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
        assert_eq!(short[1..], ["{app=client} shop/a, shop/b 2 5000", "5001", "{app=none} 1"]);
        let first = "{app=client} CiliumNetworkPolicy shop/a, NetworkPolicy shop/b 2 5000";
        assert_eq!(rows(true)[1], first);
    }
}
