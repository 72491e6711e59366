//! The leader moves while it works on the kvstore, and the former one may still be at it.

use std::collections::BTreeSet;
use std::time::Duration;

use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Client, keys};
use cilia_runtime::testing::{eventually, eventually_for};
use serde_json::json;

use super::tests::trial;

/// The first number of cluster 1.
const FIRST: u32 = 65_600;
/// Identities of which every second one is used.
const IDENTITIES: u32 = 40;
const LONG: Duration = Duration::from_mins(1);

async fn numbers(client: &Client) -> BTreeSet<u32> {
    let (listed, _) = client.list(&keys::identity_ids()).await.expect("list");
    let number = |key: &[u8]| keys::parse_identity_id(std::str::from_utf8(key).ok()?);
    listed.iter().filter_map(|kv| number(&kv.key)).collect()
}

/// The leases of everything that is there.
async fn leases(client: &Client) -> BTreeSet<i64> {
    let (all, _) = client.list(keys::ROOT).await.expect("list");
    all.iter().map(|kv| kv.lease).filter(|lease| *lease != 0).collect()
}

async fn there(client: &Client, key: &str) -> Result<i64, String> {
    match client.get(key).await {
        Ok(Some(kv)) if kv.lease != 0 => Ok(kv.lease),
        other => Err(format!("{key}: {other:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_takes_over_from_one_that_goes_on() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let trial = trial(
        &etcd,
        &[
            "--identity-allocation-mode=kvstore",
            "--identity-gc-interval=100ms",
            "--synchronize-k8s-services=false",
            "--synchronize-k8s-nodes=false",
        ],
    )
    .await;
    let role = json!({ "metadata": { "name": "kvstore" }, "rules": [] });
    trial.allow(serde_json::from_value(role).expect("a role")).await;
    let all: BTreeSet<u32> = (FIRST..FIRST + IDENTITIES).collect();
    let used: BTreeSet<u32> = all.iter().copied().filter(|number| number % 2 == 0).collect();
    for number in &all {
        let labels = format!("k8s:a={number};");
        client.put(&keys::identity_id(*number), labels.as_bytes(), false).await.unwrap();
        if used.contains(number) {
            let key = keys::identity_value(&labels, "10.0.0.1");
            client.put(&key, number.to_string().as_bytes(), false).await.unwrap();
        }
    }
    // One is killed in the middle of a run of the collector.
    let killed = trial.run("kvstore");
    eventually_for(LONG, || async {
        let left = numbers(&client).await.len();
        if left < all.len() { Ok(()) } else { Err(left) }
    })
    .await;
    killed.kill().await;
    let config = keys::cluster_config("east");
    let before = leases(&client).await;
    // The next one is cut off from Kubernetes, but goes on here while another has begun.
    let former = trial.run("kvstore");
    eventually_for(LONG, || async {
        let lease = there(&client, &config).await?;
        if before.contains(&lease) { Err("it is the killed one's".to_owned()) } else { Ok(()) }
    })
    .await;
    let leader = trial.run("kvstore");
    eventually_for(LONG, || async {
        let left = numbers(&client).await;
        if left == used { Ok(()) } else { Err(left) }
    })
    .await;
    former.kill().await;
    // What hung on the leases of both goes with them; what the leader stands for stays or comes back.
    for lease in leases(&client).await {
        if there(&client, keys::HEARTBEAT).await != Ok(lease) {
            etcd.revoke(lease).await;
        }
    }
    for key in [keys::HEARTBEAT, &config] {
        eventually(|| there(&client, key)).await;
    }
    assert_eq!(numbers(&client).await, used, "nothing that is used has gone");
    let (claims, _) = client.list(&format!("{}/value/", keys::IDENTITIES)).await.unwrap();
    assert_eq!(claims.len(), used.len());
    leader.stop().await;
}
