//! Slices by the operator as a process, under a storm, whatever happens to the process and its network.
//!
//! Laws: an endpoint that was visible and lives is in a slice at every moment; in the end each is in
//! exactly one that says the truth of it, and nothing else is in any.
//!
//! `CILIA_KILLS` sets how often the operator is killed.

mod forwarder;
mod replica;
mod storm;

use std::time::{Duration, Instant};

use cilia_runtime::testing::{ApiServer, Signal, eventually_for};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use forwarder::{Faults, Forwarder};
use replica::Replica;
use storm::Storm;

/// A replica that died is followed within seconds.
const SHORT_LEASE: [&str; 3] = [
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
];
const FAST_WRITES: &str = r#"--ces-rate-limits=[{"nodes":0,"limit":50,"burst":100}]"#;

fn seed() -> u64 {
    let seed = rand::random();
    println!("seed {seed}");
    seed
}

/// As if the Lease of a dead leader had run out.
async fn forget_leader(server: &ApiServer) {
    let leases: Api<Lease> = Api::default_namespaced(server.client());
    for lease in leases.list(&ListParams::default()).await.expect("list leases") {
        let name = lease.metadata.name.unwrap_or_default();
        leases.delete(&name, &DeleteParams::default()).await.expect("delete a lease");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_it_loses_nobody() {
    let kills = std::env::var("CILIA_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut rng = StdRng::seed_from_u64(seed());
    let server = ApiServer::start().await;
    let kubeconfig = server.kubeconfig();
    let mut operator = Replica::start(&kubeconfig, &[FAST_WRITES]);
    operator.until_leading().await;
    let storm = Storm::start(server.client(), rng.random()).await;
    for _ in 0..kills {
        let moment = Duration::from_millis(rng.random_range(0..800));
        tokio::time::sleep(moment).await;
        operator.kill();
        forget_leader(&server).await;
        operator = Replica::start(&kubeconfig, &[FAST_WRITES]);
        operator.until_leading().await;
    }
    storm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_writes_nothing_once_the_standby_leads() {
    let server = ApiServer::start().await;
    let (to_first, to_second) =
        (Forwarder::to(&server, None).await, Forwarder::to(&server, None).await);
    let arguments = [&SHORT_LEASE[..], &[FAST_WRITES]].concat();
    let mut first = Replica::start(&server.kubeconfig_via_http(to_first.address()), &arguments);
    first.until_leading().await;
    let storm = Storm::start(server.client(), seed()).await;
    let mut second = Replica::start(&server.kubeconfig_via_http(to_second.address()), &arguments);
    second.until("all endpoints and slices are known").await;
    storm.moves_on().await;

    let before = to_second.slice_writes().len();
    assert_eq!(before, 0, "a standby only follows");
    first.signal(Signal::SIGSTOP);
    second.until_leading().await;
    let leads = Instant::now();
    eventually_for(Duration::from_secs(30), || async {
        to_second.slice_writes().first().copied().ok_or("the new leader writes nothing")
    })
    .await;
    println!("the new leader's first write came after {:?}", leads.elapsed());
    let of_first = to_first.slice_writes().len();
    first.signal(Signal::SIGCONT);
    let status = first.end_within(Duration::from_secs(30)).await;
    assert!(!status.success(), "{status}");
    storm.moves_on().await;
    assert_eq!(to_first.slice_writes().len(), of_first, "writes of one that leads no more");
    storm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_changes_nothing_in_the_end_and_the_budget_is_kept() {
    const LIMIT: f64 = 20.0;
    const BURST: f64 = 10.0;
    let seed = seed();
    let server = ApiServer::start().await;
    let network = Forwarder::to(&server, Some(Faults::new(seed))).await;
    let limits = format!(r#"--ces-rate-limits=[{{"nodes":0,"limit":{LIMIT},"burst":{BURST}}}]"#);
    let arguments = [limits.as_str(), "--ces-adaptive-rate=false"];
    let mut operator = Replica::start(&server.kubeconfig_via_http(network.address()), &arguments);
    operator.until_leading().await;
    let storm = Storm::start(server.client(), seed).await;
    for _ in 0..3 {
        storm.moves_on().await;
    }
    storm.end().await;
    let writes = network.slice_writes();
    println!("{} writes, {:?} faults", writes.len(), network.faults());
    for (index, start) in writes.iter().enumerate() {
        for (count, end) in writes[index..].iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let count = count as f64 + 1.0;
            let length = end.saturating_duration_since(*start).as_secs_f64();
            // A write may be late, and the next in time.
            let allowed = BURST + LIMIT * (length + 0.5) + 1.0;
            assert!(count <= allowed, "{count} writes in {length} s");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_others_do_it_ends_well() {
    let seed = seed();
    let server = ApiServer::with_arguments(&["--feature-gates=WatchList=false"]).await;
    let network = Forwarder::to(&server, Some(Faults::new(seed))).await;
    let kubeconfig = server.kubeconfig_via_http(network.address());
    let mut operator = Replica::with_max(storm::MAX * 2, &kubeconfig, &[FAST_WRITES]);
    operator.until_leading().await;
    let storm = Storm::meddled(server.client(), seed).await;
    storm.moves_on().await;
    // Slices that were right are too large now.
    operator.kill();
    forget_leader(&server).await;
    let mut operator = Replica::start(&kubeconfig, &[FAST_WRITES]);
    operator.until_leading().await;
    storm.moves_on().await;
    storm.end().await;
    println!("{:?}", network.faults());
}
