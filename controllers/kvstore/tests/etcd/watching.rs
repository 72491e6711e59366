//! A watch tells what is there, whatever breaks in between.

use std::collections::BTreeMap;

use cilia_kvstore::testing::{Etcd, options};
use cilia_kvstore::{Client, Event, Settings, Watch};
use cilia_runtime::testing::proxy::{Mode, Proxy};
use std::time::Duration;

type Told = BTreeMap<String, String>;

/// Reads on until what was told is `want`.
async fn until(watch: &mut Watch, told: &mut Told, want: &Told) {
    let read = async {
        while told != want {
            for event in watch.next().await.expect("the watch goes on") {
                match event {
                    Event::Put(kv) => {
                        let text = |bytes| String::from_utf8(bytes).expect("text");
                        told.insert(text(kv.key), text(kv.value));
                    }
                    Event::Deleted(key) => assert!(told.remove(&key).is_some(), "{key}"),
                    Event::Listed | Event::Progress(_) => {}
                }
            }
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(20), read).await;
    assert!(read.is_ok(), "told: {told:?}\nwant: {want:?}");
}

fn want(pairs: &[(&str, &str)]) -> Told {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_behind_a_cut_and_a_compaction_is_told() {
    let etcd = Etcd::start().await;
    let direct = etcd.client();
    let proxy = Proxy::to(([127, 0, 0, 1], etcd.port(0)).into()).await;
    let via = options(&etcd.config_via("root", &[proxy.address().port()]));
    let reader = Client::new(&Settings::new(via), None).unwrap();
    for number in 0..600 {
        direct.put(&format!("other/{number}"), b"", false).await.unwrap();
    }
    direct.put("w/a", b"1", false).await.unwrap();
    direct.put("w/b", b"1", false).await.unwrap();
    assert_eq!(direct.list("other/").await.unwrap().0.len(), 600, "in pages");
    let (mut watch, mut told) = (reader.watch("w/"), Told::new());
    until(&mut watch, &mut told, &want(&[("w/a", "1"), ("w/b", "1")])).await;
    direct.put("w/c", b"1", false).await.unwrap();
    until(&mut watch, &mut told, &want(&[("w/a", "1"), ("w/b", "1"), ("w/c", "1")])).await;

    // Cut, and the history goes: deleted, re-made and new keys are all told.
    proxy.set(Mode::Cut);
    direct.delete("w/a").await.unwrap();
    direct.delete("w/b").await.unwrap();
    direct.put("w/b", b"2", false).await.unwrap();
    let revision = direct.put("w/d", b"1", false).await.unwrap();
    direct.compact(revision).await.unwrap();
    proxy.set(Mode::Pass);
    until(&mut watch, &mut told, &want(&[("w/b", "2"), ("w/c", "1"), ("w/d", "1")])).await;

    // A short cut without one: the watch goes on where it was.
    proxy.set(Mode::Cut);
    direct.delete("w/c").await.unwrap();
    proxy.set(Mode::Pass);
    until(&mut watch, &mut told, &want(&[("w/b", "2"), ("w/d", "1")])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_went_back_to_a_copy_is_told_as_it_is() {
    let mut etcd = Etcd::with(3, true, &[]).await;
    etcd.enable_users().await;
    let direct = etcd.client();
    let proxy = Proxy::to(([127, 0, 0, 1], etcd.port(0)).into()).await;
    let via = options(&etcd.config_via("root", &[proxy.address().port()]));
    let reader = Client::new(&Settings::new(via), None).unwrap();
    for key in ["w/a", "w/b"] {
        direct.put(key, b"1", false).await.unwrap();
    }
    etcd.save().await;
    direct.put("w/a", b"2", false).await.unwrap();
    direct.put("w/c", b"1", false).await.unwrap();
    direct.delete("w/b").await.unwrap();
    let (mut watch, mut told) = (reader.watch("w/"), Told::new());
    until(&mut watch, &mut told, &want(&[("w/a", "2"), ("w/c", "1")])).await;
    // Nobody who reads is there; others write the same revisions again, and more.
    proxy.set(Mode::Cut);
    etcd.restore().await;
    direct.put("w/a", b"3", false).await.unwrap();
    for _ in 0..9 {
        direct.put("other", b"", false).await.unwrap();
    }
    proxy.set(Mode::Pass);
    until(&mut watch, &mut told, &want(&[("w/a", "3"), ("w/b", "1")])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_fill_more_than_an_answer_are_read() {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let value = vec![b'x'; 1_400_000];
    for number in 0..50 {
        client.put(&format!("huge/{number}"), &value, false).await.unwrap();
    }
    assert_eq!(client.list("huge/").await.unwrap().0.len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_emptied_has_nothing() {
    let mut etcd = Etcd::start().await;
    let client = etcd.client();
    for _ in 0..10 {
        client.put("w/a", b"1", false).await.unwrap();
    }
    let (mut watch, mut told) = (client.watch("w/"), Told::new());
    until(&mut watch, &mut told, &want(&[("w/a", "1")])).await;
    etcd.wipe(0);
    etcd.run(0);
    until(&mut watch, &mut told, &Told::new()).await;
    client.put("w/b", b"1", false).await.unwrap();
    until(&mut watch, &mut told, &want(&[("w/b", "1")])).await;
}
