//! Says on a policy what former agents say about it in the kvstore, and takes that away once the policy is gone.
//!
//! Agents of today write no such keys, and policies have no field for each node any more: it made an
//! object grow with its cluster. What the nodes say becomes one condition, [`ENFORCED`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_kvstore::value::{PolicyNodeStatus, decode};
use cilia_kvstore::{Client, Event, KeyValue, keys};
use cilia_policy::Lenient;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::wiring::Context;

/// Policies are asked for one by one: how often, in case one was deleted without a word.
const AGAIN: Duration = Duration::from_mins(30);
/// The condition's type.
const ENFORCED: &str = "Enforced";
/// Whose the condition is: not the one's who writes `Valid`.
const MANAGER: &str = "cilium-operator-kvstore";
/// Nodes whose faults a message names.
const NAMED: usize = 5;
/// Characters of a fault that are repeated.
const LONGEST: usize = 200;

/// A policy of which a node says something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Policy {
    namespace: String,
    name: String,
    uid: String,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    node: String,
    /// Why it does not enforce the policy, if it does not.
    fault: Option<String>,
    /// The revision of its key.
    revision: i64,
}

/// What all nodes say, by policy and key.
#[derive(Debug, Default)]
struct Words {
    policies: BTreeMap<Policy, BTreeMap<String, Word>>,
    of: BTreeMap<String, Policy>,
}

impl Words {
    /// Takes an event in; the policies that it is about.
    fn take(&mut self, event: &Event) -> BTreeSet<Policy> {
        let (key, news) = match event {
            Event::Deleted(key) => (key.clone(), None),
            Event::Put(kv) => match read(kv) {
                Ok((policy, word)) => {
                    (String::from_utf8_lossy(&kv.key).into_owned(), Some((policy, word)))
                }
                Err(reason) => {
                    tracing::warn!(reason, "ignoring a policy's status");
                    return BTreeSet::new();
                }
            },
            Event::Listed | Event::Progress(_) => return BTreeSet::new(),
        };
        let mut touched = BTreeSet::new();
        if let Some(policy) = self.of.remove(&key) {
            if let Some(words) = self.policies.get_mut(&policy) {
                words.remove(&key);
            }
            touched.insert(policy);
        }
        if let Some((policy, word)) = news {
            self.policies.entry(policy.clone()).or_default().insert(key.clone(), word);
            self.of.insert(key, policy.clone());
            touched.insert(policy);
        }
        touched
    }

    /// What is said of a policy; one of which nothing is said is forgotten.
    fn about(&mut self, policy: &Policy) -> BTreeMap<String, Word> {
        let words = self.policies.get(policy).cloned().unwrap_or_default();
        if words.is_empty() {
            self.policies.remove(policy);
        }
        words
    }
}

fn read(kv: &KeyValue) -> Result<(Policy, Word), String> {
    let key = String::from_utf8_lossy(&kv.key);
    let said: PolicyNodeStatus = decode(&key, &kv.value).map_err(|error| error.to_string())?;
    if said.name.is_empty() || said.uid.is_empty() || said.node.is_empty() {
        return Err(format!("{key} names no policy or no node"));
    }
    let says = |field: &str| said.status.get(field).and_then(Value::as_bool) == Some(true);
    let fault = match said.status.get("error").and_then(Value::as_str) {
        Some(error) if !error.is_empty() => Some(error.chars().take(LONGEST).collect()),
        _ if !says("ok") => Some("not imported".to_owned()),
        _ if !says("enforcing") => Some("not enforced yet".to_owned()),
        _ => None,
    };
    let PolicyNodeStatus { uid, namespace, name, node, .. } = said;
    Ok((Policy { namespace, name, uid }, Word { node, fault, revision: kv.mod_revision }))
}

/// Whether every node enforces the policy, and what to say about it.
fn judge<'a>(words: impl IntoIterator<Item = &'a Word>) -> (bool, String) {
    let nodes: BTreeMap<&str, Option<&str>> =
        words.into_iter().map(|word| (word.node.as_str(), word.fault.as_deref())).collect();
    let mut faults =
        nodes.iter().filter_map(|(node, fault)| Some(format!("{node}: {}", (*fault)?)));
    let mut parts: Vec<String> = faults.by_ref().take(NAMED).collect();
    let more = faults.count();
    let good = nodes.len() - parts.len() - more;
    parts.insert(0, format!("{good} of {} nodes enforce it", nodes.len()));
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    (good == nodes.len(), parts.join("; "))
}

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let lanes = vec![Lane::new("kvstore-policy-status")];
    let lanes: Lanes<Policy> = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let words: Arc<Mutex<Words>> = Arc::default();
    let mut watched = client.watch(&format!("{}/", keys::POLICY_STATUSES));
    let follow = async {
        while let Some(events) = watched.next().await {
            for event in &events {
                let touched = words.lock().unwrap_or_else(PoisonError::into_inner).take(event);
                for policy in touched {
                    lanes.add(0, policy);
                }
            }
        }
    };
    let handle = |job: Job<Policy>| -> BoxFuture<'static, anyhow::Result<Next>> {
        let (context, client, words) = (context.clone(), client.clone(), Arc::clone(&words));
        async move {
            let said = words.lock().unwrap_or_else(PoisonError::into_inner).about(&job.key);
            settle(&context, &client, &job.key, &said).await
        }
        .boxed()
    };
    tokio::select! {
        () = lanes.run(1, &context.stop, handle) => {}
        () = follow => {}
    }
}

