//! The namespaces and the label that changes.

use std::time::Duration;

use anyhow::Result;
use cilia_e2e::scenario::Stage;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The label whose value changes.
pub(super) const KEY: &str = "phase";
/// The values it takes; the first is that of the beginning and the end.
pub(super) const VALUES: [&str; 2] = ["a", "b"];
/// Between two changes.
const PACE: Duration = Duration::from_millis(250);

/// The name of a namespace.
pub(super) fn namespace(number: usize) -> String {
    format!("churn-{number}")
}

/// Makes the namespaces, and waits until pods are let in.
pub(super) async fn make(stage: &Stage, client: &Client, count: usize) -> Result<()> {
    let object = |number| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace(number), "labels": {KEY: VALUES[0]}},
        })
    };
    let items: Vec<Value> = (0..count).map(object).collect();
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    for number in 0..count {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace(number));
        while accounts.get_opt("default").await?.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Gives the label of one namespace after the other its other value, until `stop`; how often.
pub(super) async fn change(client: Client, count: usize, stop: CancellationToken) -> Result<usize> {
    let mut now = vec![0; count];
    let mut changes = 0;
    while stop.run_until_cancelled(tokio::time::sleep(PACE)).await.is_some() {
        // Half of the changes concern the namespaces of those who talk all the time.
        let number = if changes % 2 == 0 { changes / 2 % 2 } else { changes / 2 % count };
        now[number] = (now[number] + 1) % VALUES.len();
        set(&client, number, VALUES[now[number]]).await?;
        changes += 1;
    }
    Ok(changes)
}

/// Gives all labels the value that they had first.
pub(super) async fn reset(client: &Client, count: usize) -> Result<()> {
    for number in 0..count {
        set(client, number, VALUES[0]).await?;
    }
    Ok(())
}

async fn set(client: &Client, number: usize, value: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {KEY: value}}}));
    api.patch(&namespace(number), &PatchParams::default(), &patch).await?;
    Ok(())
}
