//! Bad input ends in a message that names the field and the fault, where the user looks.

use std::time::Duration;

use anyhow::Result;
use cilia_e2e::scenario::pods::{self, Plan};
use cilia_e2e::scenario::{Stage, chart};
use cilia_e2e::wait::{Look, until};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(2);
const CONFLIST: &str = "/etc/cni/net.d/05-cilium.conflist";

/// Waits until `look` finds a text with all of `words` in it.
async fn told<F, Fut>(words: &[&str], look: F) -> Result<()>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Vec<String>>>,
{
    until(&format!("a message with {words:?}"), LIMIT, || async {
        match look().await {
            Ok(texts) => {
                let fits = |text: &&String| words.iter().all(|word| text.contains(word));
                match texts.iter().find(fits) {
                    Some(_) => Look::Done(()),
                    None => Look::Not(texts.join("\n")),
                }
            }
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

pub(crate) async fn a_malformed_plugin_configuration_is_named(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "malformed", &json!({})).await?;
    let node = stage.cluster.node("n1")?;
    let good = node.run(&["cat", CONFLIST]).await?;
    let mut bad: Value = serde_json::from_str(&good)?;
    bad["plugins"][0]["mtu"] = json!("large");
    let write = |text: &str| {
        let script = format!("cat >{CONFLIST} <<'END'\n{text}\nEND\n");
        let node = node.clone();
        async move { node.run(&["sh", "-ec", &script]).await }
    };
    write(&bad.to_string()).await?;
    let plan = Plan::idle("malformed", "unlucky").on("n1");
    stage.apply(&plan.manifest()).await?;
    let outcome = told(&["mtu", "large"], || async {
        let events = stage.list("events", Some("malformed")).await?;
        let sandbox = events.iter().filter(|event| event["reason"] == "FailedCreatePodSandBox");
        Ok(sandbox.map(|event| event["message"].to_string()).collect())
    })
    .await;
    write(&good).await?;
    outcome?;
    // Once it is put right, the same pod starts.
    pods::run(stage, &[plan]).await?;
    pods::leave(stage, "malformed").await?;
    Ok(())
}

pub(crate) async fn a_wrong_cidr_is_named(stage: &Stage) -> Result<()> {
    let key = "cluster-pool-ipv4-cidr";
    let before = stage.get("configmap", chart::NAMESPACE, "cilium-config").await?;
    let good = before["data"][key].as_str().unwrap_or_default().to_owned();
    let set = |value: &str| {
        let patch = json!({"data": {key: value}}).to_string();
        async move {
            let args = ["patch", "configmap", "cilium-config", "--type=merge", "--patch", &patch];
            let args: Vec<_> = ["--namespace", chart::NAMESPACE].into_iter().chain(args).collect();
            stage.cluster.kubectl(&args).await
        }
    };
    set("10.244.0.0/99").await?;
    let namespace = format!("--namespace={}", chart::NAMESPACE);
    let restart = [&namespace, "rollout", "restart", "deployment/cilium-operator"];
    stage.cluster.kubectl(&restart).await?;
    let outcome = told(&[key, "10.244.0.0/99"], || async {
        let all = stage.list("pods", Some(chart::NAMESPACE)).await?;
        let states = all.iter().flat_map(|pod| {
            let status = &pod["status"]["containerStatuses"][0];
            [status["state"].to_string(), status["lastState"].to_string()]
        });
        Ok(states.filter(|state| state.contains("terminated")).collect())
    })
    .await;
    set(&good).await?;
    stage.cluster.kubectl(&restart).await?;
    outcome?;
    chart::ready(stage).await?;
    Ok(())
}

pub(crate) async fn an_impossible_policy_is_named(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "impossible", &json!({})).await?;
    stage
        .apply(&json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"namespace": "impossible", "name": "both"},
            "spec": {
                "endpointSelector": {},
                "ingress": [{
                    "fromEndpoints": [{"matchLabels": {"app": "a"}}],
                    "fromCIDR": ["10.0.0.0/8"],
                }],
            },
        }))
        .await?;
    told(&["fromEndpoints", "fromCIDR", "False"], || async {
        let policy = stage.get("ciliumnetworkpolicy", "impossible", "both").await?;
        let conditions = policy["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().map(ToString::to_string).collect())
    })
    .await?;
    pods::leave(stage, "impossible").await?;
    Ok(())
}
