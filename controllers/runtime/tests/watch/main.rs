//! Watching a real API server: streamed lists, live changes, a cut connection, metadata only.

mod relist;

use std::time::Duration;

use cilia_runtime::testing::proxy::{Mode, Proxy};
use cilia_runtime::testing::{ApiServer, client_of, client_that_doubts};
use cilia_runtime::watch::{Event, Key, PartialObjectMeta, Scope, watch, watch_scoped};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};

fn map(name: &str) -> ConfigMap {
    let labels = [("name".to_string(), name.to_string())].into();
    let metadata =
        ObjectMeta { name: Some(name.into()), labels: Some(labels), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// The next `count` events in a form that is easy to compare.
async fn next(
    events: &mut (impl Stream<Item = Event<ConfigMap>> + Unpin),
    count: usize,
) -> Vec<String> {
    let mut told = Vec::new();
    while told.len() < count {
        let event = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
        told.push(
            match event.unwrap_or_else(|_| panic!("after {told:?}: nothing more")).unwrap() {
                Event::Applied(object) => object.metadata.name.unwrap(),
                Event::Deleted(key) => format!("-{}", key.name),
                Event::Synced => "synced".into(),
            },
        );
    }
    told
}

#[tokio::test]
async fn sees_what_happens_even_while_cut_off() {
    let server = ApiServer::start().await;
    let direct: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    for name in ["a", "b"] {
        direct.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    let proxy = Proxy::to(server.address()).await;
    let watched: Api<ConfigMap> = Api::namespaced(client_of(proxy.address(), "watcher"), "default");
    let mut events = Box::pin(watch(watched.clone()));
    let mut first = next(&mut events, 3).await;
    first[..2].sort();
    assert_eq!(first, ["a", "b", "synced"]);

    direct.create(&PostParams::default(), &map("c")).await.unwrap();
    direct.delete("c", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut events, 2).await, ["c", "-c"]);

    proxy.set(Mode::Cut);
    direct.delete("a", &DeleteParams::default()).await.unwrap();
    let patch = Patch::Merge(serde_json::json!({"data": {"k": "v"}}));
    direct.patch("b", &PatchParams::default(), &patch).await.unwrap();
    proxy.set(Mode::Pass);
    let mut after = next(&mut events, 2).await;
    after.sort();
    assert_eq!(after, ["-a", "b"]);

    let one = Scope { labels: "name=b".into(), ..Scope::default() };
    let mut selected = Box::pin(watch_scoped(watched, one));
    assert_eq!(next(&mut selected, 2).await, ["b", "synced"]);

    drop((events, selected));
    of_a_connection_that_hangs(&proxy, &direct).await;

    let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(server.client(), "default");
    let mut metadata = Box::pin(watch(metadata));
    let Some(Event::Applied(object)) = metadata.next().await else { panic!("b must be there") };
    assert_eq!(Key::of(&object), Key::new("default", "b"));
    assert!(matches!(metadata.next().await, Some(Event::Synced)));
}

/// Report 57: packets of a watch vanish, and nobody says that the connection is gone. The watch finds out by itself,
/// and those on other connections have not been disturbed.
async fn of_a_connection_that_hangs(proxy: &Proxy, direct: &Api<ConfigMap>) {
    let client = client_that_doubts(proxy.address(), "watcher", Duration::from_secs(1));
    let watched: Api<ConfigMap> = Api::namespaced(client, "default");
    let one = |name: &str| Scope { labels: format!("name={name}"), ..Scope::default() };
    let mut hangs = Box::pin(watch_scoped(watched.clone(), one("late")));
    assert_eq!(next(&mut hangs, 1).await, ["synced"]);
    proxy.freeze_open();
    let mut other = Box::pin(watch_scoped(watched, one("late")));
    assert_eq!(next(&mut other, 1).await, ["synced"]);
    direct.create(&PostParams::default(), &map("late")).await.unwrap();
    assert_eq!(next(&mut other, 1).await, ["late"]);
    assert_eq!(next(&mut hangs, 1).await, ["late"]);
    direct.delete("late", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn lists_page_by_page_where_the_server_does_not_stream() {
    let server = ApiServer::with_arguments(&["--feature-gates=WatchList=false"]).await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    let mut events = Box::pin(watch(maps.clone()));
    let mut first = next(&mut events, 3).await;
    first[..2].sort();
    assert_eq!(first, ["a", "b", "synced"]);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut events, 1).await, ["-a"]);
}
