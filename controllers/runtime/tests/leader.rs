//! Two candidates and a real API server: clean hand-over, a stalled network, a foreign holder.

use std::time::Duration;

use cilia_runtime::config::{Config, Flags};
use cilia_runtime::leader::{Elector, Settings};
use cilia_runtime::testing::proxy::{Mode, Proxy};
use cilia_runtime::testing::{ApiServer, client_of, eventually};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// More than anything takes on a slow machine.
const SOON: Duration = Duration::from_secs(30);
const SHORT: [&str; 3] = [
    "--leader-election-lease-duration=5s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=500ms",
];

fn settings(args: &[&str]) -> Settings {
    let config = Config::load(Flags::operator(), args.iter().map(ToString::to_string), []).unwrap();
    Settings::new(&config, "cilium-operator-resource-lock").unwrap()
}

struct Candidate {
    identity: String,
    stop: CancellationToken,
    leads: oneshot::Receiver<Instant>,
    ended: JoinHandle<Result<Option<()>, String>>,
}

fn candidate(client: kube::Client, args: &[&str]) -> Candidate {
    let settings = settings(args);
    let (identity, stop) = (settings.identity.clone(), CancellationToken::new());
    let elector = Elector::new(client, settings);
    let (started, leads) = oneshot::channel();
    let token = stop.clone();
    let ended = tokio::spawn(async move {
        let work = async |_| {
            let _ = started.send(Instant::now());
            token.cancelled().await;
        };
        elector.run(&token, work).await.map_err(|error| error.to_string())
    });
    Candidate { identity, stop, leads, ended }
}

async fn spec(leases: &Api<Lease>) -> LeaseSpec {
    leases.get("cilium-operator-resource-lock").await.unwrap().spec.unwrap()
}

#[tokio::test]
async fn a_clean_stop_hands_over_at_once() {
    let server = ApiServer::start().await;
    let leases: Api<Lease> = Api::namespaced(server.client(), "default");
    let mut first = candidate(server.client(), &[]);
    timeout(SOON, &mut first.leads).await.unwrap().unwrap();
    let lease = spec(&leases).await;
    assert_eq!(lease.holder_identity.as_deref(), Some(first.identity.as_str()));
    assert_eq!((lease.lease_duration_seconds, lease.lease_transitions), (Some(15), Some(0)));

    let mut second = candidate(server.client(), &[]);
    // The first renews, and the second sees that and stays where it is.
    let renewed = lease.renew_time.unwrap();
    eventually(async || {
        let now = spec(&leases).await;
        (now.renew_time != Some(renewed.clone())).then_some(()).ok_or(now)
    })
    .await;
    assert!(second.leads.try_recv().is_err());

    let stopped = Instant::now();
    first.stop.cancel();
    assert_eq!(first.ended.await.unwrap(), Ok(Some(())));
    let leads = timeout(SOON, &mut second.leads).await.unwrap().unwrap();
    assert!(
        leads.duration_since(stopped) < Duration::from_secs(12),
        "the lease was not waited for"
    );
    let lease = spec(&leases).await;
    assert_eq!(lease.holder_identity.as_deref(), Some(second.identity.as_str()));
    assert_eq!(lease.lease_transitions, Some(1));

    second.stop.cancel();
    second.ended.await.unwrap().unwrap();
    assert_eq!(spec(&leases).await.holder_identity.as_deref(), Some(""));

    // Whoever stops while standing by touches nothing.
    let third = candidate(server.client(), &[]);
    third.stop.cancel();
    assert_eq!(third.ended.await.unwrap().map(|_| ()), Ok(()));
}

#[tokio::test]
async fn a_stalled_leader_ends_before_another_can_lead() {
    let server = ApiServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let mut first = candidate(client_of(proxy.address(), "first"), &SHORT);
    timeout(SOON, &mut first.leads).await.unwrap().unwrap();
    let mut second = candidate(server.client(), &SHORT);
    proxy.set(Mode::Stall);
    let error = timeout(SOON, first.ended).await.unwrap().unwrap().unwrap_err();
    let ended = Instant::now();
    assert!(
        error.starts_with(
            "Leader election lost: lease default/cilium-operator-resource-lock was not"
        ),
        "{error}"
    );
    assert!(second.leads.try_recv().is_err(), "the first must end before the second leads");
    let leads = timeout(SOON, &mut second.leads).await.unwrap().unwrap();
    assert!(leads > ended);
    second.stop.cancel();
    second.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_foreign_holder_is_respected_and_its_theft_noticed() {
    let server = ApiServer::start().await;
    let leases: Api<Lease> = Api::namespaced(server.client(), "default");
    let now = MicroTime(Timestamp::now());
    let theirs = LeaseSpec {
        holder_identity: Some("client-go".into()),
        lease_duration_seconds: Some(3),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: Some(4),
        ..LeaseSpec::default()
    };
    let name = Some("cilium-operator-resource-lock".to_string());
    let lease = Lease {
        metadata: ObjectMeta { name, ..ObjectMeta::default() },
        spec: Some(theirs.clone()),
    };
    leases.create(&PostParams::default(), &lease).await.unwrap();

    let start = Instant::now();
    let mut ours = candidate(server.client(), &SHORT);
    let leads = timeout(SOON, &mut ours.leads).await.unwrap().unwrap();
    assert!(leads.duration_since(start) >= Duration::from_secs(3));
    assert_eq!(spec(&leases).await.lease_transitions, Some(5));

    eventually(async || {
        let mut stolen = leases.get("cilium-operator-resource-lock").await.unwrap();
        stolen.spec = Some(theirs.clone());
        leases.replace("cilium-operator-resource-lock", &PostParams::default(), &stolen).await
    })
    .await;
    let error = timeout(SOON, ours.ended).await.unwrap().unwrap().unwrap_err();
    assert_eq!(
        error,
        "Leader election lost: lease default/cilium-operator-resource-lock is now held by \"client-go\""
    );
}
