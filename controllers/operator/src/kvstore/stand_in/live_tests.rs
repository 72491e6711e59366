//! Stand-ins on a real etcd and a real API server.

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{Address, IpIdentityPair, Node, encode};
use cilia_kvstore::{Client, is_stand_in, keys, stand_ins_of};
use cilia_runtime::testing::eventually;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::kvstore::tests::trial;
use crate::trial::Trial;

const HOST: &str = "172.18.0.1";

fn ip(address: &str) -> String {
    keys::ip(address.parse::<std::net::IpAddr>().expect("an address").into())
}

fn pair(address: &str) -> Vec<u8> {
    let prefix = address.parse::<std::net::IpAddr>().expect("an address").into();
    let pair = IpIdentityPair::new(prefix, 65_601, HOST.parse().ok());
    encode(&IpIdentityPair { namespace: "default".into(), pod: address.into(), ..pair })
}

fn node() -> Vec<u8> {
    let address = Address { kind: "InternalIP".into(), ip: HOST.into() };
    encode(&Node {
        name: "n1".into(),
        cluster: "east".into(),
        addresses: vec![address],
        ..Node::default()
    })
}

/// Whether the key is a stand-in with this value.
async fn stands(client: &Client, key: &str, value: &[u8]) -> Result<(), String> {
    match client.get(key).await {
        Ok(Some(kv)) if is_stand_in(kv.lease) && kv.value == value => Ok(()),
        other => Err(format!("{key}: {other:?}")),
    }
}

async fn gone(client: &Client, key: &str) -> Result<(), String> {
    match client.get(key).await {
        Ok(None) => Ok(()),
        other => Err(format!("{key}: {other:?}")),
    }
}

async fn kubernetes(trial: &Trial) -> (Api<CiliumNode>, Api<CiliumEndpoint>) {
    let nodes: Api<CiliumNode> = Api::all(trial.client.clone());
    for name in ["n1", "n2"] {
        let object = json!({ "metadata": { "name": name }, "spec": {} });
        let node = serde_json::from_value(object).expect("a node");
        nodes.create(&PostParams::default(), &node).await.expect("create a node");
    }
    let endpoints: Api<CiliumEndpoint> = Api::namespaced(trial.client.clone(), "default");
    for address in ["10.0.1.1", "10.0.1.2"] {
        let object = json!({
            "metadata": { "name": address },
            "status": { "networking": { "addressing": [{ "ipv4": address }], "node": HOST } },
        });
        let endpoint = serde_json::from_value(object).expect("an endpoint");
        endpoints.create(&PostParams::default(), &endpoint).await.expect("create an endpoint");
    }
    (nodes, endpoints)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_agent_said_stays_for_other_clusters() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let settings = ["--identity-allocation-mode=kvstore", "--synchronize-k8s-services=false"];
    let trial = trial(&etcd, &settings).await;
    let (nodes, endpoints) = kubernetes(&trial).await;
    let duty = trial.run("kvstore");
    // It works once it knows what there is, and follows it from then on.
    let done = r#"cilium_k8s_workqueue_work_duration_seconds_count{name="kvstore-stand-ins"} "#;
    eventually(async || {
        let text = duty.metrics.render();
        let count = text.lines().find_map(|line| line.strip_prefix(done)?.parse::<f64>().ok());
        count.filter(|count| *count > 0.0).ok_or(text)
    })
    .await;

    let agent = etcd.client();
    let key = keys::node("east", "n1");
    let addresses = ["10.0.1.1", "10.0.1.2", "10.0.1.3"];
    for address in addresses {
        agent.put(&ip(address), &pair(address), true).await.expect("put");
    }
    agent.put(&key, &node(), true).await.expect("put");
    let lease = client.get(&key).await.expect("get").expect("the node's key").lease;
    // Its leases end while it is frozen.
    etcd.revoke(lease).await;
    eventually(async || stands(&client, &key, &node()).await).await;
    for address in &addresses[..2] {
        eventually(async || stands(&client, &ip(address), &pair(address)).await).await;
    }
    // No endpoint has the third one, but another agent may take it.
    eventually(async || gone(&client, &ip("10.0.1.3")).await).await;
    endpoints.delete("10.0.1.2", &DeleteParams::default()).await.expect("delete");
    eventually(async || gone(&client, &ip("10.0.1.2")).await).await;

    // The next leader finds what there is, and keeps it alive with the same lease.
    duty.kill().await;
    let duty = trial.run("kvstore");
    endpoints.delete("10.0.1.1", &DeleteParams::default()).await.expect("delete");
    let object = json!({ "metadata": { "name": "other" }, "status": {
        "networking": { "addressing": [{ "ipv4": "10.0.9.9" }], "node": "172.18.0.9" },
    } });
    let endpoint = serde_json::from_value(object).expect("an endpoint");
    endpoints.create(&PostParams::default(), &endpoint).await.expect("create an endpoint");
    eventually(async || gone(&client, &ip("10.0.1.1")).await).await;
    stands(&client, &key, &node()).await.expect("it stands still");

    // The agent's own word is left alone; with the node goes what stands in for it.
    let word = pair("10.0.1.2");
    let other = etcd.client();
    other.put(&ip("10.0.1.2"), &word, true).await.expect("put");
    nodes.delete("n1", &DeleteParams::default()).await.expect("delete");
    eventually(async || gone(&client, &key).await).await;
    let kv = client.get(&ip("10.0.1.2")).await.expect("get").expect("it is another's");
    assert!(!is_stand_in(kv.lease));
    duty.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_whoever_s_needs_it() {
    let etcd = Etcd::start().await;
    let (first, second, lease) = (etcd.client(), etcd.client(), stand_ins_of(1));
    let swap = |key: &str, since, value: Option<&[u8]>| cilia_kvstore::Swap {
        key: key.into(),
        since,
        value: value.map(<[u8]>::to_vec),
    };
    let many: Vec<_> = (0..250).map(|key| swap(&format!("k/{key:03}"), 0, Some(b"a"))).collect();
    first.swap(lease, many.clone()).await.expect_err("there is no such lease");
    for client in [&first, &second] {
        assert_eq!(client.keep_stand_ins(1).await.expect("keep"), lease);
    }
    second.put("k/007", b"mine", false).await.expect("put");
    assert_eq!(first.swap(lease, many.clone()).await.expect("swap"), 1);
    assert_eq!(second.swap(lease, many).await.expect("swap"), 250, "the other was faster");
    let (all, _) = first.list("k/").await.expect("list");
    assert_eq!((all.len(), all[7].value.as_slice()), (250, &b"mine"[..]));
    let away = |kv: &cilia_kvstore::KeyValue| {
        let key = String::from_utf8_lossy(&kv.key);
        swap(&key, kv.mod_revision - i64::from(kv.lease == 0), None)
    };
    let all: Vec<_> = all.iter().take(10).map(away).collect();
    assert_eq!(first.swap(lease, all).await.expect("swap"), 1, "what is another's stays");
    assert_eq!(first.list("k/").await.expect("list").0.len(), 241);
    // It ends: everything goes but what is on no lease.
    etcd.revoke(lease).await;
    let (left, _) = first.list("k/").await.expect("list");
    assert_eq!((left.len(), left[0].key.as_slice()), (1, &b"k/007"[..]));
    assert_eq!(second.keep_stand_ins(1).await.expect("keep"), lease, "and it can be had again");
}
