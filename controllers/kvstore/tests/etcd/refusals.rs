//! What etcd refuses is told, and over as soon as it does so no more.

use std::path::PathBuf;
use std::time::Duration;

use cilia_kvstore::testing::{Etcd, admin, options};
use cilia_kvstore::{Client, Event, Mirror, Options, Settings, Watch, keys};
use cilia_runtime::testing::eventually;
use tokio_util::sync::CancellationToken;

use crate::workqueues;

const LONG: Duration = Duration::from_mins(1);

/// The configuration of a user with a password.
fn config(etcd: &Etcd, user: &str) -> PathBuf {
    let path = etcd.folder().join(format!("{user}.password"));
    let endpoints = format!("endpoints: ['http://localhost:{}']", etcd.port(0));
    let text = format!("{endpoints}\nusername: {user}\npassword: {user}-secret\n");
    std::fs::write(&path, text).expect("write a configuration");
    path
}

/// A client of that user.
fn user(etcd: &Etcd, name: &str) -> Client {
    Client::new(&Settings::new(options(&config(etcd, name))), None).expect("a client")
}

/// Users with passwords, of which one may only read nodes.
async fn ask_for_passwords(etcd: &Etcd) {
    let users = [
        ("root", "root-secret", None),
        ("idle", "idle-secret", None),
        ("narrow", "narrow-secret", Some(keys::NODES)),
    ];
    admin::enable_passwords(&etcd.client(), &users).await;
}

async fn with_passwords() -> Etcd {
    let etcd = Etcd::start().await;
    ask_for_passwords(&etcd).await;
    etcd
}

/// Reads on until there is a key of this name.
async fn told(watch: &mut Watch, key: &str) {
    let found = async {
        while let Some(events) = watch.next().await {
            let is = |event: &Event| matches!(event, Event::Put(kv) if kv.key == key.as_bytes());
            if events.iter().any(is) {
                return;
            }
        }
        panic!("the watch has ended");
    };
    tokio::time::timeout(LONG, found).await.unwrap_or_else(|_| panic!("{key} was not told"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_nothing_outlives_its_token() {
    let mut etcd = with_passwords().await;
    let (root, idle) = (user(&etcd, "root"), user(&etcd, "idle"));
    let mut watch = idle.watch("w/");
    let first = tokio::time::timeout(LONG, watch.next()).await.expect("a list");
    assert!(first.is_some_and(|events| events.contains(&Event::Listed)));
    // Nobody else asks for a new one by way of this client.
    admin::end_tokens(&root, "idle", "idle-secret").await;
    etcd.kill(0);
    etcd.run(0);
    eventually(|| async { root.put("w/a", b"1", false).await }).await;
    told(&mut watch, "w/a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_may_be_asked_for_later() {
    let etcd = Etcd::start().await;
    // The configuration names a user before etcd knows any.
    let (root, stranger) = (user(&etcd, "root"), etcd.client());
    root.put("w/a", b"1", true).await.unwrap();
    let mut watch = root.watch("w/");
    told(&mut watch, "w/a").await;
    ask_for_passwords(&etcd).await;
    root.put("w/b", b"1", true).await.unwrap();
    told(&mut watch, "w/b").await;
    let error = stranger.get("w/a").await.expect_err("nobody").to_string();
    let want = "it asks for a user: set cert-file and key-file, or username and password";
    assert!(error.contains(want), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_begins_to_count() {
    let etcd = with_passwords().await;
    let (root, narrow) = (user(&etcd, "root"), user(&etcd, "narrow"));
    let node = keys::node("east", "n1");
    root.put(&node, b"{}", false).await.unwrap();
    assert!(narrow.get(&node).await.unwrap().is_some());
    let address = keys::ips();
    for (refused, want) in [
        (narrow.get("cilium/a").await.map(drop), "get cilium/a: etcdserver: permission denied: its user needs a role with this right: etcdctl role grant-permission ROLE read 'cilium/a'".to_owned()),
        (narrow.list(&address).await.map(drop), format!("list {address}: etcdserver: permission denied: its user needs a role with this right: etcdctl role grant-permission ROLE --prefix read '{address}'")),
        (narrow.put(&node, b"", false).await.map(drop), format!("ROLE readwrite '{node}'")),
        (narrow.lock(keys::INIT_LOCK).await.map(drop), format!("ROLE readwrite '{}", keys::INIT_LOCK)),
    ] {
        let error = refused.expect_err("not allowed").to_string();
        assert!(error.contains(&want), "{error} lacks {want}");
    }
    let mut watch = narrow.watch(&address);
    let ip = keys::ip("10.0.0.1/32".parse().unwrap());
    root.put(&ip, b"{}", false).await.unwrap();
    admin::may_read(&root, "narrow", &address).await;
    told(&mut watch, &ip).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_too_large_keeps_nobody_else_waiting() {
    let etcd = Etcd::start().await;
    let (client, stop) = (etcd.client(), CancellationToken::new());
    let large = vec![b'x'; 2_000_000];
    let error = client.put("own/large", &large, true).await.expect_err("too large").to_string();
    assert!(error.starts_with("update own/large: ") && error.contains("too large"), "{error}");
    let mirror = Mirror::new(client.clone(), "test", Duration::from_mins(5), &workqueues());
    tokio::spawn({
        let (mirror, stop) = (mirror.clone(), stop.clone());
        async move { mirror.run(stop).await }
    });
    mirror.set("own/large".into(), large);
    for number in 0..40 {
        mirror.set(format!("own/{number}"), b"1".to_vec());
    }
    let written = || async {
        let (there, _) = client.list("own/").await.map_err(|error| error.to_string())?;
        if there.len() == 40 { Ok(()) } else { Err(format!("{} keys", there.len())) }
    };
    eventually(written).await;
    mirror.set("own/large".into(), b"small".to_vec());
    tokio::time::timeout(LONG, mirror.settled()).await.expect("all is written");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_history_goes_begins_anew() {
    let etcd = Etcd::start().await;
    let direct = etcd.client();
    for number in 0..100 {
        direct.put(&format!("p/{number:03}"), b"", false).await.unwrap();
    }
    // One key a page; the history goes under it again and again.
    let one = Options { page: 1, ..etcd.options("root") };
    let reader = Client::new(&Settings::new(one), None).unwrap();
    let compact = async {
        for _ in 0..3 {
            let revision = direct.put("q", b"", false).await.unwrap();
            direct.compact(revision).await.unwrap();
        }
    };
    let (listed, ()) = tokio::join!(reader.list("p/"), compact);
    assert_eq!(listed.expect("a list").0.len(), 100);
}
