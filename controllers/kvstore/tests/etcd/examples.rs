//! The values and keys that Cilium writes, literally: each is read, and written again byte for byte.

use std::fmt::Debug;

use cilia_crds::Labels;
use cilia_kvstore::Allocator;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::keys::{self, Layout};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{
    Capabilities, ClusterConfig, ClusterService, Expected, IpIdentityPair, Node, PolicyNodeStatus,
    decode, encode, now, parse_labels,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::workqueues;

fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &str) -> T {
    let value: T = decode("key", text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(encode(&value)).unwrap(), text);
    value
}

#[test]
fn nodes() {
    let node: Node = same(
        r#"{"Name":"n1","Cluster":"east","IPAddresses":[{"Type":"InternalIP","IP":"172.18.0.2"},{"Type":"ExternalIP","IP":"192.0.2.7"},{"Type":"CiliumInternalIP","IP":"10.0.0.1"},{"Type":"CiliumInternalIP","IP":"fd00::1"}],"IPv4AllocCIDR":{"IP":"10.0.0.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.9.0.0","Mask":"///wAA=="}],"IPv6AllocCIDR":{"IP":"fd00::","Mask":"//////////8AAAAAAAAAAA=="},"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.0.0.9","IPv6HealthIP":"fd00::9","IPv4IngressIP":"10.0.0.8","IPv6IngressIP":"","ClusterID":1,"Source":"custom-resource","EncryptionKey":3,"Labels":{"kubernetes.io/hostname":"n1"},"Annotations":{"network.cilium.io/wg-pub-key":"a2V5"},"NodeIdentity":1,"WireguardPubKey":"a2V5","BootID":"b-1"}"#,
    );
    let ranges: Vec<String> = node.ranges().iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/24", "fd00::/64", "10.9.0.0/20"]);
    node.check("n1", &Expected { cluster: "east".into(), id: 1 }).unwrap();
    let bare: Node = same(
        r#"{"Name":"n","Cluster":"c","IPAddresses":[],"IPv4AllocCIDR":null,"IPv4SecondaryAllocCIDRs":null,"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":0,"Source":"","EncryptionKey":0,"Labels":null,"Annotations":null,"NodeIdentity":0,"WireguardPubKey":"","BootID":""}"#,
    );
    assert!(bare.ranges().is_empty());
}

#[test]
fn addresses() {
    for (text, name) in [
        (
            r#"{"IP":"10.0.0.1","Mask":null,"HostIP":"172.18.0.2","ID":65600,"Key":3,"Metadata":"","K8sNamespace":"default","K8sPodName":"web-0","K8sServiceAccount":"web","NamedPorts":[{"Name":"http","Port":80,"Protocol":"TCP"},{"Name":"dns","Port":53,"Protocol":"UDP"}]}"#,
            "10.0.0.1",
        ),
        (
            r#"{"IP":"10.1.2.0","Mask":"////AA==","HostIP":"","ID":2,"Key":0,"Metadata":""}"#,
            "10.1.2.0/24",
        ),
        (
            r#"{"IP":"fd00::a","Mask":null,"HostIP":"fd01::2","ID":70000,"Key":0,"Metadata":"","K8sNamespace":"default","K8sPodName":"db-0"}"#,
            "fd00::a",
        ),
    ] {
        let pair: IpIdentityPair = same(text);
        let prefix = pair.check(name, None).unwrap();
        assert_eq!(keys::ip(prefix), format!("cilium/state/ip/v1/default/{name}"));
    }
}

#[test]
fn services() {
    let east = Expected { cluster: "east".into(), id: 1 };
    for text in [
        r#"{"cluster":"east","namespace":"default","name":"web","frontends":{"10.96.0.10":{"":{"Protocol":"TCP","Port":80}},"fd96::a":{"":{"Protocol":"TCP","Port":80}}},"backends":{"10.0.0.5":{"":{"Protocol":"TCP","Port":8080}}},"labels":{"app":"web"},"selector":{"app":"web"},"includeExternal":true,"shared":true,"clusterID":1}"#,
        r#"{"cluster":"east","namespace":"default","name":"web","frontends":{},"backends":{"10.0.0.5":{"http":{"Protocol":"SCTP","Port":8080}}},"hostnames":{"10.0.0.5":"web-0"},"zones":{"10.0.0.5":{"zone":"a","forZones":[{"name":"a"},{"name":"b"}]}},"labels":{},"selector":{},"includeExternal":true,"shared":true,"clusterID":1}"#,
    ] {
        same::<ClusterService>(text).check("default/web", &east).unwrap();
    }
}

