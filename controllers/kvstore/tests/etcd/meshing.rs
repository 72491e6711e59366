//! Another cluster is read, followed, lost and drained.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cilia_kvstore::mesh::{Change, Mesh, News, Settings};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{
    Capabilities, ClusterConfig, ClusterService, IpIdentityPair, Node, encode, now,
};
use cilia_kvstore::{Client, SyncMetrics, keys};
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

const ID: u32 = 2;
const OF_WEST: &str = "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=west;";

/// What is known of the other cluster, as text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known(BTreeMap<String, String>);

impl Known {
    fn take(&mut self, change: Change) {
        let gone = |known: &mut Self, key: String| {
            assert!(known.0.remove(&key).is_some(), "{key} was not known");
        };
        match change {
            Change::Node(node) => _ = self.0.insert(format!("node {}", node.name), node.source),
            Change::Ip(prefix, pair) => {
                self.0.insert(format!("ip {prefix}"), pair.id.to_string());
            }
            Change::Identity(number, labels) => {
                self.0.insert(format!("identity {number}"), labels.canonical());
            }
            Change::Service(service) => {
                let backends: Vec<String> = service.backends.into_keys().collect();
                self.0.insert(
                    format!("service {}/{}", service.namespace, service.name),
                    backends.join(","),
                );
            }
            Change::NodeGone(name) => gone(self, format!("node {name}")),
            Change::IpGone(prefix) => gone(self, format!("ip {prefix}")),
            Change::IdentityGone(number) => gone(self, format!("identity {number}")),
            Change::ServiceGone(namespace, name) => {
                gone(self, format!("service {namespace}/{name}"));
            }
        }
    }

