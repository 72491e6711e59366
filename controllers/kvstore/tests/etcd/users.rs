//! TLS, and users that may only read.

use cilia_kvstore::testing::Etcd;
use cilia_kvstore::{Client, Error, Settings, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_name_users_and_users_have_rights() {
    let etcd = Etcd::with(3, true, &[]).await;
    etcd.enable_users().await;
    let root = etcd.client();
    root.put(&keys::node("east", "n1"), b"{}", true).await.unwrap();
    root.put("secret", b"", false).await.unwrap();
    let remote = Client::new(&Settings::new(etcd.options("remote")), None).unwrap();
    assert!(remote.get(&keys::node("east", "n1")).await.unwrap().is_some());
    for refused in [
        remote.get("secret").await.err(),
        remote.put(&keys::node("east", "n1"), b"", false).await.err(),
        remote.lock(keys::INIT_LOCK).await.err(),
    ] {
        let error = refused.expect("not allowed");
        assert!(
            matches!(&error, Error::Rpc { cause, .. } if cause.contains("permission")),
            "{error}"
        );
    }
}
