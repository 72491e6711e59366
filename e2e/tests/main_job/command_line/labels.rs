//! Labels that somebody gives an endpoint by the command line: policies see them, the next agent knows them.

use anyhow::{Context as _, Result, bail, ensure};
use cilia_e2e::scenario::traffic::{Protocol, reaches};
use cilia_e2e::scenario::{Stage, agent, pods};
use cilia_e2e::wait::{Look, until};
use serde_json::{Value, json};

use super::{LIMIT, PORT, talkers};
use crate::agent_restart::kill_agent;
use crate::asked_for;

const NAMESPACE: &str = "labelled";

pub(crate) async fn an_endpoint_has_labels_of_its_own(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let found = talkers(stage, NAMESPACE).await?;
    let [server, client] = &found[..] else { bail!("two pods") };
    stage
        .apply(&json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"namespace": NAMESPACE, "name": "server"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{
                "fromEndpoints": [{"matchLabels": {"app": "client", "stage": "test"}}],
            }]},
        }))
        .await?;
    let passes = async |wanted: bool| {
        until("the policy's view of the client", LIMIT, || async {
            let reached = reaches(client, server.ipv4.into(), PORT, Protocol::Tcp, false).await;
            if reached.is_ok() == wanted {
                Look::Done(())
            } else {
                Look::Not(format!("{reached:?}"))
            }
        })
        .await
    };
    let name = format!("cep-name:{NAMESPACE}/{}", client.name);
    let labels = async |more: &[&str]| -> Result<Value> {
        let words = [&["endpoint", "labels", &name], more].concat();
        Ok(agent::json(stage, "n1", &words).await?["status"]["realized"]["user"].clone())
    };
    passes(false).await?;
    ensure!(labels(&["--add", "stage=test"]).await? == json!(["unspec:stage=test"]));
    passes(true).await?;
    let object = stage.get("ciliumendpoint", NAMESPACE, &client.name).await?;
    let shown = object["status"]["identity"]["labels"].as_array().context("its labels")?;
    ensure!(shown.contains(&json!("unspec:stage=test")), "{shown:?}");
    kill_agent(stage, "n1").await?;
    ensure!(labels(&[]).await? == json!(["unspec:stage=test"]), "the next agent knows them");
    passes(true).await?;
    ensure!(labels(&["--delete", "stage"]).await? == json!([]));
    passes(false).await?;
    pods::leave(stage, NAMESPACE).await?;
    Ok(())
}
