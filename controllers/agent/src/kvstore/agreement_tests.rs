//! Ten agents give label sets their numbers at once, in every mode: one number for each, the same in each store.
//!
//! `CILIA_SETS` says how many sets (5000 in docs/kvstore.md, few by default), `CILIA_SEED` repeats an order. The benchmark
//! (`hack/bench-kvstore`) has each agent ask for a share of its own, and writes to `CILIA_SETS_JSON` how long they took.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Client, keys};
use cilia_runtime::testing::{ApiServer, eventually, eventually_for};
use futures::StreamExt as _;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::Kvstore;
use super::tests::{kvstore, local, space, value};
use crate::endpoint::Endpoints;
use crate::identity::{self, Identities, Management};
use crate::node::Nodes;

const AGENTS: u8 = 10;
/// Pods that an agent starts at once.
const AT_ONCE: usize = 4;
/// The order matters: what one mode leaves in one store only is in the way of the next.
const MODES: [&str; 4] = ["crd", "doublewrite-readcrd", "doublewrite-readkvstore", "kvstore"];
const LONG: Duration = Duration::from_mins(2);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn labels(mode: &str, set: usize) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{set}"));
    labels.insert("k8s", "io.kubernetes.pod.namespace", mode);
    labels
}

/// Identities as the agent of a node has them.
fn identities(server: &ApiServer, name: &str) -> Identities {
    let settings = identity::Settings {
        space: space(),
        management: Management::Agent,
        well_known: Vec::new(),
        timeout: Duration::from_mins(2),
        grace: Duration::ZERO,
    };
    Identities::with_settings(server.client_as(name), settings)
}

/// What an agent runs of identities, in this mode.
fn start(identities: &Identities, kvstore: &Kvstore, stop: &CancellationToken) {
    if let Some(backend) = kvstore.backend() {
        identities.use_backend(backend);
    }
    let (identities, stop) = (identities.clone(), stop.clone());
    tokio::spawn(async move { identities.run(stop).await });
}

/// Every of these sets once, in an order of the agent's own.
async fn ask_for(
    mut order: Vec<usize>,
    identities: Identities,
    mode: &'static str,
    mut rng: StdRng,
) -> Vec<(usize, NumericIdentity)> {
    order.shuffle(&mut rng);
    let ask = |set| {
        let identities = identities.clone();
        async move {
            let labels = labels(mode, set);
            let number = identities.allocate(&labels).await.expect("allocate");
            assert_eq!(identities.number(&labels), Some(number), "it is known from then on");
            // As it is done for every endpoint, in case the other store had no time.
            assert!(identities.claim(&labels, number).await.expect("claim"), "{mode}: {set}");
            (set, number)
        }
    };
    futures::stream::iter(order).map(ask).buffer_unordered(AT_ONCE).collect().await
}

type Stored = BTreeMap<u32, String>;

/// What etcd has, but for other prefixes.
async fn in_etcd(client: &Client) -> Stored {
    let (masters, _) = client.list(&keys::identity_ids()).await.expect("list");
    let master = |kv: &cilia_kvstore::KeyValue| {
        let key = std::str::from_utf8(&kv.key).expect("text");
        let labels = String::from_utf8(kv.value.clone()).expect("text");
        (keys::parse_identity_id(key).expect("a number"), labels)
    };
    masters.iter().map(master).collect()
}

async fn in_kubernetes(server: &ApiServer) -> Stored {
    let api: Api<CiliumIdentity> = Api::all(server.client());
    let objects = api.list(&ListParams::default()).await.expect("list").items;
    let one = |object: &CiliumIdentity| {
        (object.number().expect("a number").0, object.labels().canonical())
    };
    objects.iter().map(one).collect()
}

