//! Members die, quorums are lost, disks are full, processes freeze: nothing is lost.

use std::time::Duration;

use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::testing::{Etcd, Signal, options};
use cilia_kvstore::{Allocator, Client, Mirror, Settings, Watchdog, keys};
use cilia_runtime::testing::proxy::{Mode, Proxy};
use cilia_runtime::testing::{Process, eventually_for};
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
    watchdog: Watchdog,
    stop: CancellationToken,
}

fn agent(client: &Client) -> Agent {
    let stop = CancellationToken::new();
    let mirror = Mirror::new(client.clone(), "nodes", Duration::from_mins(30), &workqueues());
    let space = Space::new(0, 255).expect("allowed");
    let allocator = Allocator::new(client.clone(), space, "10.0.0.1".into(), &workqueues());
    let watchdog = Watchdog::new(client.clone(), 0);
    let agent = Agent { mirror, allocator, watchdog, stop };
    tokio::spawn({
        let (mirror, stop) = (agent.mirror.clone(), agent.stop.clone());
        async move { mirror.run(stop).await }
    });
    tokio::spawn({
        let (allocator, stop) = (agent.allocator.clone(), agent.stop.clone());
        async move { allocator.run(stop, |_| {}).await }
    });
    tokio::spawn({
        let (watchdog, stop) = (agent.watchdog.clone(), agent.stop.clone());
        async move { watchdog.run(stop).await }
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
async fn members_die_and_a_quorum_is_lost() {
    let mut etcd = members().await;
    let client = etcd.client();
    let agent = agent(&client);
    let node = keys::node("east", "n1");
    agent.mirror.set(node.clone(), b"1".to_vec());
    let first = agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    // The leader first, then whoever leads; every other time one that follows.
    for round in 0..number("CILIA_KILLS", 1) {
        let leader =
            eventually_for(LONG, || async { etcd.leader().await.ok_or("no leader") }).await;
        let member = if round % 2 == 0 { leader } else { (leader + 1) % etcd.size() };
        etcd.kill(member);
        let value = format!("{round}").into_bytes();
        agent.mirror.set(node.clone(), value);
        let wanted = labels(&format!("b{round}"));
        let one = agent.allocator.allocate(&wanted, None, &NoMaker);
        let one = tokio::time::timeout(LONG, one).await.expect("in time").unwrap();
        assert_ne!(one, first);
        agent.mirror.settled().await;
        etcd.run(member);
        eventually_for(LONG, || async { has(&client, &node, &round.to_string()).await }).await;
    }
    // Two at once: no quorum. What is wanted meanwhile is written when it is back.
    etcd.kill(0);
    etcd.kill(1);
    agent.mirror.set(node.clone(), b"later".to_vec());
    let pause = Duration::from_secs(number("CILIA_QUORUM_LOST_SECONDS", 0) as u64);
    let asked = tokio::spawn({
        let allocator = agent.allocator.clone();
        async move { allocator.allocate(&labels("c"), None, &NoMaker).await }
    });
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    etcd.run(0);
    etcd.run(1);
    eventually_for(LONG, || async { has(&client, &node, "later").await }).await;
    let third = asked.await.expect("no panic");
    let third = match third {
        Ok(number) => number,
        // A long loss may exhaust the attempts; the endpoint asks again.
        Err(_) => agent.allocator.allocate(&labels("c"), None, &NoMaker).await.unwrap(),
    };
    assert_eq!(agent.allocator.allocate(&labels("c"), None, &NoMaker).await.unwrap(), third);
    eventually_for(LONG, || async {
        let health = agent.watchdog.health().borrow().clone();
        if health.ok { Ok(()) } else { Err(health) }
    })
    .await;
    let (locks, _) = client.list(&keys::identity_locks()).await.unwrap();
    assert_eq!(locks, [], "no lock is held for ever");
    agent.stop.cancel();
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
async fn a_full_disk_is_waited_out() {
    // 2 MiB are full soon.
    let etcd = Etcd::with(1, false, &["--quota-backend-bytes=2097152"]).await;
    let client = etcd.client();
    let agent = agent(&client);
    let filler = vec![b'x'; 200_000];
    let mut refused = None;
    // The quota counts what is committed, a tenth of a second later.
    for number in 0..500 {
        if let Err(error) = client.put(&format!("filler/{number}"), &filler, false).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert!(refused.is_no_space(), "{refused}");
    let node = keys::node("east", "n1");
    agent.mirror.set(node.clone(), b"1".to_vec());
    let (_, revision) = client.list("filler/").await.unwrap();
    client.delete_prefix("filler/").await.unwrap();
    client.compact(revision + 1).await.unwrap();
    etcd.make_room().await;
    eventually_for(LONG, || async { has(&client, &node, "1").await }).await;
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

/// The client of [`a_process_that_froze_writes_again_what_it_lost`]: a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn a_process_that_owns_a_key() {
    let config = std::env::var("CILIA_ETCD_CONFIG").expect("where etcd is");
    let ttl = Duration::from_secs(2);
    let options = options(std::path::Path::new(&config));
    let settings = Settings { lease_ttl: ttl, lock_ttl: ttl, ..Settings::new(options) };
    let agent = agent(&Client::new(&settings, None).unwrap());
    agent.mirror.set(keys::node("east", "n1"), b"1".to_vec());
    agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_froze_writes_again_what_it_lost() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let config = etcd.config("root");
    let own = std::env::current_exe().expect("this program");
    let arguments = [
        format!("CILIA_ETCD_CONFIG={}", config.display()),
        own.display().to_string(),
        "--exact".into(),
        "faults::a_process_that_owns_a_key".into(),
        "--ignored".into(),
        "--nocapture".into(),
    ];
    let log = etcd.folder().join("client.log");
    let process = Process::start(std::path::Path::new("env"), &arguments, &log);
    let node = keys::node("east", "n1");
    let uses = keys::identity_value(&labels("a").canonical(), "10.0.0.1");
    let number = || async {
        match client.get(&uses).await {
            Ok(Some(kv)) => Ok(String::from_utf8(kv.value).expect("text")),
            other => Err(format!("{other:?}: {}", process.output())),
        }
    };
    let before = eventually_for(LONG, &number).await;
    eventually_for(LONG, || has(&client, &node, "1")).await;
    process.signal(Signal::SIGSTOP);
    eventually_for(LONG, || async {
        match (client.get(&node).await, client.get(&uses).await) {
            (Ok(None), Ok(None)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    process.signal(Signal::SIGCONT);
    eventually_for(LONG, || has(&client, &node, "1")).await;
    assert_eq!(eventually_for(LONG, &number).await, before, "the identity keeps its number");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_is_slow_and_nothing_else() {
    let etcd = Etcd::start().await;
    let direct = etcd.client();
    let proxy = Proxy::to(([127, 0, 0, 1], etcd.port(0)).into()).await;
    let via = options(&etcd.config_via("root", &[proxy.address().port()]));
    let ttl = Duration::from_secs(3);
    let settings = Settings { lease_ttl: ttl, lock_ttl: ttl, ..Settings::new(via) };
    let client = Client::new(&settings, None).unwrap();
    let agent = agent(&client);
    // An answer takes a fifth of a second.
    proxy.set(Mode::Slow(100));
    let lost = client.lost_leases();
    let node = keys::node("east", "n1");
    agent.mirror.set(node.clone(), b"1".to_vec());
    let one = agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    agent.mirror.settled().await;
    let two = agent.allocator.allocate(&labels("a"), None, &NoMaker).await.unwrap();
    assert_eq!(one, two);
    has(&direct, &node, "1").await.unwrap();
    assert!(!lost.has_changed().unwrap(), "leases are kept");
    agent.stop.cancel();
}
