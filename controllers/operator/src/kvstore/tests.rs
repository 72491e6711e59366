use cilia_crds::policy::PolicyCondition;
use cilia_crds::{CiliumIdentity, CiliumNetworkPolicy, CiliumNode};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{ClusterConfig, ClusterService, decode};
use cilia_kvstore::{Client, keys};
use cilia_runtime::testing::eventually;
use cilia_runtime::watch::{Event, reflect};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::nodes::Collector;
use crate::trial::Trial;

/// The operator of cluster east, number 1, with these settings and the store of `etcd`.
pub(super) async fn trial(etcd: &Etcd, settings: &[&str]) -> Trial {
    let config = format!("--kvstore-opt=etcd.config={}", etcd.config("root").display());
    let fixed: &[&str] = &[
        "--kvstore=etcd",
        &config,
        "--kvstore-opt=etcd.qps=1000",
        "--cluster-name=east",
        "--cluster-id=1",
    ];
    Trial::start(&[fixed, settings].concat()).await
}

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
    let trial =
        trial(&etcd, &["--identity-allocation-mode=kvstore", "--identity-gc-interval=300ms"]).await;
    // What the chart gives with etcd.enabled.
    let role = json!({
        "metadata": { "name": "kvstore" },
        "rules": [
            { "apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"] },
            { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
            { "apiGroups": ["cilium.io"], "resources": ["ciliumclusterwidenetworkpolicies", "ciliumnetworkpolicies"], "verbs": ["get"] },
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
    client.delete(keys::HEARTBEAT).await.unwrap();
    eventually(|| there(&client, keys::HEARTBEAT)).await;
    let key = keys::cluster_config("east");
    let said = eventually(|| there(&client, &key)).await;
    let said: ClusterConfig = decode(&key, &said).unwrap();
    assert_eq!((said.id, said.capabilities.max_connected_clusters), (1, 255));
    client.delete(&key).await.unwrap();
    eventually(|| there(&client, &key)).await;
    // Nobody else may say who this cluster is.
    client.put(&key, br#"{"id":9,"capabilities":{}}"#, false).await.unwrap();
    eventually(|| async {
        let said: ClusterConfig = decode(&key, &there(&client, &key).await?).unwrap();
        if said.id == 1 { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .await;

    let key = keys::service("east", "default", "web");
    let told = eventually(|| there(&client, &key)).await;
    let told: ClusterService = decode(&key, &told).unwrap();
    told.check("default/web", &cilia_kvstore::value::Expected { cluster: "east".into(), id: 1 })
        .unwrap();
    assert_eq!(told.frontends["10.96.0.80"]["http"].port, 80);
    assert_eq!(told.backends["10.1.0.5"]["http"].port, 8080);
    let canary = keys::synced("east", keys::SERVICES);
    eventually(|| there(&client, &canary)).await;
    client.delete(&canary).await.unwrap();
    eventually(|| there(&client, &canary)).await;
    gone(&client, &former).await.unwrap();
    let trial = is_read_by_another_cluster(trial, &etcd).await;
    let private = json!({ "metadata": { "annotations": { "service.cilium.io/shared": "false" } } });
    services.patch("web", &PatchParams::default(), &Patch::Merge(&private)).await.unwrap();
    eventually(|| gone(&client, &key)).await;

    eventually(|| gone(&client, &unused)).await;
    there(&client, &foreign).await.unwrap();
    there(&client, &node).await.unwrap();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    statuses_of_policies(&trial, &client).await;
    nodes_that_nobody_has_go(&trial, &client).await;
    duty.stop().await;
}

/// The operator of another cluster says how this one is.
async fn is_read_by_another_cluster(trial: Trial, etcd: &Etcd) -> Trial {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(etcd.config("root"), folder.path().join("east")).unwrap();
    let directory = format!("--clustermesh-config={}", folder.path().display());
    let trial = trial.with(&[&directory, "--cluster-name=west", "--cluster-id=2"]);
    let duty = trial.run("clustermesh");
    eventually(|| async {
        let shown = duty.remotes.show();
        let one = &shown[0];
        let right = one["name"] == "east"
            && one["ready"] == true
            && one["config"]["cluster-id"] == 1
            && one["num-shared-services"] == 1;
        if right { Ok(()) } else { Err(shown) }
    })
    .await;
    let text = duty.metrics.render();
    for figure in [
        "clusters 1",
        "cluster_readiness_status{target_cluster=\"east\"} 1",
        "cluster_services{target_cluster=\"east\"} 1",
        "cluster_service_exports{target_cluster=\"east\"} 0",
    ] {
        let line = format!("\ncilium_operator_clustermesh_remote_{figure}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
    duty.stop().await;
    trial
}

/// KVNGC-01 to KVNGC-06.
async fn nodes_that_nobody_has_go(trial: &Trial, client: &Client) {
    let node = |name: &str| {
        let node = json!({ "metadata": { "name": name }, "spec": {} });
        Event::Applied(serde_json::from_value::<CiliumNode>(node).unwrap())
    };
    let there_are = async |names: &[&str]| {
        let all: Vec<_> = names.iter().map(|name| node(name)).collect();
        let (nodes, changes) = reflect(futures::stream::iter(all), |_| Some(()));
        assert_eq!(changes.count().await, names.len());
        Collector {
            client: client.clone(),
            pods: Api::all(trial.client.clone()),
            labels: "k8s-app=cilium".to_owned(),
            cluster: "east".to_owned(),
            nodes,
        }
    };
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    for name in ["node-1", "node-5"] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "k8s-app": "cilium" } },
            "spec": { "nodeName": name, "containers": [{ "name": "agent", "image": "agent" }] },
        }))
        .unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status(name, &PatchParams::default(), &running).await.unwrap();
    }
    let key = |name: &str| keys::node("east", name);
    let foreign = keys::node("north", "node-3");
    for key in ["node-1", "node-2", "node-3", "node-5"].map(key).iter().chain([&foreign]) {
        client.put(key, b"{}", false).await.unwrap();
    }
    let collector = there_are(&["node-1", "node-2", "node-4"]).await;
    for name in ["node-1", "node-2", "node-3", "node-4"] {
        collector.collect(name).await.unwrap();
    }
    collector.collect("node-5").await.expect_err("an agent runs there: it may come back");
    gone(client, &key("node-3")).await.unwrap();
    for kept in [&key("node-1"), &key("node-2"), &key("node-5"), &foreign] {
        there(client, kept).await.unwrap();
    }
    // KVNGC-05: its CiliumNode goes, and then its agent.
    let collector = there_are(&["node-2"]).await;
    collector.collect("node-1").await.expect_err("its agent runs");
    pods.delete("node-1", &DeleteParams::default().grace_period(0)).await.unwrap();
    collector.collect("node-1").await.unwrap();
    gone(client, &key("node-1")).await.unwrap();
}

async fn statuses_of_policies(trial: &Trial, client: &Client) {
    let policies: Api<CiliumNetworkPolicy> = Api::namespaced(trial.client.clone(), "default");
    let policy: CiliumNetworkPolicy = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "endpointSelector": {}, "ingress": [{}] },
        "status": { "conditions": [] },
    }))
    .unwrap();
    let uid = policies.create(&PostParams::default(), &policy).await.unwrap().uid().unwrap();
    let valid = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "status": { "conditions": [{ "type": "Valid", "status": "True" }] },
    });
    let (params, valid) = (PatchParams::apply("test"), Patch::Apply(&valid));
    policies.patch_status("web", &params, &valid).await.unwrap();
    let key = |node: &str| format!("{}/{uid}/default/web/{node}", keys::POLICY_STATUSES);
    let said = |node: &str, rest: &str| {
        let text = format!(
            r#"{{"UID":"{uid}","Namespace":"default","Name":"web","Node":"{node}",{rest}}}"#
        );
        text.into_bytes()
    };
    let good = said("n1", r#""ok":true,"enforcing":true,"localPolicyRevision":4"#);
    client.put(&key("n1"), &good, false).await.unwrap();
    client.put(&key("n2"), &said("n2", r#""error":"no memory""#), false).await.unwrap();
    // One of a policy that was deleted and made anew under its name.
    let former = format!("{}/u/default/web/n1", keys::POLICY_STATUSES);
    let text = r#"{"UID":"u","Namespace":"default","Name":"web","Node":"n1","ok":true}"#;
    client.put(&former, text.as_bytes(), false).await.unwrap();
    let reads = |want: &'static str| {
        let policies = policies.clone();
        move || {
            let policies = policies.clone();
            async move {
                let policy = policies.get("web").await.map_err(|error| error.to_string())?;
                let conditions = policy.status.unwrap_or_default().conditions;
                let text = |one: &PolicyCondition| {
                    let message = one.message.clone().unwrap_or_default();
                    format!("{} {} {message}", one.condition_type, one.status)
                };
                let mut told: Vec<String> = conditions.iter().map(text).collect();
                told.sort();
                let told = told.join("|");
                if told == want { Ok(()) } else { Err(told) }
            }
        }
    };
    eventually(reads("Enforced False 1 of 2 nodes enforce it; n2: no memory|Valid True ")).await;
    client.delete(&key("n2")).await.unwrap();
    eventually(reads("Enforced True 1 of 1 nodes enforce it|Valid True ")).await;
    eventually(|| gone(client, &former)).await;
    let key = key("n1");
    client.delete(&key).await.unwrap();
    eventually(reads("Valid True ")).await;
    policies.delete("web", &DeleteParams::default()).await.unwrap();
    client.put(&key, &good, false).await.unwrap();
    eventually(|| gone(client, &key)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clusters_read_identities_that_only_kubernetes_has() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let trial =
        trial(&etcd, &["--identity-allocation-mode=crd", "--synchronize-k8s-services=false"]).await;
    // What a former mode left: another's labels under a number of today, and a number of its own.
    let (known, former) = (keys::identity_id(65_601), keys::identity_id(65_602));
    client.put(&known, b"k8s:a=former;", false).await.unwrap();
    client.put(&former, b"k8s:a=former;", false).await.unwrap();
    let identities: Api<CiliumIdentity> = Api::all(trial.client.clone());
    let identity: CiliumIdentity = serde_json::from_value(json!({
        "metadata": { "name": "65601" },
        "security-labels": { "k8s:app": "web", "k8s:a": "b" },
    }))
    .unwrap();
    identities.create(&PostParams::default(), &identity).await.unwrap();
    let duty = trial.run("kvstore");
    let is = async |want: &str| {
        let text = String::from_utf8(there(&client, &known).await?).unwrap();
        if text == want { Ok(()) } else { Err(text) }
    };
    eventually(|| is("k8s:a=b;k8s:app=web;")).await;
    client.delete(&known).await.unwrap();
    eventually(|| is("k8s:a=b;k8s:app=web;")).await;
    identities.delete("65601", &DeleteParams::default()).await.unwrap();
    eventually(|| gone(&client, &known)).await;
    there(&client, &former).await.unwrap();
    duty.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_learn_of_the_kvstore() {
    let etcd = Etcd::start().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let load = |option: String| {
        let all = ["--kvstore=etcd".to_owned(), option];
        let flags = cilia_runtime::config::Flags::operator();
        cilia_runtime::config::Config::load(flags, all, []).unwrap()
    };
    let config = |address: String| load(format!("--kvstore-opt=etcd.address={address}"));
    let good = super::health(&config(format!("http://127.0.0.1:{}", etcd.port(0))), &stop);
    let good = good.unwrap().expect("a kvstore");
    eventually(|| good()).await;
    let address = format!("http://127.0.0.1:{}", etcd.port(0));
    etcd.client().put("cilium/x/y", b"z", false).await.unwrap();
    let commands = super::commands(&config(address)).unwrap();
    let list = &commands[0];
    let keys = (list.run)(vec!["cilium/x".to_owned()]).await.unwrap();
    assert_eq!((list.name, keys.as_str()), ("kvstore/list", "# cilium/x/y\nz\n"));
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("--kvstore-opt=etcd.config={}/etcd.config", folder.path().display());
    let late = super::health(&load(missing), &stop).unwrap().expect("a kvstore");
    eventually(|| async {
        let error = late().await.unwrap_err();
        if error.contains("etcd.config: No such file") { Ok(()) } else { Err(error) }
    })
    .await;
    std::fs::copy(etcd.config("root"), folder.path().join("etcd.config")).unwrap();
    eventually(|| late()).await;
    let bad = super::health(&config("http://127.0.0.1:1".into()), &stop).unwrap();
    let error = bad.expect("a kvstore")().await.unwrap_err();
    let words = ["Waiting for initial connection", "any etcd endpoints"];
    assert!(words.iter().any(|word| error.contains(word)), "{error}");
    stop.cancel();
}