async fn settle(
    context: &Context,
    client: &Client,
    policy: &Policy,
    words: &BTreeMap<String, Word>,
) -> anyhow::Result<Next> {
    let kubernetes = context.client.clone();
    let there = if policy.namespace.is_empty() {
        tell::<CiliumClusterwideNetworkPolicy>(&Api::all(kubernetes), policy, words).await?
    } else {
        let api = Api::namespaced(kubernetes, &policy.namespace);
        tell::<CiliumNetworkPolicy>(&api, policy, words).await?
    };
    if there {
        return Ok(if words.is_empty() { Next::Done } else { Next::After(AGAIN) });
    }
    for (key, word) in words {
        let txn = cilia_kvstore::Txn::new().if_unchanged_since(key, word.revision).delete(key);
        client.txn("delete", key, txn).await?;
        tracing::info!(key, "status of a policy that is gone deleted from the kvstore");
    }
    Ok(Next::Done)
}

/// Writes the condition, or takes it back where nobody says anything; whether there is such a policy.
async fn tell<K>(
    api: &Api<Lenient<K>>,
    policy: &Policy,
    words: &BTreeMap<String, Word>,
) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let present = api.get_opt(&policy.name).await?;
    let same = |present: &Lenient<K>| present.meta().uid.as_ref() == Some(&policy.uid);
    let Some(present) = present.filter(same) else { return Ok(false) };
    let present = present.conditions.iter().find(|one| one.condition_type == ENFORCED);
    let (enforced, message) = judge(words.values());
    let status = if enforced { "True" } else { "False" };
    let known = present.filter(|present| present.status == status);
    let conditions = if words.is_empty() {
        if present.is_none() {
            return Ok(true);
        }
        json!([])
    } else {
        if known.is_some_and(|known| known.message.as_ref() == Some(&message)) {
            return Ok(true);
        }
        let since = known.and_then(|known| known.last_transition_time.clone());
        let since = since.map_or_else(Timestamp::now, |since| since.0);
        let reason = if enforced { "AllNodes" } else { "SomeNodesDoNot" };
        json!([{
            "type": ENFORCED, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since.to_string(),
        }])
    };
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "name": policy.name, "uid": policy.uid },
        "status": { "conditions": conditions },
    });
    let params = PatchParams::apply(MANAGER).force();
    api.patch_status(&policy.name, &params, &Patch::Apply(patch)).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{Event, KeyValue, Words, judge};

    fn put(key: &str, node: &str, status: &str) -> Event {
        let value =
            format!(r#"{{"UID":"u","Namespace":"default","Name":"web","Node":"{node}",{status}}}"#);
        let (key, value) = (key.as_bytes().to_vec(), value.into_bytes());
        Event::Put(KeyValue { key, value, mod_revision: 7, ..KeyValue::default() })
    }

    #[test]
    fn what_nodes_say_becomes_one_sentence() {
        let mut words = Words::default();
        let good = r#""ok":true,"enforcing":true"#;
        let policy = words.take(&put("k1", "n1", good)).pop_first().expect("a policy");
        assert_eq!(judge(words.about(&policy).values()), (true, "1 of 1 nodes enforce it".into()));
        words.take(&put("k2", "n2", r#""error":"no such group""#));
        words.take(&put("k3", "n3", r#""ok":true"#));
        words.take(&put("k4", "n4", "\"ok\":3"));
        let want =
            "1 of 4 nodes enforce it; n2: no such group; n3: not enforced yet; n4: not imported";
        assert_eq!(judge(words.about(&policy).values()), (false, want.into()));
        // What cannot be read is as if it was not said; so is what names nobody.
        assert!(words.take(&put("k2", "", good)).is_empty());
        assert!(words.take(&put("k2", "n2", "\"ok\":")).is_empty());
        for number in 5..100 {
            let long = format!(r#""error":"{}""#, "x".repeat(10_000));
            words.take(&put(&format!("k{number}"), &format!("n{number}"), &long));
        }
        let (_, message) = judge(words.about(&policy).values());
        assert!(message.ends_with("; 93 more") && message.len() < 2000, "{message}");
        for number in 1..100 {
            let gone = words.take(&Event::Deleted(format!("k{number}")));
            assert_eq!(gone.first(), Some(&policy));
        }
        assert!(words.about(&policy).is_empty() && words.policies.is_empty());
    }
}
