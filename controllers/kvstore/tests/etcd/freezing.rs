//! A process is frozen (SIGSTOP) for longer than its leases live, while others go on: it gets back what is
//! its own still, under the same numbers, and takes nothing from anybody.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::gc::{self, Unused};
use cilia_kvstore::testing::{Etcd, Signal, options};
use cilia_kvstore::{Allocator, Client, KeyValue, Mirror, Settings, Swap, is_stand_in, keys};
use cilia_runtime::lanes::Rate;
use cilia_runtime::testing::{Process, eventually_for};
use tokio_util::sync::CancellationToken;

use crate::workqueues;

const LONG: Duration = Duration::from_mins(1);
/// What the process that freezes locks.
pub(crate) const LOCK: &str = "cilium/state/identities/v1/locks/k8s:app=locked;";
/// An address that somebody else has taken by the time that the process goes on.
const MOVED: &str = "cilium/state/ip/v1/default/10.0.0.3";

fn labels(app: &str) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", app);
    labels
}

/// What an agent runs.
pub(crate) struct Agent {
    client: Client,
    pub(crate) mirror: Mirror,
    allocator: Allocator,
}

impl Agent {
    pub(crate) fn start(client: &Client, address: &str) -> Self {
        let stop = CancellationToken::new();
        let space = Space::new(0, 255).expect("allowed");
        let mirror = Mirror::new(client.clone(), "own", Duration::from_mins(5), &workqueues());
        let allocator = Allocator::new(client.clone(), space, address.into(), &workqueues());
        tokio::spawn({
            let (mirror, allocator, client) = (mirror.clone(), allocator.clone(), client.clone());
            async move {
                tokio::join!(
                    mirror.run(stop.clone()),
                    allocator.run(stop.clone(), |_| {}),
                    mirror.repair(client.watch(keys::NODES)),
                    mirror.repair(client.watch(keys::IPS)),
                )
            }
        });
        Self { client: client.clone(), mirror, allocator }
    }

    pub(crate) async fn allocate(
        &self,
        app: &str,
        former: Option<NumericIdentity>,
    ) -> NumericIdentity {
        self.allocator.allocate(&labels(app), former, &NoMaker).await.expect("allocate")
    }
}

/// The key of an address.
pub(crate) fn ip(host: u8) -> String {
    keys::ip(std::net::IpAddr::from([10, 0, 0, host]).into())
}

/// The process of [`a_process_that_froze_gets_back_what_is_its_own_still`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn a_process_that_freezes() {
    let config = std::env::var("CILIA_ETCD_CONFIG").expect("where etcd is");
    let ttl = Duration::from_secs(2);
    let options = options(Path::new(&config));
    let settings = Settings { lease_ttl: ttl, lock_ttl: ttl, ..Settings::new(options) };
    let agent = Agent::start(&Client::new(&settings, None).expect("a client"), "10.0.0.1");
    let _lock = agent.client.lock(LOCK).await.expect("lock");
    agent.allocate("shared", None).await;
    agent.allocate("alone", None).await;
    agent.allocate("lost", None).await;
    agent.mirror.set(MOVED.to_owned(), b"n1".to_vec());
    agent.mirror.set(ip(1), b"n1".to_vec());
    // The last: all else is there by then.
    agent.mirror.settled().await;
    agent.mirror.set(keys::node("east", "n1"), b"n1".to_vec());
    std::future::pending::<()>().await;
}

fn start(etcd: &Etcd) -> Process {
    let own = std::env::current_exe().expect("this program");
    let arguments = [
        format!("CILIA_ETCD_CONFIG={}", etcd.config("root").display()),
        own.display().to_string(),
        "--exact".into(),
        "freezing::a_process_that_freezes".into(),
        "--ignored".into(),
        "--nocapture".into(),
    ];
    Process::start(Path::new("env"), &arguments, &etcd.folder().join("client.log"))
}

/// The key, if there is one.
pub(crate) async fn get(client: &Client, key: &str) -> Option<KeyValue> {
    client.get(key).await.expect("etcd answers")
}

