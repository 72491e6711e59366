//! Pods on nodes without a kubelet: their objects are made here, and the plugin is called as a runtime would.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::Node;
use cilia_e2e::scenario::Stage;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::labels;

/// Pods that live on a node at once, and twice as many while one wave follows the other.
const WAVE: usize = 20;
/// Calls at the same time on a node.
const AT_ONCE: usize = 4;
/// A kubelet renews its node's Lease every ten seconds.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What a runtime does for a pod: `$1` is the network namespace, `$2` the container, `$3` its arguments.
const ADD: &str = "ip netns add \"$1\"; ip -n \"$1\" link set lo up; \
    export CNI_COMMAND=ADD CNI_CONTAINERID=\"$2\" CNI_ARGS=\"$3\" CNI_NETNS=/var/run/netns/\"$1\" \
    CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin; exec /opt/cni/bin/cilium-cni";
const DEL: &str = "export CNI_COMMAND=DEL CNI_CONTAINERID=\"$2\" CNI_ARGS=\"$3\" \
    CNI_NETNS=/var/run/netns/\"$1\" CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin; \
    /opt/cni/bin/cilium-cni; ip netns del \"$1\"";

/// A pod that is connected.
struct Connected {
    namespace: String,
    name: String,
    uid: String,
    addresses: Vec<String>,
}

/// Has so many pods come and go on these nodes; how many did.
pub(super) async fn churn(
    stage: &Stage,
    client: &Client,
    nodes: &[Node],
    count: usize,
    namespaces: usize,
) -> Result<usize> {
    if nodes.is_empty() {
        return Ok(0);
    }
    for node in nodes {
        node.place.stop(stage.cluster.cgroups(), "kubelet").await?;
    }
    let in_use = Mutex::default();
    let each = count.div_ceil(nodes.len());
    let work = nodes.iter().map(|node| {
        let churn = Churn { client, node, namespaces, in_use: &in_use };
        async move { churn.run(each).await.with_context(|| node.name()) }
    });
    let work = futures::future::try_join_all(work);
    let heartbeats = async {
        loop {
            for node in nodes {
                beat(client, &node.name()).await?;
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    };
    tokio::select! {
        done = work => Ok(done?.into_iter().sum()),
        failed = heartbeats => failed,
    }
}

/// Starts the kubelets again.
pub(super) fn back(stage: &Stage, nodes: &[Node]) -> Result<()> {
    let cluster = &stage.cluster;
    for node in nodes {
        node.start_kubelet(cluster.cgroups(), &cluster.tools, &cluster.options)?;
    }
    Ok(())
}

/// Says for a node's kubelet that it lives: the node's agent does.
async fn beat(client: &Client, node: &str) -> Result<usize> {
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let patch = Patch::Merge(json!({"spec": {"renewTime": now}}));
    api.patch(node, &PatchParams::default(), &patch).await?;
    Ok(0)
}

struct Churn<'a> {
    client: &'a Client,
    node: &'a Node,
    namespaces: usize,
    /// The addresses of all pods that are connected, on all nodes.
    in_use: &'a Mutex<BTreeSet<String>>,
}

impl Churn<'_> {
    /// Waves of pods; each goes when the next one is there. Names come back with every second wave.
    async fn run(&self, count: usize) -> Result<usize> {
        let mut last = Vec::new();
        let mut done = 0;
        for wave in 0.. {
            let numbers = (0..WAVE.min(count - done)).map(|slot| (wave, slot));
            let next: Vec<Connected> = stream::iter(numbers)
                .map(|(wave, slot)| self.connect(wave, slot))
                .buffer_unordered(AT_ONCE)
                .try_collect()
                .await?;
            done += next.len();
            let left = std::mem::replace(&mut last, next);
            stream::iter(left)
                .map(|pod| self.disconnect(pod))
                .buffer_unordered(AT_ONCE)
                .try_collect::<()>()
                .await?;
            if last.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    async fn connect(&self, wave: usize, slot: usize) -> Result<Connected> {
        let node = self.node.name();
        let name = format!("{node}-{}-{slot}", wave % 2);
        let namespace = labels::namespace(2 + (slot * 7) % (self.namespaces - 2));
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": format!("app-{}", slot % 3)}},
            "spec": {
                "nodeName": node, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let made = api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let mut pod = Connected {
            uid: made.uid().unwrap_or_default(),
            addresses: Vec::new(),
            namespace,
            name,
        };
        let answer = self.call(ADD, &pod).await?;
        let answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
        let ips = answer["ips"].as_array().into_iter().flatten();
        pod.addresses = ips.filter_map(|ip| Some(ip["address"].as_str()?.to_owned())).collect();
        ensure!(pod.addresses.len() == 2, "{}: {answer}", pod.name);
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        for address in &pod.addresses {
            ensure!(in_use.insert(address.clone()), "{address} has two owners");
        }
        Ok(pod)
    }

    async fn disconnect(&self, pod: Connected) -> Result<()> {
        // Before the call: from then on the address may be another's.
        for address in &pod.addresses {
            self.in_use.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
        }
        self.call(DEL, &pod).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        api.delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    async fn call(&self, script: &str, pod: &Connected) -> Result<String> {
        let config = json!({
            "cniVersion": "0.3.1", "name": "cilium", "type": "cilium-cni",
            "enable-debug": false, "log-file": "/var/run/cilium/cilium-cni.log",
        });
        let Connected { namespace, name, uid, .. } = pod;
        let container = uid.replace('-', "");
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
             K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
        );
        let netns = format!("churn-{container}");
        let words = ["sh", "-ec", script, "sh", &netns, &container, &arguments];
        let called = self.node.run_with_input(&words, &config.to_string()).await;
        called.with_context(|| format!("{namespace}/{name}"))
    }
}
