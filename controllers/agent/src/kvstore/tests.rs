//! An agent's part in the kvstore, on a real etcd.

use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::NumericIdentity;
use cilia_identity::Space;
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{IpIdentityPair, Node, decode};
use cilia_kvstore::{Client, keys};
use cilia_runtime::config::{Config as Flags, Flags as AllFlags};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Kvstore, Mode, Settings};
use crate::endpoint::Endpoints;
use crate::identity::{Identities, Management};
use crate::ipcache::Fed;
use crate::node::{LocalNode, NodeInfo, Nodes};

const LONG: std::time::Duration = std::time::Duration::from_secs(30);

fn settings(etcd: &Etcd, mode: &str) -> Settings {
    let args = [
        "--kvstore=etcd".to_owned(),
        format!("--identity-allocation-mode={mode}"),
        format!("--kvstore-opt=etcd.config={}", etcd.config("root").display()),
        "--kvstore-opt=etcd.qps=10000".to_owned(),
        "--cluster-name=east".to_owned(),
        "--cluster-id=1".to_owned(),
    ];
    let flags = Flags::load(AllFlags::agent(), args, []).expect("flags");
    Settings::read(&flags).expect("settings")
}

pub(super) fn local(number: u8) -> LocalNode {
    LocalNode {
        name: format!("n{number}"),
        ipv4: Some([172, 18, 0, number].into()),
        pod_cidrs: vec![format!("10.0.{number}.0/24").parse().unwrap()],
        routers: vec![IpAddr::from([10, 0, number, 1])],
        ..LocalNode::default()
    }
}

pub(super) fn space() -> Space {
    Space::new(1, 255).expect("allowed")
}

pub(super) fn kvstore(etcd: &Etcd, mode: &str, number: u8) -> Kvstore {
    let metrics = Metrics::new("test");
    let workqueues = Workqueues::register(&metrics);
    Kvstore::new(&settings(etcd, mode), space(), &local(number), &workqueues, &metrics)
        .expect("a client")
        .expect("a kvstore")
}

pub(super) async fn value(client: &Client, key: &str) -> Result<Vec<u8>, String> {
    match client.get(key).await {
        Ok(Some(kv)) => Ok(kv.value),
        other => Err(format!("{key}: {other:?}")),
    }
}

