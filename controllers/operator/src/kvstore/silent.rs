//! Decides which identities are in use by pods of nodes whose agents are silent.
//!
//! An agent that is frozen, or cut off from etcd, for longer than its leases live can't say any more what its pods
//! use. Kubernetes still can: where a node has no key of its own, or only a stand-in, though it has a `CiliumNode`, nothing
//! is collected that an endpoint has. As long as every agent speaks, endpoints are not asked for.

use std::collections::{BTreeSet, HashSet};

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_kvstore::{Client, is_stand_in, keys};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::listing;
use crate::wiring::Context;

/// What the endpoints of Kubernetes use, if an agent is silent; else nothing.
pub(super) async fn in_use(context: &Context, client: &Client) -> anyhow::Result<HashSet<u32>> {
    let config = &context.config;
    let mut numbers = HashSet::new();
    if !config.bool("enable-k8s") {
        return Ok(numbers);
    }
    let mut nodes = BTreeSet::new();
    let api: Api<CiliumNode> = Api::all(context.client.clone());
    listing::metadata(&api, "CiliumNodes", ListParams::default(), |node| {
        nodes.insert(node.name_any());
    })
    .await?;
    let prefix = keys::nodes(config.string("cluster-name"));
    let (speaking, _) = client.list(&prefix).await?;
    for kv in speaking.into_iter().filter(|kv| !is_stand_in(kv.lease)) {
        let key = String::from_utf8_lossy(&kv.key);
        nodes.remove(key.strip_prefix(&prefix).unwrap_or_default());
    }
    let Some(first) = nodes.first() else { return Ok(numbers) };
    tracing::warn!(
        nodes = nodes.len(),
        first,
        "agents are silent: identities that endpoints have are not collected"
    );
    let api: Api<CiliumEndpoint> = Api::all(context.client.clone());
    listing::objects_by(listing::PAGE, &api, "CiliumEndpoints", |endpoint| {
        let identity = endpoint.status.and_then(|status| status.identity?.id);
        numbers.extend(identity.and_then(|id| u32::try_from(id).ok()));
    })
    .await?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use cilia_crds::{CiliumEndpoint, CiliumNode};
    use cilia_kvstore::testing::Etcd;
    use cilia_kvstore::{Client, Swap, keys};
    use cilia_runtime::testing::eventually;
    use kube::Api;
    use kube::api::PostParams;
    use serde_json::json;

    use crate::kvstore::tests::trial;

    async fn gone(client: &Client, number: u32) -> Result<(), String> {
        match client.get(&keys::identity_id(number)).await {
            Ok(None) => Ok(()),
            other => Err(format!("{number}: {other:?}")),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_pods_of_a_frozen_agent_have_is_not_collected() {
        let etcd = Etcd::start().await;
        let client = etcd.client();
        let settings = [
            "--identity-allocation-mode=kvstore",
            "--identity-gc-interval=50ms",
            "--synchronize-k8s-services=false",
            "--synchronize-k8s-nodes=false",
        ];
        let trial = trial(&etcd, &settings).await;
        let object = json!({ "metadata": { "name": "n1" }, "spec": {} });
        let node: CiliumNode = serde_json::from_value(object).expect("a node");
        let nodes: Api<CiliumNode> = Api::all(trial.client.clone());
        nodes.create(&PostParams::default(), &node).await.expect("create a node");
        let object =
            json!({ "metadata": { "name": "pod" }, "status": { "identity": { "id": 65_601 } } });
        let endpoint: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
        let endpoints: Api<CiliumEndpoint> = Api::namespaced(trial.client.clone(), "default");
        endpoints.create(&PostParams::default(), &endpoint).await.expect("create an endpoint");
        // Its leases have ended: nobody says that they are used, nor is its node there.
        for number in [65_601, 65_602] {
            let labels = format!("k8s:a={number};");
            let key = keys::identity_id(number);
            client.put(&key, labels.as_bytes(), false).await.expect("put");
        }
        let duty = trial.run("kvstore");
        eventually(|| gone(&client, 65_602)).await;
        // Both were looked at in the same runs.
        gone(&client, 65_601).await.expect_err("a pod has it");
        // An operator's stand-in says nothing of what is in use.
        let lease = client.keep_stand_ins(1).await.expect("a lease");
        let key = keys::node("east", "n1");
        let swap = Swap { key, since: 0, value: Some(b"{}".to_vec()) };
        client.swap(lease, vec![swap]).await.expect("stand in");
        let labels = b"k8s:a=65603;";
        client.put(&keys::identity_id(65_603), labels, false).await.expect("put");
        eventually(|| gone(&client, 65_603)).await;
        gone(&client, 65_601).await.expect_err("a pod has it still");
        // Once it speaks again, only what it says is in use.
        client.put(&keys::node("east", "n1"), b"{}", false).await.expect("put");
        eventually(|| gone(&client, 65_601)).await;
        duty.stop().await;
    }
}
