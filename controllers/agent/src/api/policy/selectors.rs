//! The selectors of policies in use: of their peers, and of those whom they concern; Cilium's `SelectorCache`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_crds::{Labels, NumericIdentity};
use cilia_policy::rule::{Peer, Peers, Rule};
use cilia_policy::{PolicyId, Repository};
use serde_json::{Value, json};

use super::super::Parts;
use super::super::endpoint::Host;

/// A selector: who uses it, how often, and whom it selects.
struct Used<'a> {
    selector: String,
    of: Vec<&'a PolicyId>,
    users: u32,
    identities: BTreeSet<NumericIdentity>,
}

impl Used<'_> {
    fn show(&self) -> Value {
        let identities: Vec<u32> = self.identities.iter().map(|identity| identity.0).collect();
        let policies: Vec<String> = self.of.iter().map(ToString::to_string).collect();
        let labels: Vec<Value> = self.of.iter().flat_map(|policy| labels(policy)).collect();
        json!({"selector": self.selector, "labels": labels, "users": self.users,
            "identities": identities, "policies": policies})
    }
}

/// The labels by which Cilium tells whose a rule is.
fn labels(policy: &PolicyId) -> Vec<Value> {
    let label = |name: &str, value: &str| json!({"key": format!("io.cilium.k8s.policy.{name}"), "value": value, "source": "k8s"});
    let mut labels = vec![label("derived-from", policy.kind.name()), label("name", &policy.name)];
    if !policy.namespace.is_empty() {
        labels.push(label("namespace", &policy.namespace));
    }
    labels
}

/// The peer selectors in use: who is selected, how many rules' peers use them, and of which policies.
pub(in super::super) async fn selectors(State(parts): State<Arc<Parts>>) -> Response {
    answer(&parts, |rules| {
        let of = |peer: &Peer| -> Vec<&PolicyId> {
            let uses = |rules: &Vec<Rule>| {
                let items = rules.iter().flat_map(|rule| [&rule.ingress, &rule.egress]);
                items
                    .flatten()
                    .flat_map(|section| &section.items)
                    .any(|item| matches!(&item.peers, Peers::Of(peers) if peers.contains(peer)))
            };
            let using = rules.policies().iter().filter(|(_, rules)| uses(rules));
            using.map(|(id, _)| id).collect()
        };
        let used = |(peer, users, identities): (&Peer, u32, &BTreeSet<NumericIdentity>)| Used {
            selector: peer.to_string(),
            of: of(peer),
            users,
            identities: identities.clone(),
        };
        rules.selectors().map(|one| used(one).show()).collect()
    })
    .await
}

/// The selectors of those whom policies concern, with the identities of this node's endpoints that are concerned.
pub(in super::super) async fn subject_selectors(State(parts): State<Arc<Parts>>) -> Response {
    let endpoints = parts.endpoints.list();
    let mut local: BTreeMap<(bool, NumericIdentity), Labels> = BTreeMap::new();
    for endpoint in &endpoints {
        if let Some(identity) = endpoint.identity {
            local.insert((false, identity), endpoint.labels.clone());
        }
    }
    local.extend(Host::of(&parts).map(|host| ((true, NumericIdentity::HOST), host.set)));
    answer(&parts, move |rules| subjects(rules, &local).values().map(Used::show).collect()).await
}

/// By the selectors' texts; one for nodes is another one than the same for endpoints.
fn subjects<'a>(
    rules: &'a Repository,
    local: &BTreeMap<(bool, NumericIdentity), Labels>,
) -> BTreeMap<(String, bool), Used<'a>> {
    let mut used: BTreeMap<(String, bool), Used<'_>> = BTreeMap::new();
    for (policy, rules) in rules.policies() {
        for rule in rules {
            let selector = rule.subject.to_string();
            let one = used.entry((selector.clone(), rule.of_nodes)).or_insert_with(|| {
                let meant = local.iter().filter(|((node, _), labels)| {
                    *node == rule.of_nodes && rule.subject.matches(labels)
                });
                let identities = meant.map(|((_, identity), _)| *identity).collect();
                Used { selector, of: Vec::new(), users: 0, identities }
            });
            one.users += 1;
            if one.of.last() != Some(&policy) {
                one.of.push(policy);
            }
        }
    }
    used
}

async fn answer(
    parts: &Parts,
    list: impl FnOnce(&Repository) -> Vec<Value> + Send + 'static,
) -> Response {
    match parts.enforcer.ask(|rules| list(rules)).await {
        Some(listed) => Json(listed).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_crds::{Labels, NumericIdentity};
    use cilia_policy::{Config, Kind, PolicyId, Repository};
    use serde_json::json;

    use super::{Used, subjects};

    #[test]
    fn subjects_are_told_with_whom_they_are_here() {
        let mut rules = Repository::new(Config::default());
        for (name, app) in [("a", "web"), ("b", "web"), ("c", "db")] {
            let spec = json!({"endpointSelector": {"matchLabels": {"app": app}}, "ingress": [{}]});
            let policy = json!({"metadata": {"name": name}, "spec": spec});
            let policy = serde_json::from_value(policy).expect("a policy");
            let parsed = cilia_policy::clusterwide(&policy, &Config::default()).expect("valid");
            let id =
                PolicyId { kind: Kind::CiliumClusterwide, namespace: "".into(), name: name.into() };
            rules.set_policy(id, parsed.rules);
        }
        let web = [("k8s:app".to_owned(), "web".to_owned())].into();
        let web = Labels::from_security_labels(&web);
        let local = BTreeMap::from([
            ((false, NumericIdentity(5000)), web.clone()),
            ((true, NumericIdentity::HOST), web),
        ]);
        let shown: Vec<_> = subjects(&rules, &local).values().map(Used::show).collect();
        let of = |name: &str, kind: &str| {
            json!([{"key": "io.cilium.k8s.policy.derived-from", "value": kind, "source": "k8s"},
                {"key": "io.cilium.k8s.policy.name", "value": name, "source": "k8s"}])
        };
        let kind = "CiliumClusterwideNetworkPolicy";
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert_eq!((&shown[0]["users"], &shown[0]["identities"]), (&json!(1), &json!([])));
        assert_eq!(shown[0]["labels"], of("c", kind));
        assert_eq!((&shown[1]["users"], &shown[1]["identities"]), (&json!(2), &json!([5000])));
        let both = json!([format!("{kind} a"), format!("{kind} b")]);
        assert_eq!(shown[1]["policies"], both);
    }
}
