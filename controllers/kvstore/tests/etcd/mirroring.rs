//! Own keys are as they should be, whatever happens to them or to their lease.

use std::time::Duration;

use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Client, Mirror, Settings, keys};
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use tokio_util::sync::CancellationToken;

use crate::workqueues;

fn mirror(client: &Client, stop: &CancellationToken) -> Mirror {
    let mirror = Mirror::new(client.clone(), "test", Duration::from_mins(5), &workqueues());
    tokio::spawn({
        let (mirror, stop) = (mirror.clone(), stop.clone());
        async move { mirror.run(stop).await }
    });
    tokio::spawn({
        let (mirror, watch, stop) = (mirror.clone(), client.watch("own/"), stop.clone());
        async move { stop.run_until_cancelled(mirror.repair(watch)).await }
    });
    mirror
}

async fn value(client: &Client, key: &str) -> Option<(String, i64)> {
    let kv = client.get(key).await.expect("read a key")?;
    Some((String::from_utf8(kv.value).expect("text"), kv.lease))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_keys_come_back_and_others_are_left_alone() {
    let etcd = Etcd::start().await;
    let other = etcd.client();
    let settings =
        Settings { lease_ttl: Duration::from_secs(3), ..Settings::new(etcd.options("root")) };
    let client = Client::new(&settings, None).unwrap();
    let stop = CancellationToken::new();
    let mirror = mirror(&client, &stop);
    // What a former life of this process left is taken over.
    other.put("own/a", b"1", true).await.unwrap();
    mirror.set("own/a".into(), b"1".to_vec());
    mirror.set("own/b".into(), b"1".to_vec());
    mirror.settled().await;
    let (_, lease) = value(&other, "own/a").await.unwrap();
    assert!(client.owns("own/a", lease), "on a lease of its own");
    assert_eq!(value(&other, "own/b").await.unwrap(), ("1".into(), lease), "on the same");

    // Somebody deletes a key: it comes back.
    other.delete("own/a").await.unwrap();
    eventually(|| async { value(&other, "own/a").await.ok_or("own/a is missing") }).await;

    // The lease is revoked: everything comes back on another.
    etcd.revoke(lease).await;
    eventually(|| async {
        let (a, b) = (value(&other, "own/a").await, value(&other, "own/b").await);
        match (&a, &b) {
            (Some((_, one)), Some((_, two))) if one == two && *one != lease => Ok(()),
            _ => Err(format!("{a:?} {b:?}")),
        }
    })
    .await;
    mirror.settled().await;

    // Another process takes a key over: giving it up does not delete it.
    other.put("own/a", b"theirs", true).await.unwrap();
    eventually(|| async {
        let seen = mirror.keys().contains(&"own/a".to_owned());
        seen.then_some(()).ok_or("not seen")
    })
    .await;
    let mut watch = client.watch("own/");
    // What this watch tells, the mirror's has been told soon.
    watch.next().await.unwrap();
    mirror.remove("own/a");
    mirror.remove("own/b");
    mirror.settled().await;
    eventually(|| async {
        value(&other, "own/b").await.map_or(Ok(()), |kv| Err(format!("{kv:?}")))
    })
    .await;
    assert_eq!(value(&other, "own/a").await.map(|(value, _)| value).as_deref(), Some("theirs"));
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_written_yet_is_counted() {
    let mut etcd = Etcd::start().await;
    let (metrics, stop) = (Metrics::new("cilium"), CancellationToken::new());
    let settings = Settings { cluster: "east".into(), ..Settings::new(etcd.options("admin-east")) };
    let client = Client::new(&settings, Some(&metrics)).unwrap();
    let mirror = mirror(&client, &stop);
    let shown = || async {
        let text = metrics.render();
        let of = |name: &str| {
            let line =
                text.lines().find(|line| line.starts_with(&format!("cilium_kvstore_{name}")));
            line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
        };
        let of_nodes = r#"scope="nodes/v1",source_cluster="east""#;
        let queue = of(&format!("sync_queue_size{{{of_nodes}}}"));
        let errors = of(&format!("sync_errors_total{{{of_nodes}}}"));
        let done = of(&format!(r#"initial_sync_completed{{{of_nodes},action="write"}}"#));
        (queue, errors.parse().unwrap_or(0u64), done)
    };
    etcd.kill(0);
    mirror.set(keys::node("east", "n1"), b"1".to_vec());
    mirror.set(keys::node("east", "n2"), b"1".to_vec());
    eventually(|| async {
        let (queue, errors, done) = shown().await;
        let fits = queue == "2" && errors > 0 && done == "0";
        if fits { Ok(()) } else { Err(metrics.render()) }
    })
    .await;
    etcd.run(0);
    eventually(|| async {
        let (queue, _, done) = shown().await;
        if queue == "0" && done == "1" { Ok(()) } else { Err(metrics.render()) }
    })
    .await;
    // A later write is none of the start.
    mirror.set(keys::node("east", "n3"), b"1".to_vec());
    assert_eq!(shown().await.2, "1");
    stop.cancel();
}
