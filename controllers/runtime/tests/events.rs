//! Events as a user sees them, and no more of them than needed.

use cilia_runtime::events::Recorder;
use cilia_runtime::testing::{ApiServer, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};

#[tokio::test]
async fn one_event_per_text_on_the_object() {
    let server = ApiServer::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let metadata = ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    let map = maps.create(&PostParams::default(), &map).await.unwrap();

    let recorder = Recorder::new(server.client(), "cilium-operator");
    for _ in 0..5 {
        recorder.warning(&map, "OutOfCidrs", "no CIDR is free: add one to cluster-pool-ipv4-cidr");
    }
    recorder.normal(&map, "Long", "é".repeat(2_000));

    let events: Api<Event> = Api::namespaced(server.client(), "default");
    let fields = ListParams::default().fields("involvedObject.name=a");
    let mut seen = eventually(async || {
        let events = events.list(&fields).await.unwrap().items;
        if events.len() == 2 { Ok(events) } else { Err(events.len()) }
    })
    .await;
    seen.sort_by_key(|event| event.reason.clone());
    let [long, warning] = &seen[..] else { panic!("two events") };
    assert_eq!(long.message.as_ref().unwrap().len(), 1024);
    assert_eq!(warning.type_.as_deref(), Some("Warning"));
    assert_eq!(warning.reason.as_deref(), Some("OutOfCidrs"));
    assert_eq!(warning.involved_object.kind.as_deref(), Some("ConfigMap"));
    assert_eq!(warning.reporting_component.as_deref(), Some("cilium-operator"));
}
