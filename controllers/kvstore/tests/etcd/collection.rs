//! What nobody needs goes, and only that.

use cilia_identity::Space;
use cilia_kvstore::gc::{self, Locks, Unused};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Error, keys};
use cilia_runtime::lanes::Rate;
use std::time::Duration;

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
