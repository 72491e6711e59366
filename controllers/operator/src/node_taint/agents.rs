//! Knows which agent pods are on which node.

use std::collections::HashMap;
use std::sync::Arc;

use cilia_runtime::watch::Key;

use super::decision::AgentPod;

/// What is kept of an agent's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentOnNode {
    pub(super) node: Arc<str>,
    pub(super) pod: AgentPod,
}

/// The agent pods by node: about 150 bytes each.
#[derive(Debug, Default)]
pub(super) struct Agents(HashMap<Arc<str>, Vec<(Key, AgentPod)>>);

impl Agents {
    /// A pod is new, different or gone; the nodes that this concerns.
    pub(super) fn apply(
        &mut self,
        key: &Key,
        old: Option<&AgentOnNode>,
        new: Option<&AgentOnNode>,
    ) -> Vec<Arc<str>> {
        let mut touched = Vec::new();
        if let Some(old) = old {
            if let Some(pods) = self.0.get_mut(&old.node) {
                pods.retain(|(other, _)| other != key);
                if pods.is_empty() {
                    self.0.remove(&old.node);
                }
            }
            touched.push(Arc::clone(&old.node));
        }
        if let Some(new) = new {
            self.0.entry(Arc::clone(&new.node)).or_default().push((key.clone(), new.pod));
            if touched.first() != Some(&new.node) {
                touched.push(Arc::clone(&new.node));
            }
        }
        touched
    }

    /// Whether there are none at all.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The agent pods on a node.
    pub(super) fn on(&self, node: &str) -> Vec<AgentPod> {
        self.0.get(node).into_iter().flatten().map(|(_, pod)| *pod).collect()
    }
}

#[cfg(test)]
mod tests {
    use cilia_runtime::watch::Key;

    use super::{AgentOnNode, Agents};
    use crate::node_taint::decision::AgentPod;

    #[test]
    fn follows_pods_from_node_to_node() {
        let pod = |ready| AgentPod { ready, terminating: false };
        let agent = |node: &str, ready| AgentOnNode { node: node.into(), pod: pod(ready) };
        let (one, two) = (Key::new("ns", "one"), Key::new("ns", "two"));
        let mut agents = Agents::default();
        let mut apply = |key, old: Option<AgentOnNode>, new: Option<AgentOnNode>| {
            let touched = agents.apply(key, old.as_ref(), new.as_ref()).into_iter();
            (
                touched.map(|name| name.to_string()).collect::<Vec<_>>(),
                agents.on("a"),
                agents.on("b"),
            )
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let steps = [
            (&one, None, Some(agent("a", false)), (names(&["a"]), vec![pod(false)], vec![])),
            (
                &two,
                None,
                Some(agent("a", true)),
                (names(&["a"]), vec![pod(false), pod(true)], vec![]),
            ),
            (
                &one,
                Some(agent("a", false)),
                Some(agent("a", true)),
                (names(&["a"]), vec![pod(true), pod(true)], vec![]),
            ),
            (
                &two,
                Some(agent("a", true)),
                Some(agent("b", false)),
                (names(&["a", "b"]), vec![pod(true)], vec![pod(false)]),
            ),
            (&one, Some(agent("a", true)), None, (names(&["a"]), vec![], vec![pod(false)])),
            (&two, Some(agent("b", false)), None, (names(&["b"]), vec![], vec![])),
        ];
        for (key, old, new, want) in steps {
            assert_eq!(apply(key, old, new), want, "{key}");
        }
        assert!(agents.0.is_empty());
    }
}