/// Waits until the key has this value.
async fn becomes(client: &Client, process: &Process, key: &str, value: &str) {
    eventually_for(LONG, || async {
        match get(client, key).await {
            Some(kv) if kv.value == value.as_bytes() => Ok(()),
            other => Err(format!("{key}: {other:?}: {}", process.output())),
        }
    })
    .await;
}

/// Runs the collector until it has deleted a number.
async fn collect(client: &Client) -> Vec<u32> {
    let (space, rate) = (Space::new(0, 255).expect("allowed"), Rate::new(1000.0, 1000.0));
    let mut unused = Unused::new();
    loop {
        let report = gc::identities(client, space, &unused, &rate).await.expect("collect");
        if !report.deleted.is_empty() {
            return report.deleted;
        }
        unused = report.unused;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_froze_gets_back_what_is_its_own_still() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let process = start(&etcd);
    let node = keys::node("east", "n1");
    becomes(&client, &process, &node, "n1").await;
    let other = Agent::start(&etcd.client(), "10.0.0.2");
    let shared = other.allocate("shared", None).await;
    other.mirror.set(keys::node("east", "n2"), b"n2".to_vec());
    other.mirror.set(ip(2), b"n2".to_vec());
    other.mirror.settled().await;
    let use_of = |app: &str, host: u8| {
        keys::identity_value(&labels(app).canonical(), &format!("10.0.0.{host}"))
    };
    let number = |kv: Option<KeyValue>| {
        let text = String::from_utf8(kv.expect("a use").value).expect("text");
        NumericIdentity(text.parse().expect("a number"))
    };
    let alone = number(get(&client, &use_of("alone", 1)).await);
    let lost = number(get(&client, &use_of("lost", 1)).await);
    assert_eq!(number(get(&client, &use_of("shared", 1)).await), shared);

    process.signal(Signal::SIGSTOP);
    let own = [node.clone(), ip(1), MOVED.to_owned(), use_of("alone", 1), use_of("shared", 1)];
    for key in &own {
        eventually_for(LONG, || async { get(&client, key).await.map_or(Ok(()), Err) }).await;
    }
    let lock = client.lock(LOCK).await.expect("its lock is not held for ever");
    lock.unlock().await.expect("unlock");
    // Its identities that nobody else uses are collected; one number goes to others meanwhile.
    let collected: BTreeSet<u32> = collect(&client).await.into_iter().collect();
    assert_eq!(collected, [alone.0, lost.0].into(), "{shared} is in use");
    assert_eq!(other.allocate("heir", Some(lost)).await, lost);
    other.mirror.set(MOVED.to_owned(), b"n2".to_vec());
    other.mirror.settled().await;
    let (others, _) = client.list("cilium/state/").await.expect("list");

    // An operator stands in for it, with what it said once.
    let lease = client.keep_stand_ins(1).await.expect("a lease");
    let stand_in = |key: String| Swap { key, since: 0, value: Some(b"former".to_vec()) };
    let swaps = [node.clone(), ip(1)].map(stand_in).to_vec();
    assert_eq!(client.swap(lease, swaps).await.expect("stand in"), 0);

    process.signal(Signal::SIGCONT);
    becomes(&client, &process, &node, "n1").await;
    becomes(&client, &process, &ip(1), "n1").await;
    for key in [&node, &ip(1)] {
        assert!(!is_stand_in(get(&client, key).await.expect("its key").lease));
    }
    let master = keys::identity_id(alone.0);
    becomes(&client, &process, &master, &labels("alone").canonical()).await;
    for (app, number) in [("shared", shared), ("alone", alone)] {
        becomes(&client, &process, &use_of(app, 1), &number.to_string()).await;
    }
    // Not one entry of others was touched.
    let mut now = BTreeSet::new();
    for kv in &others {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        assert_eq!(get(&client, &key).await.as_ref(), Some(kv), "{key}: {}", process.output());
        now.insert(key);
    }
    assert!(now.contains(MOVED) && now.contains(&keys::identity_id(lost.0)));
    let (locks, _) = client.list(&keys::identity_locks()).await.expect("list");
    assert_eq!(locks, [], "nor does it hold a lock again");
    // What its new owner gives up is the process's again, which wants it still.
    other.mirror.remove(MOVED);
    becomes(&client, &process, MOVED, "n1").await;
}
