//! Does to nodes what was decided.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Next};
use cilia_runtime::watch::{Key, Store};
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod, Taint};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tracing::info;

use super::agents::{AgentOnNode, Agents};
use super::decision::{AgentPod, Duties, Effect, Node, decide};
use crate::conflicts::Conflicts;
use crate::failure::Failure;

const CONDITION: &str = "NetworkUnavailable";
const CONDITION_REASON: &str = "CiliumIsUp";
const CONDITION_MESSAGE: &str = "Cilium is running on this node";
const TAINT_EFFECT: &str = "NoSchedule";

/// What is kept of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeState {
    /// All of its taints if the agent's is among them or could come among them.
    taints: Vec<Taint>,
    tainted: bool,
    network_condition_set: bool,
}

impl NodeState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    pub(super) fn of(node: &KubeNode, taint_key: &str) -> Option<Self> {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let network_condition_set = conditions.into_iter().flatten().any(|condition| {
            condition.type_ == CONDITION
                && condition.status == "False"
                && condition.reason.as_deref() == Some(CONDITION_REASON)
        });
        let tainted = taints.iter().any(|taint| taint.key == taint_key);
        Some(Self { taints, tainted, network_condition_set })
    }
}

/// What is kept of an agent's pod; nothing of one that has no node yet.
#[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
pub(super) fn agent(pod: Pod) -> Option<AgentOnNode> {
    let node = pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())?.into();
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    Some(AgentOnNode { node, pod: AgentPod { ready, terminating } })
}

pub(super) struct Reconciler {
    client: Client,
    events: Recorder,
    nodes: Store<NodeState>,
    agents: Mutex<Agents>,
    conflicts: Conflicts<Arc<str>>,
    duties: Duties,
    taint_key: Arc<str>,
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        events: Recorder,
        nodes: Store<NodeState>,
        duties: Duties,
        taint_key: Arc<str>,
    ) -> Self {
        let (agents, conflicts) = (Mutex::default(), Conflicts::default());
        Self { client, events, nodes, agents, conflicts, duties, taint_key }
    }

    /// An agent's pod is new, different or gone; the nodes to look at.
    pub(super) fn heard(
        &self,
        key: &Key,
        old: Option<&AgentOnNode>,
        new: Option<&AgentOnNode>,
    ) -> Vec<Arc<str>> {
        self.agents().apply(key, old, new)
    }

    pub(super) async fn reconcile(&self, job: &Job<Arc<str>>) -> Result<Next, Failure> {
        let name: &str = &job.key;
        let Some(node) = self.nodes.get(&Key::new("", name)) else { return Ok(Next::Done) };
        let (agents, agents_elsewhere) = {
            let agents = self.agents();
            (agents.on(name), !agents.is_empty())
        };
        let NodeState { tainted, network_condition_set, .. } = *node;
        let agents = &agents[..];
        let node_now = Node { tainted, network_condition_set, agents, agents_elsewhere };
        let effects = decide(node_now, self.duties);
        for effect in effects {
            job.write().await;
            let written = self.perform(name, &node, effect).await;
            let done = written.is_ok();
            let next = self.conflicts.next(&job.key, written)?;
            if !done {
                return Ok(next);
            }
            info!(node = name, ?effect, "node updated");
        }
        Ok(Next::Done)
    }

    fn agents(&self) -> MutexGuard<'_, Agents> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn perform(&self, name: &str, node: &NodeState, effect: Effect) -> Result<(), Failure> {
        let api: Api<KubeNode> = Api::all(self.client.clone());
        let params = PatchParams::default();
        let taints = match effect {
            Effect::SetNetworkCondition => {
                let failed = Failure::of("set NetworkUnavailable of", "node", name);
                let patch = Patch::Strategic(condition_patch());
                return api.patch_status(name, &params, &patch).await.map(drop).map_err(failed);
            }
            Effect::RemoveTaint => {
                let others = node.taints.iter().filter(|taint| taint.key != *self.taint_key);
                others.cloned().collect()
            }
            Effect::AddTaint => {
                let mut taints = node.taints.clone();
                taints.push(Taint {
                    key: self.taint_key.to_string(),
                    effect: TAINT_EFFECT.to_owned(),
                    ..Taint::default()
                });
                taints
            }
        };
        let patch = json_patch(&node.taints, &taints);
        let failed = Failure::of("change taints of", "node", name);
        let node = api.patch(name, &params, &patch).await.map_err(failed)?;
        let key = &self.taint_key;
        if effect == Effect::AddTaint {
            let text = format!("no Cilium agent serves this node: taint {key} keeps new pods away");
            self.events.warning(&node, "CiliumAgentNotReady", text);
        } else {
            let text = format!("the Cilium agent serves: taint {key} is removed");
            self.events.normal(&node, "CiliumAgentReady", text);
        }
        Ok(())
    }
}

/// Replaces the taints if they still are what they were.
fn json_patch(before: &[Taint], after: &[Taint]) -> Patch<Value> {
    let (before, operation) = match before {
        // A node without taints has no list to replace.
        [] => (Value::Null, "add"),
        before => (json!(before), "replace"),
    };
    let operations = json!([
        { "op": "test", "path": "/spec/taints", "value": before },
        { "op": operation, "path": "/spec/taints", "value": after },
    ]);
    match serde_json::from_value(operations) {
        Ok(patch) => Patch::Json(patch),
        Err(_) => unreachable!("test, add and replace are operations"),
    }
}

fn condition_patch() -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "status": { "conditions": [{
        "type": CONDITION,
        "status": "False",
        "reason": CONDITION_REASON,
        "message": CONDITION_MESSAGE,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }] } })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Taint};
    use serde_json::{Value, json};

    use super::{agent, json_patch};

    #[test]
    fn the_list_is_replaced_if_it_is_still_what_it_was() {
        let taint = |key: &str| Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let patch = |before: &[Taint], after: &[Taint]| match json_patch(before, after) {
            kube::api::Patch::Json(patch) => json!(patch),
            other => panic!("{other:?}"),
        };
        let (own, foreign) = (taint("node.cilium.io/agent-not-ready"), taint("foreign"));
        let test = |value: &Value| json!({ "op": "test", "path": "/spec/taints", "value": value });
        let both = json!([own, foreign]);
        let rest = json!({ "op": "replace", "path": "/spec/taints", "value": [foreign] });
        let removed = patch(&[own.clone(), foreign.clone()], std::slice::from_ref(&foreign));
        assert_eq!(removed, json!([test(&both), rest]), "TAINT-01");
        let first = json!({ "op": "add", "path": "/spec/taints", "value": [own] });
        assert_eq!(patch(&[], &[own]), json!([test(&Value::Null), first]));
    }

    #[test]
    fn an_agent_without_a_node_is_nobodys() {
        let pod = |node: Value| {
            let pod = json!({ "spec": { "nodeName": node, "containers": [] } });
            agent(serde_json::from_value::<Pod>(pod).expect("a pod"))
        };
        assert_eq!(pod(json!("k8s1")).map(|agent| agent.node.to_string()).as_deref(), Some("k8s1"));
        assert!(pod(Value::Null).is_none() && pod(json!("")).is_none(), "TAINT-03");
    }
}
