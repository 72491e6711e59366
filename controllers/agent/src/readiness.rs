//! Decides whether the agent is ready: every named gate must be open.
//!
//! A gate belongs to the part that opens it (`datapath`, `ipcache`, `endpoints`, ...). What is
//! closed says why, so that `/healthz`, `cilia status` and the pod's probe tell the same story.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The state of every gate, by name; `None` is an open gate, a text says why it is closed.
type Gates = BTreeMap<&'static str, Option<String>>;

/// The agent's gates; clones share them.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<watch::Sender<Gates>>);

impl Readiness {
    /// All of `gates` closed, waiting for their first word.
    pub fn new(gates: &[&'static str]) -> Self {
        let closed = gates.iter().map(|&name| (name, Some("starting".to_owned()))).collect();
        Self(Arc::new(watch::Sender::new(closed)))
    }

    /// Opens a gate.
    pub fn open(&self, gate: &'static str) {
        self.set(gate, None);
    }

    /// Closes a gate, with the reason that users will read.
    pub fn close(&self, gate: &'static str, reason: impl Into<String>) {
        self.set(gate, Some(reason.into()));
    }

    fn set(&self, gate: &'static str, state: Option<String>) {
        self.0.send_if_modified(|gates| gates.insert(gate, state.clone()) != Some(state));
    }

    /// What keeps the agent from being ready: gate and reason, by name; empty when it is ready.
    pub fn closed(&self) -> Vec<(&'static str, String)> {
        let gates = self.0.borrow();
        gates.iter().filter_map(|(&name, state)| Some((name, state.clone()?))).collect()
    }

    /// Every gate by name, with why it is closed.
    pub fn gates(&self) -> Vec<(&'static str, Option<String>)> {
        self.0.borrow().iter().map(|(&name, state)| (name, state.clone())).collect()
    }

    /// Returns once every gate but `last` is open.
    pub async fn wait_for_all_but(&self, last: &str) {
        let mut gates = self.0.subscribe();
        let open = |gates: &Gates| gates.iter().all(|(&name, why)| name == last || why.is_none());
        // The sender lives in `self`, so the channel can't close while we wait.
        let _ = gates.wait_for(open).await;
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness;

    #[tokio::test]
    async fn is_ready_once_every_gate_is_open() {
        let readiness = Readiness::new(&["datapath", "ipcache"]);
        readiness.open("datapath");
        assert_eq!(readiness.closed(), [("ipcache", "starting".to_owned())]);
        readiness.close("datapath", "verifier said no");
        readiness.open("ipcache");
        assert_eq!(readiness.closed(), [("datapath", "verifier said no".to_owned())]);
        readiness.wait_for_all_but("datapath").await;
        readiness.open("datapath");
        assert!(readiness.closed().is_empty());
    }
}
