//! TLS, and users that may only read.

use cilia_kvstore::testing::{Etcd, options};
use cilia_kvstore::{Client, Error, Settings, keys};
use cilia_runtime::testing::{eventually_for, free_ports};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_name_users_and_users_have_rights() {
    let mut etcd = Etcd::with(3, true, &[]).await;
    strangers_are_told(&etcd).await;
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
    an_expired_certificate_is_named_and_renewed(&etcd).await;
    other_members_are_heard_of(&mut etcd).await;
}

async fn an_expired_certificate_is_named_and_renewed(etcd: &Etcd) {
    let client = Client::new(&Settings::new(etcd.options("expired")), None).unwrap();
    let error = client.get("alive").await.expect_err("expired").to_string();
    let path = etcd.folder().join("expired.crt");
    let want = format!(
        "cert-file {}: the certificate of CN=root has expired: notAfter 2020-01-01T00:00:00Z",
        path.display()
    );
    assert!(error.contains(&want), "{error} lacks {want}");
    for end in ["crt", "key"] {
        let file = |name: &str| etcd.folder().join(format!("{name}.{end}"));
        std::fs::copy(file("root"), file("expired")).unwrap();
    }
    // It goes on by itself.
    client.put("alive", b"1", false).await.unwrap();
}

/// The members of which a client knows are gone, and its file names others by then.
async fn other_members_are_heard_of(etcd: &mut Etcd) {
    let via = etcd.config_via("root", &[etcd.port(0)]);
    let client = Client::new(&Settings::new(options(&via)), None).unwrap();
    client.put("alive", b"1", false).await.unwrap();
    let others = etcd.config_via("remote", &[etcd.port(1), etcd.port(2)]);
    let others = std::fs::read_to_string(others).unwrap().replace("remote", "root");
    std::fs::write(&via, others).unwrap();
    etcd.kill(0);
    let written = || async { client.put("alive", b"2", false).await };
    eventually_for(Duration::from_mins(1), written).await;
}

/// A dead host among the endpoints does no harm; an authority that did not sign is named by its file.
async fn strangers_are_told(etcd: &Etcd) {
    let [dead] = free_ports();
    let via = etcd.config_via("root", &[dead, etcd.port(0), dead, etcd.port(1)]);
    for _ in 0..4 {
        // Each client asks in another order.
        let client = Client::new(&Settings::new(options(&via)), None).unwrap();
        client.put("alive", b"1", false).await.unwrap();
    }

    let wrong = etcd.folder().join("wrong.crt");
    std::fs::copy(etcd.folder().join("remote.crt"), &wrong).unwrap();
    let text = std::fs::read_to_string(etcd.config("root")).unwrap();
    let config = etcd.folder().join("wrong.config");
    std::fs::write(&config, text.replace("ca.crt", "wrong.crt")).unwrap();
    let client = Client::new(&Settings::new(options(&config)), None).unwrap();
    let error = client.get("alive").await.expect_err("nobody vouches for it").to_string();
    let named = format!("trusted-ca-file {}", wrong.display());
    assert!(error.contains(&named) && error.contains("certificate"), "{error}");

    let refused = async |name: &str, change: &dyn Fn(&str) -> String| {
        let config = etcd.folder().join(name);
        std::fs::write(&config, change(&text)).unwrap();
        let client = Client::new(&Settings::new(options(&config)), None).unwrap();
        client.get("alive").await.expect_err(name).to_string()
    };
    let nothing_own = |text: &str| {
        let lines = text
            .lines()
            .filter(|line| !["cert-file", "key-file"].iter().any(|k| line.starts_with(k)));
        lines.fold(String::new(), |all, line| all + line + "\n")
    };
    let error = refused("bare.config", &nothing_own).await;
    assert!(error.contains("no cert-file is set"), "{error}");
    let error = refused("mixed.config", &|text| text.replace("root.key", "remote.key")).await;
    assert!(error.contains("KeyMismatch"), "{error}");
    let plain = |text: &str| nothing_own(text).replace("https://", "http://");
    let error = refused("plain.config", &plain).await;
    assert!(error.contains("get alive: http://127.0.0.1:") && error.contains("https"), "{error}");
    let [dead] = free_ports();
    let dead = etcd.config_via("root", &[dead]);
    let client = Client::new(&Settings::new(options(&dead)), None).unwrap();
    let error = client.get("alive").await.expect_err("nobody listens").to_string();
    assert!(error.contains("https://") && error.contains("refused"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_comes_late_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("etcd.config");
    let options = options(&path);
    let waits = tokio::spawn({
        let options = options.clone();
        async move { options.wait_for_file().await }
    });
    tokio::time::advance(std::time::Duration::from_mins(1)).await;
    assert!(!waits.is_finished());
    std::fs::write(&path, "endpoints: [http://127.0.0.1:1]\n").unwrap();
    waits.await.unwrap();
    // The endpoints are those of the file as it is then.
    assert!(Client::new(&Settings::new(options), None).is_ok());
    std::fs::write(&path, "endpoints: []\n").unwrap();
    let error = Client::new(&Settings::new(self::options(&path)), None).unwrap_err().to_string();
    assert!(error.contains("at least one URL"), "a mistake is told at once: {error}");
    std::fs::remove_file(&path).unwrap();
    let client = Client::new(&Settings::new(self::options(&path)), None).unwrap();
    let error = client.get("a").await.unwrap_err().to_string();
    assert!(error.contains("etcd.config: No such file"), "{error}");
}
