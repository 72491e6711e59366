//! Adds up by rule what the kernel counts by entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cilia_loader::{Datapath, Error, PolicyEntry, PolicyKey, PolicyStats};
use cilia_policy::{Origin, Repository};
use serde_json::{Value, json};

use super::Parts;

/// What entries with one cookie have decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sum {
    endpoints: BTreeSet<u16>,
    entries: u64,
    packets: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.endpoints.extend(&other.endpoints);
        self.entries += other.entries;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What every rule has decided at this node's endpoints; or why that is not known.
pub(super) async fn rules(parts: &Parts) -> Result<Value, String> {
    let datapath = Arc::clone(&parts.datapath);
    let sums = tokio::task::spawn_blocking(move || read(&datapath)).await;
    let sums = sums.map_err(|error| format!("read counters: {error}"))?;
    let sums = sums.map_err(|error| error.to_string())?;
    if sums.is_empty() {
        // No endpoint has a policy: the agent may not be so far that anybody could be asked.
        return Ok(Value::Array(Vec::new()));
    }
    let rules = parts.enforcer.ask(move |rules| by_rule(rules, &sums)).await;
    rules.map(Value::from).ok_or_else(|| "the agent is stopping".to_owned())
}

/// The sums by cookie, of all endpoints of the node.
fn read(datapath: &Datapath) -> Result<BTreeMap<u32, Sum>, Error> {
    let counted: BTreeMap<(u16, PolicyKey), PolicyStats> =
        datapath.policy_stats()?.into_iter().map(|(id, key, sum)| ((id, key), sum)).collect();
    let mut sums = BTreeMap::new();
    for id in datapath.policies()? {
        add(&mut sums, id, &datapath.policy(id)?.entries()?, &counted);
    }
    Ok(sums)
}

fn add(
    sums: &mut BTreeMap<u32, Sum>,
    endpoint: u16,
    entries: &[(PolicyKey, PolicyEntry)],
    counted: &BTreeMap<(u16, PolicyKey), PolicyStats>,
) {
    for (key, entry) in entries {
        let sum = sums.entry(entry.cookie).or_default();
        sum.endpoints.insert(endpoint);
        sum.entries += 1;
        if let Some(counted) = counted.get(&(endpoint, *key)) {
            sum.packets += counted.packets;
            sum.bytes += counted.bytes;
        }
    }
}

/// The sums by rule. What several rules say with one entry counts for each of them.
fn by_rule(rules: &Repository, sums: &BTreeMap<u32, Sum>) -> Vec<Value> {
    let mut of_rules: BTreeMap<&Origin, Sum> = BTreeMap::new();
    for (cookie, sum) in sums {
        for origin in rules.origins(*cookie) {
            of_rules.entry(origin).or_default().add(sum);
        }
    }
    let show = |(origin, sum): (&Origin, Sum)| {
        json!({"policy": origin.policy.to_string(), "field": origin.field, "log": origin.log,
            "endpoints": sum.endpoints.len(), "entries": sum.entries, "packets": sum.packets,
            "bytes": sum.bytes})
    };
    of_rules.into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_loader::{PolicyEntry, PolicyKey, PolicyStats};
    use cilia_policy::{Config, Kind, NamedPorts, PolicyId, Repository};
    use serde_json::json;

    use super::{add, by_rule};

    #[test]
    fn an_entry_counts_for_every_rule_that_makes_it() {
        let mut rules = Repository::new(Config::default());
        let peer = json!([{"matchLabels": {"reserved:health": ""}}]);
        let port = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
        let spec = json!({"endpointSelector": {"matchLabels": {"reserved:init": ""}}, "ingress": [
            {"fromEndpoints": peer, "toPorts": port}, {"fromEndpoints": peer, "toPorts": port}]});
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let parsed =
            cilia_policy::clusterwide(&serde_json::from_value(policy).unwrap(), &Config::default());
        let id = PolicyId { kind: Kind::CiliumClusterwide, namespace: "".into(), name: "p".into() };
        rules.set_policy(id, parsed.unwrap().rules);
        let init = cilia_crds::NumericIdentity::INIT;
        let map = rules.policy(init, &NamedPorts::new()).unwrap();
        let entries: Vec<(PolicyKey, PolicyEntry)> = map
            .entries()
            .map(|(key, entry)| {
                let key = PolicyKey {
                    identity: key.identity,
                    egress: key.egress,
                    proto: key.proto,
                    port: key.port,
                    port_prefix: key.port_prefix,
                };
                (key, PolicyEntry { deny: entry.deny, view: entry.view, cookie: entry.cookie })
            })
            .collect();
        let key = PolicyKey::port(4, false, 6, 80);
        let counted = BTreeMap::from([
            ((7, key), PolicyStats { packets: 2, bytes: 120 }),
            ((8, key), PolicyStats { packets: 3, bytes: 180 }),
        ]);
        let mut sums = BTreeMap::new();
        for endpoint in [7, 8, 9] {
            add(&mut sums, endpoint, &entries, &counted);
        }
        let of = |field: &str| {
            json!({"policy": "CiliumClusterwideNetworkPolicy p", "field": field, "log": null,
            "endpoints": 3, "entries": 3, "packets": 5, "bytes": 300})
        };
        assert_eq!(by_rule(&rules, &sums), [of("spec.ingress[0]"), of("spec.ingress[1]")]);
    }
}
