//! Takes over what former agents say about policies in the kvstore: into the policy's status, and away
//! with it once the policy is gone.
//!
//! Agents of today write no such keys. What lies there is read, merged by node under the policy's
//! `status.nodes`, and deleted with its policy.

use cilia_kvstore::value::{PolicyNodeStatus, decode};
use cilia_kvstore::{Client, Event, keys};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

use crate::wiring::Context;
use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

/// Policies are asked for one by one: how often, in case one was deleted without a word.
const AGAIN: Duration = Duration::from_mins(30);

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let lanes = vec![Lane::new("kvstore-policy-status")];
    let lanes: Lanes<String> = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let mut watched = client.watch(&format!("{}/", keys::POLICY_STATUSES));
    let follow = async {
        while let Some(events) = watched.next().await {
            for event in events {
                if let Event::Put(kv) = event {
                    lanes.add(0, String::from_utf8_lossy(&kv.key).into_owned());
                }
            }
        }
    };
    let (context, client) = (context.clone(), client.clone());
    let stop = context.stop.clone();
    let handle = move |job: Job<String>| -> BoxFuture<'static, anyhow::Result<Next>> {
        let (context, client) = (context.clone(), client.clone());
        async move { take(&context, &client, &job.key).await }.boxed()
    };
    tokio::select! {
        () = lanes.run(1, &stop, handle) => {}
        () = follow => {}
    }
}

async fn take(context: &Context, client: &Client, key: &str) -> anyhow::Result<Next> {
    let Some(kv) = client.get(key).await? else { return Ok(Next::Done) };
    let said: PolicyNodeStatus = match decode(key, &kv.value) {
        Ok(said) => said,
        Err(error) => {
            tracing::warn!(%error, "ignoring a policy's status");
            return Ok(Next::Done);
        }
    };
    let (uid, name, node) = (&said.uid, &said.name, &said.node);
    let patch = json!({ "metadata": { "uid": uid }, "status": { "nodes": { node: said.status } } });
    let (patch, params) = (Patch::Merge(&patch), PatchParams::default());
    let uid_of = if said.namespace.is_empty() {
        let api: Api<CiliumClusterwideNetworkPolicy> = Api::all(context.client.clone());
        let present = api.get_metadata_opt(name).await?.and_then(|policy| policy.uid());
        if present.as_ref() == Some(uid) {
            api.patch_status(name, &params, &patch).await?;
        }
        present
    } else {
        let api: Api<CiliumNetworkPolicy> =
            Api::namespaced(context.client.clone(), &said.namespace);
        let present = api.get_metadata_opt(name).await?.and_then(|policy| policy.uid());
        if present.as_ref() == Some(uid) {
            api.patch_status(name, &params, &patch).await?;
        }
        present
    };
    if uid_of.as_ref() == Some(uid) {
        return Ok(Next::After(AGAIN));
    }
    let txn = cilia_kvstore::Txn::new().if_unchanged_since(key, kv.mod_revision).delete(key);
    client.txn("delete", key, txn).await?;
    tracing::info!(key, "status of a policy that is gone deleted from the kvstore");
    Ok(Next::Done)
}
