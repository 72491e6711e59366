//! Endpoints for tests.

use cilia_crds::{Labels, NumericIdentity};

use super::{EndpointState, LocalEndpoint, NamedPort, OwnLabels};
use crate::device::name::Mac;

/// A plain endpoint.
pub(crate) fn endpoint(id: u16, container: &str, pod: &str) -> LocalEndpoint {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", pod);
    LocalEndpoint {
        id,
        namespace: "default".into(),
        pod: pod.into(),
        pod_uid: format!("uid-of-{pod}"),
        object_uid: format!("uid-of-{pod}"),
        container_id: container.into(),
        ifname: "eth0".into(),
        netns: "/run/netns/x".into(),
        host_device: crate::device::name::pod_device(container, "eth0"),
        ifindex: 10,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        node_mac: Mac([2, 0, 0, 0, 0, 2]),
        ipv4: "10.0.0.2".parse().ok(),
        ipv6: "fd00::2".parse().ok(),
        identity: Some(NumericIdentity(1234)),
        labels,
        own: OwnLabels::default(),
        pod_labels: [("app".to_owned(), pod.to_owned())].into(),
        service_account: "default".into(),
        named_ports: vec![NamedPort { name: "http".into(), port: 80, protocol: "TCP".into() }],
        sequence: id.into(),
        state: EndpointState::Ready,
        published_uid: None,
    }
}

/// An API server that knows Cilium's kinds.
pub(crate) async fn api_server() -> cilia_runtime::testing::ApiServer {
    use kube::api::PostParams;
    let server = cilia_runtime::testing::ApiServer::start().await;
    let definitions: kube::Api<cilia_crds::CustomResourceDefinition> =
        kube::Api::all(server.client());
    for definition in cilia_crds::all() {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    for definition in cilia_crds::all() {
        let name = definition.metadata.name.unwrap();
        cilia_runtime::testing::eventually(|| async {
            let status = definitions.get(&name).await.unwrap().status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let established =
                conditions.iter().any(|c| c.type_ == "Established" && c.status == "True");
            if established { Ok(()) } else { Err(conditions) }
        })
        .await;
    }
    server
}

/// A registry that knows these.
pub(crate) fn registry(endpoints: Vec<LocalEndpoint>) -> super::Endpoints {
    let registry = super::Endpoints::default();
    for endpoint in endpoints {
        registry.put(endpoint);
    }
    registry
}
