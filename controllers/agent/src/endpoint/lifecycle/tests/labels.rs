//! An endpoint that is given labels beside those of its pod.

use std::sync::Arc;

use cilia_crds::{CiliumEndpoint, CiliumIdentity, Labels};
use cilia_runtime::testing::eventually;
use kube::Api;

use crate::endpoint::reconcile::Refreshed;
use crate::endpoint::test_agent::Agent;
use crate::endpoint::{Error, Fault, LocalEndpoint, Wanted};

/// Gives an endpoint these labels, and waits until its identity, its object and its map say so.
pub(super) async fn give(
    agent: &Agent,
    objects: &Api<CiliumEndpoint>,
    pod: &str,
    labels: &[&str],
) -> LocalEndpoint {
    let parts = agent.lifecycle.parts();
    let find = || parts.endpoints.list().into_iter().find(|one| one.pod == pod).unwrap();
    let former = find();
    agent.lifecycle.relabel(&former, Wanted::read(labels).unwrap()).await.unwrap();
    let user = |endpoint: &LocalEndpoint| endpoint.own.user();
    assert_eq!(user(&find()), labels, "it is written down before anybody is answered");
    let mut pods = former.own.without(&former.labels);
    for label in labels {
        let (name, value) = label.split_once('=').unwrap();
        let (source, key) = name.split_once(':').unwrap();
        pods.insert(source, key, value);
    }
    eventually(|| async {
        let now = find();
        if now.labels == pods { Ok(()) } else { Err(now) }
    })
    .await;
    let now = find();
    let mut shown: Vec<String> =
        pods.iter().map(|(name, value)| format!("{name}={value}")).collect();
    shown.sort();
    eventually(|| async {
        let status = objects.get(pod).await.unwrap().status.unwrap();
        let identity = status.identity.unwrap();
        let is = identity.labels == shown && identity.id == now.identity.map(|id| id.0.into());
        if is { Ok(()) } else { Err(identity) }
    })
    .await;
    let entries = parts.datapath.endpoints().entries().unwrap();
    let known = entries.iter().find(|(_, info)| info.id == now.id).unwrap();
    assert_eq!(Some(known.1.identity), now.identity.map(|identity| identity.0));
    LocalEndpoint::clone(&now)
}

/// Labels of its own give an endpoint an identity of its own, which the next agent keeps; without them it is what
/// it was before.
pub(super) async fn come_and_go(
    agent: &Agent,
    objects: &Api<CiliumEndpoint>,
    identities: &Api<CiliumIdentity>,
    pod: &str,
) -> LocalEndpoint {
    let first = agent.lifecycle.parts().endpoints.list();
    let first = LocalEndpoint::clone(first.iter().find(|one| one.pod == pod).unwrap());
    let labelled = give(agent, objects, pod, &["unspec:stage=test"]).await;
    assert_ne!(labelled.identity, first.identity);
    let parts = agent.lifecycle.parts();
    let facts = parts.pods.get(&first.key());
    let late = agent.lifecycle.refresh(Arc::new(first.clone()), facts.as_deref()).await.unwrap();
    assert!(matches!(late, Refreshed::Gone), "what it had before is no more to be taken on");
    let now = parts.endpoints.get(first.id).unwrap();
    assert_eq!((&now.labels, now.state), (&labelled.labels, labelled.state));
    let object = identities.get(&labelled.identity.unwrap().to_string()).await.unwrap();
    let set = Labels::from_security_labels(&object.security_labels);
    assert_eq!(set.get("unspec", "stage"), Some("test"));
    let back = give(agent, objects, pod, &[]).await;
    assert_eq!(back.identity, first.identity);
    let reserved = Wanted::read(&["reserved:world"]).unwrap();
    let refused = agent.lifecycle.relabel(&back, reserved).await;
    assert!(matches!(refused, Err(Error::Labels(Fault::Reserved(_)))), "{refused:?}");
    give(agent, objects, pod, &["unspec:stage=live"]).await
}
