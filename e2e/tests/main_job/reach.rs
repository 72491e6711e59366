//! Pods reach each other: on one node and on two, with every protocol and size.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::capture::Capture;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{PROTOCOLS, Protocol, reaches, serve};
use serde_json::json;

const PORT: u16 = 7000;

async fn three(stage: &Stage, namespace: &str) -> Result<Vec<Pod>> {
    pods::namespace(stage, namespace, &json!({})).await?;
    let plans = [("near", "n1"), ("here", "n1"), ("far", "n2")]
        .map(|(name, node)| Plan::idle(namespace, name).on(node));
    let found = pods::run(stage, &plans).await?;
    for pod in &found {
        serve(pod, PORT).await?;
    }
    Ok(found)
}

pub(crate) async fn pods_reach_each_other(stage: &Stage) -> Result<()> {
    let found = three(stage, "reach").await?;
    let [near, here, far] = &found[..] else { anyhow::bail!("three pods") };
    let mut failures = Vec::new();
    let mut tried = 0;
    for (from, to) in [(here, near), (here, far), (far, here)] {
        for address in to.addresses() {
            for protocol in PROTOCOLS {
                for large in [false, true] {
                    tried += 1;
                    let reached = reaches(from, address, PORT, protocol, large).await;
                    failures.extend(reached.err());
                }
            }
        }
    }
    // A pod also reaches itself.
    for address in here.addresses() {
        failures.extend(reaches(here, address, PORT, Protocol::Tcp, false).await.err());
    }
    ensure!(failures.is_empty(), "{} of {tried} fail:\n{}", failures.len(), failures.join("\n"));
    pods::leave(stage, "reach").await?;
    Ok(())
}

pub(crate) async fn services_and_names_are_reached(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "served", &json!({})).await?;
    let served = [
        Plan::idle("served", "server-1").label("app", "server").on("n1").agnhost(&["netexec"]),
        Plan::idle("served", "server-2").label("app", "server").on("n2").agnhost(&["netexec"]),
        Plan::idle("served", "client").on("n1").agnhost(&["pause"]),
    ];
    pods::run(stage, &served).await?;
    stage
        .apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "served", "name": "server"},
            "spec": {
                "selector": {"app": "server"},
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{"port": 80, "targetPort": 8080}],
            },
        }))
        .await?;
    let limit = std::time::Duration::from_secs(30);
    let service = stage.get("service", "served", "server").await?;
    let mut targets = vec!["server.served:80".to_owned()];
    for address in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
        let address: IpAddr = address.as_str().unwrap_or_default().parse()?;
        targets.push(std::net::SocketAddr::new(address, 80).to_string());
    }
    for target in targets {
        let words = ["--namespace=served", "exec", "client", "--", "/agnhost", "connect", &target];
        let what = format!("connection to the service at {target}");
        cilia_e2e::wait::until_ok(&what, limit, || stage.cluster.kubectl(&words)).await?;
    }
    pods::leave(stage, "served").await?;
    Ok(())
}

pub(crate) async fn the_vni_is_the_senders_identity(stage: &Stage) -> Result<()> {
    let found = three(stage, "wire").await?;
    let [_, here, far] = &found[..] else { anyhow::bail!("three pods") };
    let capture = Capture::start(&stage.cluster.node("n1")?).await?;
    for address in far.addresses() {
        for protocol in PROTOCOLS {
            reaches(here, address, PORT, protocol, false).await.map_err(anyhow::Error::msg)?;
        }
    }
    let caught = capture.finish().await;
    for (pod, peer) in [(here, far), (far, here)] {
        let endpoint = stage.get("ciliumendpoint", "wire", &pod.name).await?;
        let identity = endpoint["status"]["identity"]["id"].as_u64();
        for (address, peer) in pod.addresses().into_iter().zip(peer.addresses()) {
            let mut from = caught.iter().filter(|p| p.source == address && p.destination == peer);
            let first = from.next();
            ensure!(first.is_some(), "nothing from {address} among {} packets", caught.len());
            for packet in from.chain(first) {
                ensure!(
                    Some(u64::from(packet.vni)) == identity,
                    "{packet:?}, but {} is {identity:?}",
                    pod.name
                );
            }
        }
    }
    pods::leave(stage, "wire").await?;
    Ok(())
}
