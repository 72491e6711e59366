//! What nobody needs goes, and only that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cilia_crds::{Labels, NumericIdentity};
use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::gc::{self, Locks, Unused};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Allocator, Client, Error, keys};
use cilia_runtime::lanes::Rate;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use crate::{number, workqueues};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_identities_go_in_the_second_run() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let space = Space::new(1, 255).unwrap();
    let rate = Rate::new(1000.0, 1000.0);
    let first = 1 << 16;
    let write = |number: u32, labels: &'static str| {
        let client = client.clone();
        async move { client.put(&keys::identity_id(number), labels.as_bytes(), false).await.unwrap() }
    };
    write(first, "k8s:a=used;").await;
    write(first + 1, "k8s:a=unused;").await;
    write(first + 2, "k8s:a=rewritten;").await;
    write(300, "k8s:a=of another cluster;").await;
    client.put(&keys::identity_value("k8s:a=used;", "10.0.0.1"), b"65536", true).await.unwrap();
    let one = gc::identities(&client, space, &Unused::new(), &rate).await.unwrap();
    assert_eq!((one.alive, one.deleted), (4, vec![]));
    write(first + 2, "k8s:a=rewritten;").await;
    let two = gc::identities(&client, space, &one.unused, &rate).await.unwrap();
    assert_eq!((two.alive, two.deleted), (3, vec![first + 1]));
    // Used between two runs: it stays.
    let key = keys::identity_value("k8s:a=rewritten;", "10.0.0.1");
    client.put(&key, b"65538", true).await.unwrap();
    let three = gc::identities(&client, space, &two.unused, &rate).await.unwrap();
    assert_eq!((three.alive, three.deleted, three.failures), (3, vec![], 0));
    // IDGC-15: it comes into use between the look and the deletion, which waits for its token.
    write(first + 3, "k8s:a=raced;").await;
    let four = gc::identities(&client, space, &three.unused, &rate).await.unwrap();
    assert_eq!((four.alive, four.deleted), (4, vec![]));
    let slow = Rate::new(2.0, 1.0);
    slow.write().await;
    let run = gc::identities(&client, space, &four.unused, &slow);
    let begins = async {
        client.list(&keys::identity_ids()).await.unwrap();
        let key = keys::identity_value("k8s:a=raced;", "10.0.0.1");
        client.put(&key, b"65539", true).await.unwrap();
    };
    let (five, ()) = tokio::join!(run, begins);
    let five = five.unwrap();
    assert_eq!((five.alive, five.deleted, five.failures), (4, vec![], 0));
    assert!(client.get(&keys::identity_id(first + 3)).await.unwrap().is_some());
    // Two numbers for the same labels: only the one that is used stays.
    write(first + 4, "k8s:a=used;").await;
    let six = gc::identities(&client, space, &five.unused, &rate).await.unwrap();
    let seven = gc::identities(&client, space, &six.unused, &rate).await.unwrap();
    assert_eq!((seven.alive, seven.deleted, seven.failures), (4, vec![first + 4], 0));
    assert!(client.get(&keys::identity_id(first)).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaked_lock_is_broken_and_waits_are_bounded() {
    let etcd = Etcd::start().await;
    let (other, client) = (etcd.client(), etcd.client());
    let path = keys::identity_lock("k8s:a=b;");
    let leaked = other.lock(&path).await.unwrap();
    let waited = client.lock_within(&path, Duration::from_millis(300)).await;
    let holder = match waited {
        Err(Error::LockTimeout { holder, .. }) => holder,
        other => panic!("{other:?}"),
    };
    assert_eq!(holder, leaked.key());
    let (broken, locks) = gc::locks(&client, &Locks::new()).await.unwrap();
    assert!(broken.is_empty(), "once is not too long");
    let (broken, _) = gc::locks(&client, &locks).await.unwrap();
    assert_eq!(broken, [holder]);
    let lock = client.lock_within(&path, Duration::from_secs(5)).await.expect("it is free");
    assert!(matches!(leaked.check().await, Err(Error::LockLost(_))), "it is not the leaker's");
    lock.check().await.unwrap();
    lock.unlock().await.unwrap();
}

/// Label sets that agents use and give up all the time.
const SETS: usize = 5;

fn labels(set: usize) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", &format!("app-{set}"));
    labels
}

/// Who uses which set, and its number.
type Used = Arc<Mutex<BTreeMap<usize, (NumericIdentity, BTreeSet<usize>)>>>;

/// An agent whose endpoints come and go.
async fn come_and_go(
    (me, client): (usize, Client),
    used: Used,
    mut rng: StdRng,
    stop: CancellationToken,
) {
    let space = Space::new(0, 255).unwrap();
    let allocator = Allocator::new(client.clone(), space, format!("10.0.0.{me}"), &workqueues());
    tokio::spawn({
        let allocator = allocator.clone();
        async move { allocator.run(stop, |_| {}).await }
    });
    let mut mine: BTreeMap<usize, NumericIdentity> = BTreeMap::new();
    for _ in 0..number("CILIA_STEPS", 25) {
        let set = rng.random_range(0..SETS);
        if mine.remove(&set).is_some() {
            let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
            let (_, by) = used.get_mut(&set).expect("it is used");
            by.remove(&me);
            if by.is_empty() {
                used.remove(&set);
            }
            drop(used);
            allocator.keep(&mine.values().copied().collect(), Duration::ZERO);
        } else {
            let number = allocator.allocate(&labels(set), None, &NoMaker).await.unwrap();
            mine.insert(set, number);
            let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
            let (known, by) = used.entry(set).or_insert_with(|| (number, BTreeSet::new()));
            assert_eq!(*known, number, "set {set} has another number for {by:?}");
            by.insert(me);
        }
        for (set, number) in &mine {
            let master = client.get(&keys::identity_id(number.0)).await.unwrap();
            let there = master.map(|kv| String::from_utf8(kv.value).unwrap());
            assert_eq!(there, Some(labels(*set).canonical()), "{number} is used by {me}");
        }
    }
}

/// The leader has moved while its collector runs: both collect, and one of them remembers nothing now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_collectors_at_once_take_nothing_that_is_used() {
    let seed = std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("CILIA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let etcd = Etcd::start().await;
    let (used, stop) = (Used::default(), CancellationToken::new());
    let collectors: Vec<_> = (0..2)
        .map(|_| {
            let (client, stop) = (etcd.client(), stop.clone());
            let mut rng = StdRng::seed_from_u64(rng.random());
            tokio::spawn(async move {
                let space = Space::new(0, 255).unwrap();
                let rate = Rate::new(1e6, 1e6);
                let (mut unused, mut deleted) = (Unused::new(), 0);
                while !stop.is_cancelled() {
                    let report = gc::identities(&client, space, &unused, &rate).await.unwrap();
                    deleted += report.deleted.len();
                    unused = report.unused;
                    if rng.random_ratio(1, 4) {
                        unused.clear();
                    }
                }
                deleted
            })
        })
        .collect();
    let agents: Vec<_> = (1..=3)
        .map(|me| {
            let rng = StdRng::seed_from_u64(rng.random());
            tokio::spawn(come_and_go((me, etcd.client()), used.clone(), rng, stop.clone()))
        })
        .collect();
    for agent in agents {
        agent.await.expect("nothing that is used was taken");
    }
    stop.cancel();
    let mut deleted = 0;
    for collector in collectors {
        deleted += collector.await.expect("no panic");
    }
    println!("{deleted} numbers were collected");
}