/// How many times each label set is used, by nodes whose leases live.
async fn uses(client: &Client, mode: &str) -> BTreeMap<String, usize> {
    let (uses, _) = client.list(&format!("{}/value/", keys::IDENTITIES)).await.expect("list");
    let mut counts = BTreeMap::new();
    for kv in uses.iter().filter(|kv| kv.lease != 0) {
        let key = String::from_utf8_lossy(&kv.key);
        let labels = key.strip_prefix(&format!("{}/value/", keys::IDENTITIES)).expect("a use");
        let labels = labels.rsplit_once('/').expect("a node").0;
        if labels.contains(&format!("namespace={mode};")) {
            *counts.entry(labels.to_owned()).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identities_are_the_same_everywhere() {
    let server = crate::endpoint::testing::api_server().await;
    ten_agents_agree_in_every_mode(&server, sets(16), Asked::ByAll).await;
    former_endpoints_are_claimed_in_every_mode(&server).await;
    Box::pin(an_etcd_that_is_away_costs_no_identity(&server)).await;
}

/// How long the benchmark's sets take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
async fn ten_agents_share_the_sets() {
    let server = crate::endpoint::testing::api_server().await;
    let sets = sets(5000);
    let seconds = ten_agents_agree_in_every_mode(&server, sets, Asked::ByOne).await;
    if let Some(file) = std::env::var_os("CILIA_SETS_JSON") {
        let figures = serde_json::json!({ "sets": sets, "agents": AGENTS, "seconds": seconds });
        std::fs::write(file, figures.to_string()).expect("write a file");
    }
}

fn sets(default: usize) -> usize {
    number("CILIA_SETS").and_then(|sets| usize::try_from(sets).ok()).unwrap_or(default)
}

/// Who asks for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Every agent.
    ByAll,
    /// One of them.
    ByOne,
}

/// How many seconds each mode took.
async fn ten_agents_agree_in_every_mode(
    server: &ApiServer,
    sets: usize,
    asked: Asked,
) -> BTreeMap<&'static str, f64> {
    let seed = number("CILIA_SEED").unwrap_or_else(rand::random);
    println!("CILIA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let (mut etcd_has, mut kubernetes_has) = (Stored::new(), Stored::new());
    let mut seconds = BTreeMap::new();
    for mode in MODES {
        let stop = CancellationToken::new();
        let (began, mut answers) = (Instant::now(), Vec::new());
        for node in 1..=AGENTS {
            let identities = identities(server, &format!("agent-{node}"));
            start(&identities, &kvstore(&etcd, mode, node), &stop);
            let rng = StdRng::seed_from_u64(rng.random());
            let (first, every) = match asked {
                Asked::ByAll => (0, 1),
                Asked::ByOne => (usize::from(node - 1), usize::from(AGENTS)),
            };
            let order = (first..sets).step_by(every).collect();
            answers.push(tokio::spawn(ask_for(order, identities, mode, rng)));
        }
        let mut numbers: BTreeMap<usize, BTreeSet<NumericIdentity>> = BTreeMap::new();
        for answer in answers {
            for (set, number) in answer.await.expect("no panic") {
                numbers.entry(set).or_default().insert(number);
            }
        }
        let took = began.elapsed().as_secs_f64();
        println!("{mode}: {sets} sets by {AGENTS} agents in {took:.1} s");
        seconds.insert(mode, took);
        for (set, numbers) in &numbers {
            assert_eq!(numbers.len(), 1, "{mode}: one number for set {set}: {numbers:?}");
        }
        let one = |(set, numbers): (&usize, &BTreeSet<NumericIdentity>)| {
            (numbers.first().expect("one").0, labels(mode, *set).canonical())
        };
        let given: Stored = numbers.iter().map(one).collect();
        assert_eq!(given.len(), sets, "{mode}: one set for each number");
        if mode != "crd" {
            etcd_has.extend(given.clone());
            let used = uses(&client, mode).await;
            let users = if asked == Asked::ByAll { usize::from(AGENTS) } else { 1 };
            let all = given.values().map(|labels| (labels.clone(), users));
            assert_eq!(used, all.collect(), "{mode}: who asked uses it, on a lease");
            let (locks, _) = client.list(&keys::identity_locks()).await.expect("list");
            assert_eq!(locks, [], "{mode}: every lock was given back");
        }
        if mode != "kvstore" {
            kubernetes_has.extend(given);
        }
        // Nothing else, either.
        assert!(in_etcd(&client).await == etcd_has, "{mode}: etcd has others");
        assert!(in_kubernetes(server).await == kubernetes_has, "{mode}: Kubernetes has others");
        stop.cancel();
    }
    seconds
}

/// An endpoint of a former agent keeps its identity, which goes into whichever store lacks it.
async fn former_endpoints_are_claimed_in_every_mode(server: &ApiServer) {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let labels = labels("default", 1);
    let first = identities(server, "former");
    let stop = CancellationToken::new();
    start(&first, &kvstore(&etcd, "crd", 1), &stop);
    let number = first.allocate(&labels).await.expect("allocate");
    stop.cancel();
    let endpoint = crate::endpoint::LocalEndpoint {
        identity: Some(number),
        labels: labels.clone(),
        ..crate::endpoint::testing::endpoint(7, "c1", "web")
    };
    let endpoints = Endpoints::default();
    endpoints.put_for_test(endpoint);
    let use_key = keys::identity_value(&labels.canonical(), "172.18.0.1");
    let api: Api<CiliumIdentity> = Api::all(server.client());
    let object = || async {
        let there = api.get_opt(&number.to_string()).await.map_err(|error| error.to_string())?;
        there.filter(|there| there.labels() == labels).ok_or_else(|| "no object".to_owned())
    };
    for mode in ["doublewrite-readcrd", "kvstore", "doublewrite-readkvstore"] {
        // The former agent is gone, and its lease with it.
        let lease = client.get(&use_key).await.expect("get").map_or(0, |kv| kv.lease);
        if lease != 0 {
            etcd.revoke(lease).await;
        }
        if mode == "doublewrite-readkvstore" {
            // As nobody uses it in Kubernetes, in mode kvstore.
            api.delete(&number.to_string(), &DeleteParams::default()).await.expect("delete");
        }
        let stop = CancellationToken::new();
        let (nodes, kvstore) = (Nodes::default(), kvstore(&etcd, mode, 1));
        nodes.set_local_for_test(local(1));
        let identities = identities(server, mode);
        start(&identities, &kvstore, &stop);
        let (identities, endpoints) = (identities.clone(), endpoints.clone());
        let running = kvstore.run(identities, endpoints, nodes, None, stop.clone());
        let running = tokio::spawn(running);
        let used = eventually_for(LONG, || value(&client, &use_key)).await;
        assert_eq!(used, number.to_string().into_bytes(), "{mode}");
        let master = value(&client, &keys::identity_id(number.0)).await;
        assert_eq!(master, Ok(labels.canonical().into_bytes()), "{mode}");
        if mode != "kvstore" {
            eventually(object).await;
        }
        stop.cancel();
        running.await.expect("no panic");
    }
}

/// In mode `doublewrite-readcrd` the kvstore is a mirror: without it pods start all the same.
async fn an_etcd_that_is_away_costs_no_identity(server: &ApiServer) {
    let mut etcd = Etcd::start().await;
    let mode = "doublewrite-readcrd";
    let stop = CancellationToken::new();
    let kvstore = kvstore(&etcd, mode, 1);
    let (here, there) = (identities(server, "one"), identities(server, "two"));
    start(&here, &kvstore, &stop);
    start(&there, &self::kvstore(&etcd, mode, 2), &stop);
    etcd.kill(0);
    let labels = labels("default", 2);
    let both = tokio::join!(here.allocate(&labels), there.allocate(&labels));
    let number = both.0.expect("allocate");
    assert_eq!(both.1.expect("allocate"), number, "two nodes agree, too");
    let nodes = Nodes::default();
    nodes.set_local_for_test(local(1));
    let endpoints = Endpoints::default();
    endpoints.put_for_test(crate::endpoint::LocalEndpoint {
        identity: Some(number),
        labels: labels.clone(),
        ..crate::endpoint::testing::endpoint(7, "c1", "web")
    });
    let running = tokio::spawn(kvstore.run(here, endpoints, nodes, None, stop.clone()));
    etcd.run(0);
    let client = etcd.client();
    let master = keys::identity_id(number.0);
    let written = eventually_for(LONG, || value(&client, &master)).await;
    assert_eq!(written, labels.canonical().into_bytes(), "it is made up for");
    stop.cancel();
    running.await.expect("no panic");
}
