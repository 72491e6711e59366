//! The test server itself: ready soon, records writes, leaves nothing behind.

use cilia_runtime::testing::ApiServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};

#[tokio::test]
async fn a_real_api_server_that_tells_who_wrote_what() {
    let server = ApiServer::start().await;
    assert_eq!(server.writes().await, [], "nothing is written by itself");

    let maps: Api<ConfigMap> = Api::namespaced(server.client_as("tester/1"), "default");
    let metadata = ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() })
        .await
        .unwrap();
    maps.get("a").await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();

    let writes = server.writes().await;
    let seen: Vec<_> =
        writes.iter().map(|w| (&*w.verb, &*w.resource, &*w.name, &*w.agent, w.code)).collect();
    assert_eq!(
        seen,
        [
            ("create", "configmaps", "a", "tester/1", 201),
            ("delete", "configmaps", "a", "tester/1", 200)
        ]
    );
}
