//! Tells which rules a verdict comes from: their policies, their places, and what they want logged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cilia_loader::Event as Datapath;
use cilia_policy::Origin;
use serde_json::{Value, json};

use crate::events::Event;
use crate::policy::Enforcer;

/// How long a listener waits for the names of rules while policy is being computed.
const PATIENCE: Duration = Duration::from_millis(500);
/// Sets of rules that a listener remembers.
const MOST: usize = 4096;

/// What is known of cookies: they mean the same for as long as the agent runs.
pub(super) struct Rules {
    enforcer: Enforcer,
    known: HashMap<u32, Arc<[Arc<Origin>]>>,
}

impl Rules {
    pub(super) fn new(enforcer: Enforcer) -> Self {
        Self { enforcer, known: HashMap::new() }
    }

    /// The rules that made an event's verdict; none for what the defaults say.
    pub(super) async fn of(&mut self, event: &Event) -> Arc<[Arc<Origin>]> {
        let cookie = match &event.what {
            Datapath::Verdict(verdict) => verdict.cookie,
            Datapath::Drop(_) | Datapath::Trace(_) => 0,
        };
        if cookie == 0 {
            return Arc::default();
        }
        if let Some(rules) = self.known.get(&cookie) {
            return Arc::clone(rules);
        }
        let asked = self.enforcer.ask(move |rules| rules.origins(cookie).to_vec());
        let told = tokio::time::timeout(PATIENCE, asked).await.ok().flatten().unwrap_or_default();
        let rules: Arc<[Arc<Origin>]> = told.into();
        if !rules.is_empty() {
            if self.known.len() >= MOST {
                self.known.clear();
            }
            self.known.insert(cookie, Arc::clone(&rules));
        }
        rules
    }
}

pub(super) fn show(rules: &[Arc<Origin>]) -> Vec<Value> {
    let one = |rule: &Arc<Origin>| json!({"policy": rule.policy.to_string(), "field": rule.field, "log": rule.log});
    rules.iter().map(one).collect()
}
