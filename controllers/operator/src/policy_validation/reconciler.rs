//! Checks policies as they come, and writes conditions.

use std::fmt::Debug;
use std::sync::Arc;

use cilia_policy::{Config, Lenient, Parsed};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, Key, Store, reflect, watch};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::decision::{Condition, VALID, decide, status};
use crate::conflicts::Conflicts;
use crate::failure::Failure;
use crate::wiring::Context;

const MANAGER: &str = "cilium-operator";

/// What is to be written on a policy. Nothing is kept of a policy that is settled.
#[derive(Debug, Clone, PartialEq)]
struct Unsettled {
    condition: Condition,
    /// What its author should know though it is valid.
    notes: Vec<String>,
    reference: ObjectReference,
}

type Parse<K> = fn(&K, &Config) -> Result<Parsed, cilia_policy::Error>;
type ApiOf<K> = fn(Client, &str) -> Api<Lenient<K>>;

/// Looks after the policies of one kind.
pub(super) struct Reconciler<K> {
    client: Client,
    events: Recorder,
    stop: CancellationToken,
    lanes: Lanes<Key>,
    conflicts: Conflicts<Key>,
    config: Arc<Config>,
    api: ApiOf<K>,
    parse: Parse<K>,
}

impl<K> Reconciler<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    pub(super) fn new(context: &Context, api: ApiOf<K>, parse: Parse<K>) -> Self {
        let kind: &'static str = if K::kind(&()) == "CiliumNetworkPolicy" {
            "cnp-validation"
        } else {
            "ccnp-validation"
        };
        let lanes = Lanes::new(vec![Lane::new(kind)], Retry::default(), None, &context.workqueues);
        let (client, events, stop) =
            (context.client.clone(), context.events.clone(), context.stop.clone());
        let config = Arc::new(super::policy_config(&context.config));
        let conflicts = Conflicts::default();
        Self { client, events, stop, lanes, conflicts, config, api, parse }
    }

    /// Runs until it is stopped.
    pub(super) async fn run(self, all: Api<Lenient<K>>) {
        let (parse, config) = (self.parse, Arc::clone(&self.config));
        let (store, changes) = reflect(watch(all), move |policy| judge(&policy, parse, &config));
        let this = Arc::new(self);
        let pump = async {
            let mut changes = std::pin::pin!(changes);
            while let Some(Some(change)) = this.stop.run_until_cancelled(changes.next()).await {
                if let Change::Object { key, new: Some(_), .. } = change {
                    this.lanes.add(0, key);
                }
            }
        };
        let handle = |job: Job<Key>| -> BoxFuture<'static, Result<Next, Failure>> {
            let (this, store) = (Arc::clone(&this), store.clone());
            async move { this.settle(&job, &store).await }.boxed()
        };
        let work = this.lanes.run(1, &this.stop, handle);
        tokio::join!(pump, work);
    }

    async fn settle(&self, job: &Job<Key>, store: &Store<Unsettled>) -> Result<Next, Failure> {
        let Some(unsettled) = store.get(&job.key) else { return Ok(Next::Done) };
        let Unsettled { condition, notes, reference } = &*unsettled;
        let since = condition.since.clone().unwrap_or_else(|| Time(Timestamp::now()));
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": job.key.name, "resourceVersion": reference.resource_version},
            "status": {"conditions": [{
                "type": VALID,
                "status": status(condition.valid),
                "message": condition.message,
                "lastTransitionTime": since,
            }]},
        });
        job.write().await;
        let api = (self.api)(self.client.clone(), &job.key.namespace);
        let params = PatchParams::apply(MANAGER).force();
        let written = api.patch_status(&job.key.name, &params, &Patch::Apply(patch)).await;
        let failed = Failure::of("write the condition of", "policy", &job.key.name);
        let written = written.map(drop).map_err(failed);
        let done = written.is_ok();
        let next = self.conflicts.next(&job.key, written)?;
        if !done {
            return Ok(next);
        }
        tracing::info!(policy = %job.key, valid = condition.valid, message = condition.message, "policy checked");
        let tell = |reason, note: String| {
            self.events.about(reference.clone(), EventType::Warning, reason, note);
        };
        if !condition.valid {
            tell("PolicyInvalid", condition.message.clone());
        } else if !notes.is_empty() {
            tell("PolicyPartlyEnforced", notes.join("; "));
        }
        Ok(Next::Done)
    }
}

/// What is to be written on a policy; nothing if it says so already.
fn judge<K>(policy: &Lenient<K>, parse: Parse<K>, config: &Config) -> Option<Unsettled>
where
    K: Resource<DynamicType = ()>,
{
    let parsed = match &policy.object {
        Ok(object) => parse(object, config).map_err(|error| error.to_string()),
        Err(fault) => Err(fault.clone()),
    };
    let (fault, notes) = match parsed {
        Ok(parsed) => (None, parsed.notes.iter().map(ToString::to_string).collect()),
        Err(fault) => (Some(fault), Vec::new()),
    };
    let condition = decide(&policy.conditions, fault.as_deref())?;
    let resource_version = policy.meta().resource_version.clone();
    let reference = ObjectReference { resource_version, ..policy.object_ref(&()) };
    Some(Unsettled { condition, notes, reference })
}
