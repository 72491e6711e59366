//! One number for each label set, however many agents ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Allocator, Client, keys};
use cilia_runtime::testing::{eventually, eventually_for};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{number, workqueues};

const AGENTS: usize = 10;

fn labels(app: usize) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{app}"));
    labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
    labels
}

/// An agent with a client of its own.
fn agent(client: Client, number: usize, stop: &CancellationToken) -> Allocator {
    let space = Space::new(0, 255).expect("allowed");
    let allocator = Allocator::new(client, space, format!("10.0.0.{number}"), &workqueues());
    tokio::spawn({
        let (allocator, stop) = (allocator.clone(), stop.clone());
        async move { allocator.run(stop, |_| {}).await }
    });
    allocator
}

/// Number by labels as the store has them; each number once, each label set once.
async fn masters(client: &Client) -> BTreeMap<String, u32> {
    let (listed, _) = client.list(&keys::identity_ids()).await.expect("list masters");
    let mut masters = BTreeMap::new();
    for kv in listed {
        let key = String::from_utf8(kv.key).expect("text");
        let number = keys::parse_identity_id(&key).expect("a number");
        let labels = String::from_utf8(kv.value).expect("text");
        assert_eq!(masters.insert(labels.clone(), number), None, "{labels} has two numbers");
    }
    masters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_agents_agree() {
    let sets = number("CILIA_KVSTORE_SETS", 60);
    let etcd = Etcd::start().await;
    let (client, stop) = (etcd.client(), CancellationToken::new());
    let agents: Vec<Allocator> =
        (0..AGENTS).map(|number| agent(etcd.client(), number, &stop)).collect();
    let mut tasks = JoinSet::new();
    for (number, agent) in agents.iter().enumerate() {
        let agent = agent.clone();
        tasks.spawn(async move {
            let mut got = Vec::new();
            // Each begins elsewhere: they race for some, and find others.
            for set in 0..sets {
                let set = (set + number % 3) % sets;
                let identity = agent.allocate(&labels(set), None, &NoMaker).await;
                got.push((set, identity.expect("allocate")));
            }
            got
        });
    }
    let mut all: BTreeMap<usize, BTreeSet<NumericIdentity>> = BTreeMap::new();
    for (set, identity) in tasks.join_all().await.into_iter().flatten() {
        all.entry(set).or_default().insert(identity);
    }
    assert!(all.values().all(|numbers| numbers.len() == 1), "{all:?}");
    let masters = masters(&client).await;
    assert_eq!(masters.len(), sets);
    for (set, numbers) in &all {
        let master = NumericIdentity(masters[&labels(*set).canonical()]);
        assert!(numbers.contains(&master), "{set}: {master} is not {numbers:?}");
    }
    let (uses, _) = client.list(&format!("{}/value/", keys::IDENTITIES)).await.unwrap();
    assert_eq!(uses.len(), sets * AGENTS, "each agent uses each");
    assert!(uses.iter().all(|kv| kv.lease != 0), "on leases");
    let (locks, _) = client.list(&keys::identity_locks()).await.unwrap();
    assert_eq!(locks, [], "every lock was given back");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_comes_back_under_its_number() {
    let mut etcd = Etcd::start().await;
    let (client, stop) = (etcd.client(), CancellationToken::new());
    let first = agent(etcd.client(), 1, &stop);
    let second = agent(etcd.client(), 2, &stop);
    let web = first.allocate(&labels(0), None, &NoMaker).await.unwrap();
    assert_eq!(second.allocate(&labels(0), None, &NoMaker).await.unwrap(), web);
    let id = keys::identity_id(web.0);

    // The master alone, by hand.
    client.delete(&id).await.unwrap();
    let text = labels(0).canonical();
    let there = || async {
        match client.get(&id).await {
            Ok(Some(kv)) if kv.value == text.as_bytes() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(there).await;

    // The whole prefix; a third agent that never had it asks for the same labels meanwhile.
    client.delete_prefix(keys::IDENTITIES).await.unwrap();
    let third = agent(etcd.client(), 3, &stop);
    eventually(there).await;
    assert_eq!(third.allocate(&labels(0), None, &NoMaker).await.unwrap(), web);

    // All of etcd.
    etcd.wipe(0);
    etcd.run(0);
    eventually_for(Duration::from_secs(20), || async {
        there().await?;
        let uses = client.list(&keys::identity_values(&text)).await;
        let uses = uses.map_err(|error| error.to_string())?.0.len();
        if uses == 3 { Ok(()) } else { Err(format!("{uses} uses")) }
    })
    .await;

    // What nobody uses any more is given up, and can be used again.
    first.keep(&BTreeSet::new(), Duration::ZERO);
    first.settled().await;
    eventually(|| async {
        let uses = client.list(&keys::identity_values(&text)).await.unwrap().0.len();
        if uses == 2 { Ok(()) } else { Err(format!("{uses} uses")) }
    })
    .await;
    assert_eq!(first.allocate(&labels(0), None, &NoMaker).await.unwrap(), web);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_use_without_a_master_counts() {
    let etcd = Etcd::start().await;
    let (client, stop) = (etcd.client(), CancellationToken::new());
    let text = labels(0).canonical();
    client.put(&keys::identity_value(&text, "10.0.0.9"), b"4711", false).await.unwrap();
    // Labels that begin alike, with a slash: another set.
    let longer = format!("{text}/k8s:x=y;");
    client.put(&keys::identity_value(&longer, "10.0.0.9"), b"4712", false).await.unwrap();
    let agent = agent(etcd.client(), 1, &stop);
    let number = agent.allocate(&labels(0), None, &NoMaker).await.unwrap();
    assert_eq!(number, NumericIdentity(4711));
    assert_eq!(masters(&client).await, [(text, 4711)].into());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_in_use_does_not_go_with_the_lease_of_another() {
    let etcd = Etcd::start().await;
    let (client, operator) = (etcd.client(), etcd.client());
    let stop = CancellationToken::new();
    let key = keys::identity_id(4711);
    // As an operator in mode `crd`, or Cilium's clustermesh-apiserver, writes it.
    operator.put(&key, labels(0).canonical().as_bytes(), true).await.unwrap();
    let lease = client.get(&key).await.unwrap().expect("there").lease;
    assert_ne!(lease, 0);
    let agents = [agent(etcd.client(), 1, &stop), agent(etcd.client(), 2, &stop)];
    for agent in &agents {
        let number = agent.allocate(&labels(0), None, &NoMaker).await.unwrap();
        assert_eq!(number, NumericIdentity(4711));
    }
    for agent in &agents {
        agent.settled().await;
    }
    let on = client.get(&key).await.unwrap().expect("there");
    assert_eq!(on.lease, 0);
    etcd.revoke(lease).await;
    assert_eq!(client.get(&key).await.unwrap(), Some(on), "nobody saw it go");
    stop.cancel();
}
