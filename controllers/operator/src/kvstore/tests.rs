use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{ClusterConfig, ClusterService, decode};
use cilia_kvstore::{Client, keys};
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::trial::Trial;

async fn there(client: &Client, key: &str) -> Result<Vec<u8>, String> {
    match client.get(key).await {
        Ok(Some(kv)) => Ok(kv.value),
        other => Err(format!("{key}: {other:?}")),
    }
}

async fn gone(client: &Client, key: &str) -> Result<(), String> {
    match client.get(key).await {
        Ok(None) => Ok(()),
        other => Err(format!("{key}: {other:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kvstore_has_a_head() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let config = format!("--kvstore-opt=etcd.config={}", etcd.config("root").display());
    let trial = Trial::start(&[
        "--kvstore=etcd",
        &config,
        "--kvstore-opt=etcd.qps=1000",
        "--identity-allocation-mode=kvstore",
        "--identity-gc-interval=300ms",
        "--cluster-name=east",
        "--cluster-id=1",
    ])
    .await;
    // What the chart gives with etcd.enabled.
    let role = json!({
        "metadata": { "name": "kvstore" },
        "rules": [
            { "apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
        ],
    });
    trial.allow(serde_json::from_value(role).expect("a role")).await;
    let unused = keys::identity_id(65_600);
    let foreign = keys::identity_id(300);
    client.put(&unused, b"k8s:a=b;", false).await.unwrap();
    client.put(&foreign, b"k8s:a=c;", false).await.unwrap();
    // There is no CiliumNode at all: no node is collected.
    let node = keys::node("east", "n1");
    client.put(&node, b"{}", false).await.unwrap();
    let former = keys::service("east", "default", "former");
    client.put(&former, b"{}", false).await.unwrap();
    let services: Api<Service> = Api::namespaced(trial.client.clone(), "default");
    let web: Service = serde_json::from_value(json!({
        "metadata": { "name": "web", "annotations": { "service.cilium.io/global": "true" } },
        "spec": { "clusterIP": "10.96.0.80", "ports": [{ "name": "http", "port": 80 }] },
    }))
    .unwrap();
    services.create(&PostParams::default(), &web).await.unwrap();
    let slices: Api<EndpointSlice> = Api::namespaced(trial.client.clone(), "default");
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.1.0.5"] }],
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    }))
    .unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();

    let duty = trial.run("kvstore");
    eventually(|| there(&client, keys::HEARTBEAT)).await;
    let key = keys::cluster_config("east");
    let said = eventually(|| there(&client, &key)).await;
    let said: ClusterConfig = decode(&key, &said).unwrap();
    assert_eq!((said.id, said.capabilities.max_connected_clusters), (1, 255));
    client.delete(&key).await.unwrap();
    eventually(|| there(&client, &key)).await;

    let key = keys::service("east", "default", "web");
    let told = eventually(|| there(&client, &key)).await;
    let told: ClusterService = decode(&key, &told).unwrap();
    told.check("default/web", &cilia_kvstore::value::Expected { cluster: "east".into(), id: 1 })
        .unwrap();
    assert_eq!(told.frontends["10.96.0.80"]["http"].port, 80);
    assert_eq!(told.backends["10.1.0.5"]["http"].port, 8080);
    let canary = keys::synced("east", keys::SERVICES);
    eventually(|| there(&client, &canary)).await;
    gone(&client, &former).await.unwrap();
    let private = json!({ "metadata": { "annotations": { "service.cilium.io/shared": "false" } } });
    services.patch("web", &PatchParams::default(), &Patch::Merge(&private)).await.unwrap();
    eventually(|| gone(&client, &key)).await;

    eventually(|| gone(&client, &unused)).await;
    there(&client, &foreign).await.unwrap();
    there(&client, &node).await.unwrap();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    duty.stop().await;
}
