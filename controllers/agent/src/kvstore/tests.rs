//! An agent's part in the kvstore, on a real etcd.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::Space;
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{IpIdentityPair, Node, decode};
use cilia_kvstore::{Client, keys};
use cilia_runtime::config::{Config as Flags, Flags as AllFlags};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Kvstore, Mode, Settings};
use crate::endpoint::Endpoints;
use crate::identity::{self, Identities, Management};
use crate::ipcache::Fed;
use crate::node::{LocalNode, Nodes};

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

fn local(number: u8) -> LocalNode {
    LocalNode {
        name: format!("n{number}"),
        ipv4: Some([172, 18, 0, number].into()),
        pod_cidrs: vec![format!("10.0.{number}.0/24").parse().unwrap()],
        routers: vec![IpAddr::from([10, 0, number, 1])],
        ..LocalNode::default()
    }
}

fn space() -> Space {
    Space::new(1, 255).expect("allowed")
}

fn kvstore(etcd: &Etcd, mode: &str, number: u8) -> Kvstore {
    let metrics = Metrics::new("test");
    let workqueues = Workqueues::register(&metrics);
    Kvstore::new(&settings(etcd, mode), space(), &local(number), &workqueues, &metrics)
        .expect("a client")
        .expect("a kvstore")
}

async fn value(client: &Client, key: &str) -> Result<Vec<u8>, String> {
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
    for (args, want) in [
        (&["--identity-allocation-mode=kvstore"][..], "kvstore: \"\""),
        (&["--identity-allocation-mode=doublewrite-readcrd"], "kvstore: \"\""),
        (&["--identity-allocation-mode=both"], "identity-allocation-mode"),
        (&["--identity-allocation-mode=kvstore", "--kvstore=etcd"], "etcd.address"),
        (&["--identity-allocation-mode=crd", "--kvstore-lease-ttl=1s"], "25s to 24h"),
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
    let running =
        tokio::spawn(kvstore.clone().run(endpoints.clone(), nodes, Some(feed), stop.clone()));

    let node = keys::node("east", "n1");
    let said = eventually(|| value(&client, &node)).await;
    let said: Node = decode(&node, &said).unwrap();
    assert_eq!((said.name.as_str(), said.cluster_id), ("n1", 1));
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

fn labels(app: usize) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{app}"));
    labels
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_every_mode_agents_agree_on_one_number_and_both_stores_do() {
    const AGENTS: u8 = 4;
    const SETS: usize = 12;
    let (etcd, server) = (Etcd::start().await, crate::endpoint::testing::api_server().await);
    let client = server.client();
    for (round, mode) in
        ["doublewrite-readcrd", "doublewrite-readkvstore", "kvstore"].into_iter().enumerate()
    {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for number in 1..=AGENTS {
            let identities = Identities::with_settings(
                client.clone(),
                identity::Settings {
                    space: space(),
                    management: Management::Agent,
                    well_known: Vec::new(),
                    timeout: std::time::Duration::from_mins(2),
                    grace: std::time::Duration::ZERO,
                },
            );
            identities.use_backend(kvstore(&etcd, mode, number).backend().expect("a backend"));
            tokio::spawn({
                let (identities, stop) = (identities.clone(), stop.clone());
                async move { identities.run(stop).await }
            });
            tasks.spawn(async move {
                let mut got = BTreeSet::new();
                for set in 0..SETS {
                    let set = round * SETS + set;
                    let number = identities.allocate(&labels(set)).await.expect("allocate");
                    assert_eq!(identities.number(&labels(set)), Some(number));
                    got.insert((set, number));
                }
                got
            });
        }
        let all: BTreeSet<(usize, NumericIdentity)> =
            tasks.join_all().await.into_iter().flatten().collect();
        assert_eq!(all.len(), SETS, "{mode}: one number for each set: {all:?}");
        let (stored, _) = etcd.client().list(&keys::identity_ids()).await.unwrap();
        let stored: BTreeSet<(String, String)> = stored
            .into_iter()
            .map(|kv| (String::from_utf8(kv.key).unwrap(), String::from_utf8(kv.value).unwrap()))
            .collect();
        let api: Api<CiliumIdentity> = Api::all(client.clone());
        let objects = api.list(&ListParams::default()).await.unwrap();
        for (set, number) in &all {
            let text = labels(*set).canonical();
            assert!(stored.contains(&(keys::identity_id(number.0), text)), "{mode}: {set}");
            let there = objects.items.iter().filter(|object| object.labels() == labels(*set));
            let there: Vec<_> = there.filter_map(CiliumIdentity::number).collect();
            let want = if mode == "kvstore" { vec![] } else { vec![*number] };
            assert_eq!(there, want, "{mode}: {set}");
        }
        stop.cancel();
    }
}