#[test]
fn what_clusters_and_nodes_say_of_themselves() {
    for text in [
        r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,"serviceExportsEnabled":false}}"#,
        r#"{"id":7,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":511,"serviceExportsEnabled":true}}"#,
        r#"{"capabilities":{}}"#,
    ] {
        same::<ClusterConfig>(text);
    }
    let unsupported = Capabilities { max_connected_clusters: 255, ..Capabilities::default() };
    assert_eq!(encode(&unsupported), br#"{"maxConnectedClusters":255}"#);
    same::<PolicyNodeStatus>(
        r#"{"UID":"u-1","Namespace":"default","Name":"web","Node":"n1","annotations":{"a":"b"},"enforcing":true,"lastUpdated":"2024-05-01T12:00:00Z","localPolicyRevision":4,"ok":true}"#,
    );
}

#[test]
fn keys_are_literal() {
    let (own, copy) = (Layout { cached: false }, Layout { cached: true });
    for (made, literal) in [
        (keys::HEARTBEAT.to_owned(), "cilium/.heartbeat"),
        (keys::INIT_LOCK.to_owned(), "cilium/.initlock"),
        (keys::identity_id(65_600), "cilium/state/identities/v1/id/65600"),
        (
            keys::identity_value("k8s:a=b;", "172.18.0.2"),
            "cilium/state/identities/v1/value/k8s:a=b;/172.18.0.2",
        ),
        (keys::identity_lock("k8s:a=b;"), "cilium/state/identities/v1/locks/k8s:a=b;"),
        (keys::node("east", "n1"), "cilium/state/nodes/v1/east/n1"),
        (keys::ip("fd00::/64".parse().unwrap()), "cilium/state/ip/v1/default/fd00::/64"),
        (keys::service("east", "ns", "web"), "cilium/state/services/v1/east/ns/web"),
        (keys::service_export("east", "ns", "web"), "cilium/state/serviceexports/v1/east/ns/web"),
        (keys::POLICY_STATUSES.to_owned(), "cilium/state/cnpstatuses/v2"),
        (keys::cluster_config("east"), "cilium/cluster-config/east"),
        (own.canary("east", keys::NODES), "cilium/synced/east/cilium/state/nodes/v1"),
        (copy.canary("east", keys::IPS), "cilium/synced/east/cilium/cache/ip/v1"),
        (own.identities("east"), "cilium/state/identities/v1/id/"),
        (copy.identities("east"), "cilium/cache/identities/v1/east/id/"),
        (own.ips("east"), "cilium/state/ip/v1/default/"),
        (copy.ips("east"), "cilium/cache/ip/v1/east/"),
        (copy.nodes("east"), "cilium/cache/nodes/v1/east/"),
        (copy.services("east"), "cilium/cache/services/v1/east/"),
    ] {
        assert_eq!(made, literal);
    }
    let time = String::from_utf8(now()).unwrap();
    let shape = time.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(shape, "0000-00-00T00:00:00Z", "heartbeats and canaries: {time}");
}

/// Identities with slashes in labels, their uses and locks, as they lie in etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_and_locks_lie_where_they_should() {
    const TEXT: &str = "k8s:app.kubernetes.io/name=web=1;k8s:empty=;k8s:ns/label=a/b;";
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let space = cilia_identity::Space::new(0, 255).unwrap();
    let allocator = Allocator::new(client.clone(), space, "172.18.0.2".into(), &workqueues());
    let stop = tokio_util::sync::CancellationToken::new();
    tokio::spawn({
        let (allocator, stop) = (allocator.clone(), stop.clone());
        async move { allocator.run(stop, |_| {}).await }
    });
    let labels: Labels = parse_labels(TEXT).unwrap();
    allocator.allocate(&labels, None, &NoMaker).await.unwrap();
    let (ids, _) = client.list("cilium/state/identities/v1/id/").await.unwrap();
    let [id] = ids.as_slice() else { panic!("{ids:?}") };
    let number = String::from_utf8_lossy(&id.key).rsplit('/').next().unwrap().to_owned();
    assert_eq!((id.value.as_slice(), id.lease), (TEXT.as_bytes(), 0), "no lease");
    let used = format!("cilium/state/identities/v1/value/{TEXT}/172.18.0.2");
    let used = client.get(&used).await.unwrap().expect("the use's key");
    assert_eq!(used.value, number.as_bytes());
    assert_ne!(used.lease, 0);

    let path = format!("cilium/state/identities/v1/locks/{TEXT}");
    let lock = client.lock(&path).await.unwrap();
    let (held, _) = client.list(&path).await.unwrap();
    let [held] = held.as_slice() else { panic!("{held:?}") };
    assert_eq!(held.key, format!("{path}/{:x}", held.lease).into_bytes());
    assert!(held.value.is_empty());
    lock.unlock().await.unwrap();
    stop.cancel();
}
