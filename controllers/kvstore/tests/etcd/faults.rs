//! Etcd goes back to a copy, links die, members freeze: nothing is lost. More in `cluster_faults`.

use std::time::Duration;

use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::testing::{Etcd, Signal, options};
use cilia_kvstore::{Allocator, Client, Mirror, Settings, keys};
use cilia_runtime::testing::eventually_for;
use cilia_runtime::testing::proxy::{Mode, Proxy};
use tokio_util::sync::CancellationToken;

use crate::{number, workqueues};

const LONG: Duration = Duration::from_mins(1);

fn labels(app: &str) -> cilia_crds::Labels {
    let mut labels = cilia_crds::Labels::new();
    labels.insert("k8s", "app", app);
    labels
}

struct Agent {
    mirror: Mirror,
    allocator: Allocator,
    stop: CancellationToken,
}

fn agent(client: &Client) -> Agent {
    let stop = CancellationToken::new();
    let mirror = Mirror::new(client.clone(), "nodes", Duration::from_mins(30), &workqueues());
    let space = Space::new(0, 255).expect("allowed");
    let allocator = Allocator::new(client.clone(), space, "10.0.0.1".into(), &workqueues());
    let agent = Agent { mirror, allocator, stop };
    tokio::spawn({
        let (mirror, stop) = (agent.mirror.clone(), agent.stop.clone());
        async move { mirror.run(stop).await }
    });
    tokio::spawn({
        let (allocator, stop) = (agent.allocator.clone(), agent.stop.clone());
        async move { allocator.run(stop, |_| {}).await }
    });
    tokio::spawn({
        let (mirror, watch) = (agent.mirror.clone(), client.watch(keys::NODES));
        async move { mirror.repair(watch).await }
    });
    agent
}

/// Three members, with TLS and users.
async fn members() -> Etcd {
    let etcd = Etcd::with(3, true, &[]).await;
    etcd.enable_users().await;
    etcd
}

async fn has(client: &Client, key: &str, value: &str) -> Result<(), String> {
    match client.get(key).await {
        Ok(Some(kv)) if kv.value == value.as_bytes() => Ok(()),
        other => Err(format!("{key}: {other:?}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_went_back_to_a_copy_gets_what_it_lost() {
    let mut etcd = members().await;
    let client = etcd.client();
    let agent = agent(&client);
    let node = keys::node("east", "n1");
    agent.mirror.set(node.clone(), b"1".to_vec());
    agent.mirror.set(keys::node("east", "gone"), b"1".to_vec());
    agent.mirror.settled().await;
    let (before, _) = client.list(keys::NODES).await.unwrap();
    etcd.save().await;
    agent.mirror.remove(&keys::node("east", "gone"));
    for value in 2..10 {
        agent.mirror.set(node.clone(), value.to_string().into_bytes());
        agent.mirror.settled().await;
    }
    let number = agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    agent.mirror.settled().await;
    etcd.restore().await;
    eventually_for(LONG, || has(&client, &node, "9")).await;
    let master = keys::identity_id(number.0);
    let text = labels("a").canonical();
    eventually_for(LONG, || has(&client, &master, &text)).await;
    let uses = keys::identity_value(&labels("a").canonical(), "10.0.0.1");
    let number = number.to_string();
    eventually_for(LONG, || has(&client, &uses, &number)).await;
    // What was given up meanwhile is not kept alive: it is not on the lease of what is used.
    let after = client.get(&node).await.unwrap().expect("there");
    assert_ne!(after.lease, before[0].lease);
    assert!(client.owns(&node, after.lease));
    agent.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_expired_behind_a_dead_link_is_replaced() {
    // The link is stalled for longer than the lease lives: to etcd this is an agent that froze.
    let etcd = Etcd::start().await;
    let direct = etcd.client();
    let proxy = Proxy::to(([127, 0, 0, 1], etcd.port(0)).into()).await;
    let via = options(&etcd.config_via("root", &[proxy.address().port()]));
    let ttl = Duration::from_secs(2);
    let settings = Settings { lease_ttl: ttl, lock_ttl: ttl, ..Settings::new(via) };
    let client = Client::new(&settings, None).unwrap();
    let agent = agent(&client);
    let node = keys::node("east", "n1");
    agent.mirror.set(node.clone(), b"1".to_vec());
    let number = agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    agent.mirror.settled().await;
    let lock = client.lock("cilium/test/lock").await.unwrap();
    proxy.set(Mode::Stall);
    eventually_for(LONG, || async {
        match direct.get(&node).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    proxy.set(Mode::Cut);
    proxy.set(Mode::Pass);
    eventually_for(LONG, || async { has(&direct, &node, "1").await }).await;
    let uses = keys::identity_value(&labels("a").canonical(), "10.0.0.1");
    eventually_for(LONG, || async { has(&direct, &uses, &number.to_string()).await }).await;
    assert!(lock.check().await.is_err(), "a lock does not outlive its lease");
    agent.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_member_is_passed_over() {
    let etcd = members().await;
    let client = etcd.client();
    // It takes eight seconds to pass over the one that was asked so far: all three where there is time.
    for member in 0..number("CILIA_KILLS", 1).min(3) {
        etcd.signal(member, Signal::SIGSTOP);
        let put = tokio::time::timeout(LONG, client.put("a", b"1", true)).await;
        put.expect("in time").unwrap();
        etcd.signal(member, Signal::SIGCONT);
    }
}
