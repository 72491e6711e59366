//! `CiliumEndpoint`s on a real API server.

use cilia_crds::CiliumEndpoint;
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use super::{Place, Publisher};
use crate::endpoint::testing::{api_server, endpoint};
use crate::endpoint::{Error, status};
use crate::policy::Trouble;

const NODE: &str = "192.0.2.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_follows_its_endpoint() {
    let server = api_server().await;
    let addresses = [NODE.to_owned()];
    let place = Place { node: NODE, addresses: &addresses, trouble: None, pod_host: Some(NODE) };
    let api: Api<CiliumEndpoint> = Api::namespaced(server.client(), "default");
    let writes = async || {
        let of_agent =
            server.writes().await.into_iter().filter(|write| write.agent.starts_with("agent"));
        of_agent.map(|write| (write.verb, write.code)).collect::<Vec<_>>()
    };

    let mut web = endpoint(7, "c1", "web");
    let publisher = Publisher::new(server.client_as("agent"));
    let uid = publisher.publish(&web, &place).await.unwrap();
    web.published_uid = Some(uid.clone());
    let object = api.get("web").await.unwrap();
    assert_eq!(object.status, Some(status::status(&web, NODE)));
    assert_eq!(publisher.publish(&web, &place).await.unwrap(), uid);

    // The next agent finds it right.
    let publisher = Publisher::new(server.client_as("agent"));
    assert_eq!(publisher.publish(&web, &place).await.unwrap(), uid);
    assert_eq!(writes().await, [("create".into(), 201)], "nothing is written that is right");

    web.pod_labels.insert("tier".into(), "front".into());
    web.identity = Some(cilia_crds::NumericIdentity(4321));
    publisher.publish(&web, &place).await.unwrap();
    let object = api.get("web").await.unwrap();
    assert_eq!(object.metadata.labels.unwrap()["tier"], "front");
    assert_eq!(object.status.unwrap().identity.unwrap().id, Some(4321));
    assert_eq!(object.metadata.managed_fields, None, "nobody needs to know whose a field is");
    assert_eq!(writes().await[1..], [("patch".into(), 200)], "a change is one request");

    // What is wrong with its policy is said for as long as it is so.
    let full = Place { trouble: Some(Trouble::Overflow(256)), ..place };
    publisher.publish(&web, &full).await.unwrap();
    let told = api.get("web").await.unwrap().status.unwrap();
    assert_eq!(told.health.unwrap().policy.as_deref(), Some("Failure"));
    assert!(told.log[0].message.as_ref().unwrap().contains("bpf-policy-map-max"), "{:?}", told.log);
    publisher.publish(&web, &place).await.unwrap();
    assert_eq!(api.get("web").await.unwrap().status, Some(status::status(&web, NODE)));

    // Somebody deletes it; the next change makes it again.
    api.delete("web", &DeleteParams::default()).await.unwrap();
    web.named_ports.clear();
    let made = publisher.publish(&web, &place).await.unwrap();
    assert_ne!(made, uid);
    web.published_uid = Some(made);

    // The same name for a new pod, before the old object is collected.
    let mut next = endpoint(9, "c2", "web");
    (next.pod_uid, next.object_uid) = ("another".into(), "another".into());
    let uid = publisher.publish(&next, &place).await.unwrap();
    let object = api.get("web").await.unwrap();
    assert_eq!(object.metadata.owner_references.unwrap()[0].uid, "another");
    assert_eq!(object.metadata.uid, Some(uid));

    // Another node's is left alone.
    let mut theirs = status::object(&endpoint(3, "c3", "db"), "192.0.2.9");
    theirs.metadata.namespace = Some("default".into());
    api.create(&PostParams::default(), &theirs).await.unwrap();
    let elsewhere = Place { pod_host: Some("192.0.2.9"), ..place };
    let refused = publisher.publish(&endpoint(5, "c5", "db"), &elsewhere).await;
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");

    // One that is there already, of whoever, says another address and belongs to no pod: it is made right.
    let mut stale = status::object(&endpoint(4, "c4", "cache"), NODE);
    stale.metadata.namespace = Some("default".into());
    stale.metadata.owner_references = None;
    stale.status.as_mut().unwrap().networking.as_mut().unwrap().addressing[0].ipv4 =
        Some("10.9.9.9".into());
    let stale = api.create(&PostParams::default(), &stale).await.unwrap();
    let cache = endpoint(4, "c4", "cache");
    let uid = publisher.publish(&cache, &place).await.unwrap();
    let object = api.get("cache").await.unwrap();
    assert_eq!((object.metadata.uid, Some(uid)), (stale.metadata.uid.clone(), stale.metadata.uid));
    assert_eq!(object.status, Some(status::status(&cache, NODE)));
    assert_eq!(object.metadata.owner_references.unwrap()[0].uid, cache.object_uid);

    publisher.withdraw(&next.key()).await.unwrap();
    publisher.withdraw(&next.key()).await.unwrap();
    assert!(api.get_opt("web").await.unwrap().is_none());
    assert!(api.get_opt("db").await.unwrap().is_some());
}