    async fn until(&mut self, news: &mut Receiver<News>, want: &[(&str, &str)]) {
        let want = Self(want.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        let read = async {
            while *self != want {
                let (cluster, changes) = news.recv().await.expect("the mesh goes on");
                assert_eq!(&*cluster, "west");
                for change in changes {
                    self.take(change);
                }
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(30), read).await;
        assert!(read.is_ok(), "known: {self:?}\nwant: {want:?}");
    }
}

async fn write(client: &Client) {
    let config = ClusterConfig {
        id: ID,
        capabilities: Capabilities {
            synced_canaries: true,
            max_connected_clusters: 255,
            ..Capabilities::default()
        },
    };
    let put = async |key: String, value: Vec<u8>| _ = client.put(&key, &value, true).await.unwrap();
    put(keys::HEARTBEAT.into(), now()).await;
    put(keys::cluster_config("west"), encode(&config)).await;
    let node = Node {
        name: "n1".into(),
        cluster: "west".into(),
        cluster_id: ID,
        source: "local".into(),
        ..Node::default()
    };
    put(keys::node("west", "n1"), encode(&node)).await;
    let pair = |ip: &str, id| IpIdentityPair::new(format!("{ip}/32").parse().unwrap(), id, None);
    put(keys::ip("10.2.0.1/32".parse().unwrap()), encode(&pair("10.2.0.1", ID << 16))).await;
    // An identity of a third cluster: refused.
    put(keys::ip("10.2.0.2/32".parse().unwrap()), encode(&pair("10.2.0.2", 3 << 16))).await;
    put(keys::identity_id(ID << 16), OF_WEST.into()).await;
    put(keys::identity_id(300), b"k8s:app=own;".to_vec()).await;
    // Labels of another cluster: refused.
    let of_east = OF_WEST.replace("west", "east");
    put(keys::identity_id((ID << 16) + 1), of_east.into_bytes()).await;
    let service = ClusterService {
        cluster: "west".into(),
        namespace: "default".into(),
        name: "web".into(),
        backends: [("10.2.0.1".to_owned(), BTreeMap::new())].into(),
        cluster_id: ID,
        ..ClusterService::default()
    };
    put(keys::service("west", "default", "web"), encode(&service)).await;
}

/// A node and a service of another cluster, complete.
async fn neighbour(client: &Client, cluster: &str) {
    let put = async |key: String, value: Vec<u8>| _ = client.put(&key, &value, true).await.unwrap();
    let config = ClusterConfig { id: 9, capabilities: Capabilities::default() };
    put(keys::cluster_config(cluster), encode(&config)).await;
    let node = Node { name: "n9".into(), cluster: cluster.into(), ..Node::default() };
    put(keys::node(cluster, "n9"), encode(&node)).await;
    let service = ClusterService {
        cluster: cluster.into(),
        namespace: "default".into(),
        name: "web".into(),
        cluster_id: 9,
        ..ClusterService::default()
    };
    put(keys::service(cluster, "default", "web"), encode(&service)).await;
    for prefix in [keys::NODES, keys::IPS, keys::IDENTITIES, keys::SERVICES] {
        put(keys::synced(cluster, prefix), now()).await;
    }
}

async fn canaries(client: &Client) {
    for prefix in [keys::NODES, keys::IPS, keys::IDENTITIES, keys::SERVICES] {
        client.put(&keys::synced("west", prefix), &now(), true).await.unwrap();
    }
}

fn mesh(directory: &Path, stop: &CancellationToken) -> (Mesh, Receiver<News>) {
    let settings = Settings {
        directory: directory.into(),
        cluster: "east".into(),
        cluster_id: 1,
        max_connected: 255,
        cache_ttl: Duration::ZERO,
        network: true,
        qps: 100.0,
        grace: Duration::from_millis(100),
    };
    let (mesh, news) = Mesh::new(settings);
    tokio::spawn({
        let (mesh, stop) = (mesh.clone(), stop.clone());
        async move { mesh.run(stop).await }
    });
    (mesh, news)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_read_followed_and_drained() {
    const ALL: &[(&str, &str)] = &[
        ("node n1", "local"),
        ("ip 10.2.0.1/32", "131072"),
        ("identity 131072", OF_WEST),
        ("service default/web", "10.2.0.1"),
    ];
    let etcd = Etcd::start().await;
    let client = etcd.client();
    write(&client).await;
    let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let file = directory.path().join("west");
    std::fs::copy(etcd.config("root"), &file).unwrap();
    // A cluster whose name begins alike shares the etcd: none of its keys is west's.
    neighbour(&client, "west-2").await;
    let (mesh, mut news) = mesh(directory.path(), &stop);
    let metrics = Metrics::new("cilium");
    mesh.count_in(SyncMetrics::register(&metrics));
    let read = |prefix: &str| {
        let labels = format!(r#"scope="{prefix}",source_cluster="west",action="read""#);
        let name = format!("cilium_kvstore_initial_sync_completed{{{labels}}} ");
        let text = metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map(str::to_owned).unwrap_or_default()
    };
    let mut remotes = mesh.remotes();
    let waits = remotes.wait_for(|all| all.get("west").is_some_and(|west| west.connected)).await;
    assert!(!waits.unwrap()["west"].ready, "it waits for the canaries");
    assert!(news.try_recv().is_err(), "and tells nothing before them");
    let kinds = ["nodes/v1", "ip/v1", "identities/v1", "services/v1"];
    eventually(|| async {
        let all: Vec<String> = kinds.iter().map(|kind| read(kind)).collect();
        if all == ["0"; 4] { Ok(()) } else { Err(all) }
    })
    .await;
    canaries(&client).await;
    let mut known = Known::default();
    known.until(&mut news, ALL).await;
    mesh.wait_ready(Duration::from_secs(10)).await;
    assert_eq!(kinds.map(&read), ["1"; 4], "{}", metrics.render());
    let west = mesh.remotes().borrow()["west"].clone();
    assert_eq!((west.id, west.counts.ips, west.counts.identities), (ID, 1, 1));

    // Clocks of other clusters jump; only that a heartbeat comes counts.
    for time in ["1970-01-01T00:00:00Z", "2199-01-01T00:00:00Z", "no time"] {
        client.put(keys::HEARTBEAT, time.as_bytes(), true).await.unwrap();
    }
    assert!(mesh.remotes().borrow()["west"].connected);

    // Followed.
    client.delete(&keys::service("west", "default", "web")).await.unwrap();
    known.until(&mut news, &ALL[..3]).await;

    // The file changes: connected anew, nothing is told twice as gone.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("# new\n{text}")).unwrap();
    client.delete(&keys::ip("10.2.0.1/32".parse().unwrap())).await.unwrap();
    known.until(&mut news, &[ALL[0], ALL[2]]).await;

    // The file goes: everything is taken back.
    std::fs::remove_file(&file).unwrap();
    known.until(&mut news, &[]).await;
    let gone = mesh.remotes().wait_for(std::collections::BTreeMap::is_empty).await.is_ok();
    assert!(gone);
    stop.cancel();
}
