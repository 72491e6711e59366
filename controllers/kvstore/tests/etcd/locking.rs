//! Locks are given back whole, however they end.

use std::time::Duration;

use cilia_kvstore::testing::{Etcd, options};
use cilia_kvstore::{Client, Settings};
use cilia_runtime::testing::eventually_for;
use cilia_runtime::testing::proxy::{Mode, Proxy};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_leaves_nothing_behind() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    // More than a lease takes, in turns.
    for turn in 0..12 {
        let mut locks = JoinSet::new();
        for number in 0..100 {
            let client = client.clone();
            locks.spawn(async move {
                let lock = client.lock(&format!("locks/{turn}-{number}")).await.expect("a lock");
                lock.unlock().await.expect("it is given back");
            });
        }
        locks.join_all().await;
    }
    assert_eq!(client.lease_counts(), (0, 1), "places on the lease are used again");
    assert_eq!(client.list("locks/").await.unwrap().0, []);

    // One whose answer never comes is there, and yet nobody's.
    let proxy = Proxy::to(([127, 0, 0, 1], etcd.port(0)).into()).await;
    let via = options(&etcd.config_via("root", &[proxy.address().port()]));
    let far = Client::new(&Settings::new(via), None).unwrap();
    far.lock("locks/warm").await.unwrap().unlock().await.unwrap();
    proxy.set(Mode::Slow(200));
    let asked = tokio::spawn({
        let far = far.clone();
        async move { far.lock("locks/lost").await.map(drop) }
    });
    eventually_for(LONG, || async {
        let there = client.list("locks/lost/").await.map_err(|error| error.to_string())?.0.len();
        if there == 1 { Ok(()) } else { Err(format!("{there} keys")) }
    })
    .await;
    asked.abort();
    eventually_for(LONG, || async {
        let there = client.list("locks/").await.map_err(|error| error.to_string())?.0;
        if there.is_empty() { Ok(()) } else { Err(format!("{there:?}")) }
    })
    .await;
    client.lock_within("locks/lost", LONG).await.unwrap().unlock().await.unwrap();
}