#[test]
fn modes_without_a_kvstore_are_refused() {
    let read = |args: &[&str]| {
        let args = args.iter().map(ToString::to_string);
        let flags = Flags::load(AllFlags::agent(), args, []).expect("flags");
        Settings::read(&flags).map(|settings| settings.mode).map_err(|error| error.to_string())
    };
    assert_eq!(read(&["--identity-allocation-mode=crd"]), Ok(Mode::Kubernetes));
    for ttl in ["--kvstore-lease-ttl=25s", "--kvstore-lease-ttl=24h"] {
        assert_eq!(read(&["--identity-allocation-mode=crd", ttl]), Ok(Mode::Kubernetes));
    }
    for (args, want) in [
        (&["--identity-allocation-mode=kvstore"][..], "kvstore: \"\""),
        (&["--identity-allocation-mode=doublewrite-readcrd"], "kvstore: \"\""),
        (&["--identity-allocation-mode=both"], "identity-allocation-mode"),
        (&["--identity-allocation-mode=kvstore", "--kvstore=etcd"], "etcd.address"),
        (&["--identity-allocation-mode=crd", "--kvstore-lease-ttl=24s"], "25s to 24h"),
        (&["--identity-allocation-mode=crd", "--kvstore-lease-ttl=24h0m1s"], "25s to 24h"),
        (
            &["--identity-allocation-mode=crd", "--identity-allocation-sync-interval=0s"],
            "identity-allocation-sync-interval: \"0s\", set by the command line, is not allowed: 1s or more",
        ),
    ] {
        let error = read(args).unwrap_err();
        assert!(error.contains(want), "{args:?}: {error} lacks {want}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_addresses_are_told_and_read() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let other = IpIdentityPair::new(
        "10.0.2.5/32".parse().unwrap(),
        65_600,
        Some("172.18.0.2".parse().unwrap()),
    );
    let key = keys::ip("10.0.2.5/32".parse().unwrap());
    client.put(&key, &cilia_kvstore::value::encode(&other), true).await.unwrap();
    let (nodes, endpoints) = (Nodes::default(), Endpoints::default());
    nodes.set_local_for_test(local(1));
    let kvstore = kvstore(&etcd, "kvstore", 1);
    let (feed, mut told) = mpsc::channel(64);
    let stop = CancellationToken::new();
    let api = cilia_runtime::testing::client_of(([127, 0, 0, 1], 1).into(), "nobody's");
    let identities = Identities::new(api, space(), Management::Agent);
    let running = kvstore.clone();
    let running = running.run(identities, endpoints.clone(), nodes, Some(feed), stop.clone());
    let running = tokio::spawn(running);

    let node = keys::node("east", "n1");
    let said = eventually(|| value(&client, &node)).await;
    let said: Node = decode(&node, &said).unwrap();
    assert_eq!((said.name.as_str(), said.cluster_id), ("n1", 1));
    assert_eq!(said.boot_id, crate::node::boot_id());
    let addresses: Vec<(&str, &str)> =
        said.addresses.iter().map(|one| (one.kind.as_str(), one.ip.as_str())).collect();
    assert_eq!(addresses, [("InternalIP", "172.18.0.1"), ("CiliumInternalIP", "10.0.1.1")]);
    assert_eq!(said.ranges(), ["10.0.1.0/24".parse().unwrap()]);
    client.delete(&node).await.unwrap();
    eventually(|| value(&client, &node)).await;

    kvstore.wait_listed().await;
    let words = told.recv().await.unwrap();
    let name: Arc<str> = "kvstore/10.0.2.5".into();
    assert!(
        matches!(&words[0], Fed::Entry { name: said, endpoint, .. }
            if *said == name && endpoint.identity == 65_600 && endpoint.tunnel.is_some()),
        "{words:?}"
    );

    let endpoint = crate::endpoint::LocalEndpoint {
        identity: Some(NumericIdentity(65_601)),
        ipv4: Some("10.0.1.7".parse().unwrap()),
        ipv6: None,
        ..crate::endpoint::testing::endpoint(7, "c1", "web")
    };
    endpoints.put_for_test(endpoint);
    let key = keys::ip("10.0.1.7/32".parse().unwrap());
    let said = eventually(|| value(&client, &key)).await;
    let said: IpIdentityPair = decode(&key, &said).unwrap();
    assert_eq!((said.id, said.host_ip.as_str(), said.pod.as_str()), (65_601, "172.18.0.1", "web"));
    client.delete(&keys::ip("10.0.2.5/32".parse().unwrap())).await.unwrap();
    let gone = async {
        while let Some(words) = told.recv().await {
            if words.contains(&Fed::Gone(Arc::clone(&name))) {
                return;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), gone).await.expect("it is told");
    stop.cancel();
    running.await.unwrap();
}

/// An agent that is frozen for longer than its leases live, as another one sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_a_silent_node_stay_until_it_goes() {
    let etcd = Etcd::start().await;
    let (client, frozen) = (etcd.client(), etcd.client());
    let address = |last: u8| IpAddr::from([10, 0, 2, last]);
    let key = |last: u8| keys::ip(address(last).into());
    let put = async |client: &Client, last: u8, host: [u8; 4]| {
        let pair = IpIdentityPair::new(address(last).into(), 65_600, Some(host.into()));
        client.put(&key(last), &cilia_kvstore::value::encode(&pair), true).await.expect("put");
    };
    let own = keys::node("east", "n2");
    frozen.put(&own, b"{}", true).await.expect("put");
    put(&frozen, 1, [172, 18, 0, 2]).await;
    put(&frozen, 2, [172, 18, 0, 2]).await;
    let nodes = Nodes::default();
    nodes.set_local_for_test(local(1));
    let n2 = NodeInfo {
        name: "n2".into(),
        addresses: vec![[172, 18, 0, 2].into()],
        ..NodeInfo::default()
    };
    nodes.applied(n2);
    let kvstore = kvstore(&etcd, "kvstore", 1);
    let (feed, mut told) = mpsc::channel(64);
    let stop = CancellationToken::new();
    let api = cilia_runtime::testing::client_of(([127, 0, 0, 1], 1).into(), "nobody's");
    let identities = Identities::new(api, space(), Management::Agent);
    let running = kvstore.clone().run(
        identities,
        Endpoints::default(),
        nodes.clone(),
        Some(feed),
        stop.clone(),
    );
    let running = tokio::spawn(running);
    kvstore.wait_listed().await;

    let lease = client.get(&own).await.expect("get").expect("a node").lease;
    etcd.revoke(lease).await;
    // Somebody else's address comes and goes after that: what is told of it is told later.
    put(&client, 9, [192, 0, 2, 1]).await;
    client.delete(&key(9)).await.expect("delete");
    let name = |last: u8| -> Arc<str> { format!("kvstore/{}", address(last)).into() };
    // What was told to be gone, until this is told.
    let mut gone_until = async |end: &(dyn Fn(&Fed) -> bool + Sync)| {
        let mut gone = Vec::new();
        loop {
            let words = tokio::time::timeout(LONG, told.recv()).await.expect("it is told");
            for word in words.expect("the ipcache is fed") {
                let ends = end(&word);
                if let Fed::Gone(name) = word {
                    gone.push(name);
                }
                if ends {
                    return gone;
                }
            }
        }
    };
    let is_gone = |last: u8| {
        let name = name(last);
        move |word: &Fed| *word == Fed::Gone(Arc::clone(&name))
    };
    assert_eq!(gone_until(&is_gone(9)).await, [name(9)], "n2 lives: Kubernetes has it");
    // It thaws, and says where one of its pods is; then the node goes.
    put(&client, 1, [172, 18, 0, 2]).await;
    let there = |word: &Fed| matches!(word, Fed::Entry { name: said, .. } if *said == name(1));
    assert_eq!(gone_until(&there).await, [] as [Arc<str>; 0]);
    nodes.deleted("n2");
    assert_eq!(gone_until(&is_gone(2)).await, [name(2)], "what is there stays");
    client.delete(&key(1)).await.expect("delete");
    assert_eq!(gone_until(&is_gone(1)).await, [name(1)]);
    stop.cancel();
    running.await.expect("no panic");
}
