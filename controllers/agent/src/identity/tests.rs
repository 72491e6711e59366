//! Identities without an API server: what watch events make of them.

use std::time::Duration;

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Fixed, Space};
use futures::StreamExt as _;
use kube::api::ObjectMeta;

use super::{HEARTBEAT, Identities, Management, Settings};

fn client() -> kube::Client {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    kube::Client::try_from(config).unwrap()
}

fn identities() -> Identities {
    Identities::new(client(), Space::new(0, 255).unwrap(), Management::Agent)
}

fn labels(app: &str) -> Labels {
    let mut labels = Labels::new();
    labels.insert("k8s", "app", app);
    labels
}

fn identity(name: &str, app: &str, marked: bool) -> CiliumIdentity {
    let annotations =
        marked.then(|| [(HEARTBEAT.to_owned(), "2026-01-01T00:00:00Z".to_owned())].into());
    CiliumIdentity {
        metadata: ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() },
        security_labels: labels(app).to_security_labels(),
    }
}

#[tokio::test]
async fn events_make_the_view() {
    let identities = identities();
    let mut changes = identities.subscribe();
    identities.applied(&identity("1000", "web", false));
    identities.applied(&identity("not-a-number", "web", false));
    let number = NumericIdentity(1000);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert!(identities.is_current(&labels("web"), number));

    identities.applied(&identity("1000", "web", false));
    assert!(!changes.has_changed().unwrap(), "the same again is no news");
    identities.applied(&identity("1000", "web", true));
    assert!(!identities.is_current(&labels("web"), number), "it is about to be deleted");

    let snapshot = identities.snapshot();
    assert_eq!(snapshot.len(), NumericIdentity::RESERVED.len() + 1);
    let (version, news) = identities.changes_since(Some(1));
    assert_eq!(news, Some(vec![(number, Some(std::sync::Arc::new(labels("web"))))]));
    assert_eq!(*snapshot[&number], labels("web"));
    identities.deleted(number);
    assert_eq!(identities.labels(number), None);
    assert_eq!(identities.changes_since(Some(version)).1, Some(vec![(number, None)]));
    assert_eq!(identities.changes_since(None).1, None, "who knows nothing takes the snapshot");
    assert_eq!(snapshot.len(), NumericIdentity::RESERVED.len() + 1, "a snapshot does not change");
}

#[tokio::test]
async fn reserved_label_sets_need_no_allocation() {
    let identities = identities();
    let init = Labels::reserved("init");
    assert_eq!(identities.allocate(&init).await.unwrap(), NumericIdentity::INIT);
    assert!(identities.is_current(&init, NumericIdentity::INIT));
}

fn with(well_known: Vec<(NumericIdentity, Labels)>, timeout: Duration) -> Identities {
    let (space, management) = (Space::new(0, 255).unwrap(), Management::Operator);
    let settings = Settings { space, management, well_known, timeout, grace: Duration::ZERO };
    Identities::with_settings(client(), settings)
}

#[tokio::test]
async fn pods_ask_for_fixed_identities_by_name() {
    let fixed = (NumericIdentity(128), Labels::reserved("store"));
    let identities = with(vec![fixed.clone()], Duration::from_mins(2));
    let asks = |name: &str| {
        let mut labels = labels("web");
        labels.insert("k8s", Fixed::LABEL, name);
        labels
    };
    assert_eq!(identities.of_endpoint(asks("store")), fixed.1);
    assert_eq!(identities.allocate(&fixed.1).await.unwrap(), fixed.0);
    // Nobody becomes what only Cilia may be.
    for name in ["other", "host", "kube-apiserver"] {
        assert_eq!(identities.of_endpoint(asks(name)), asks(name));
    }
    assert_eq!(identities.of_endpoint(labels("web")), labels("web"));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_identity_for_ever() {
    let identities = with(Vec::new(), Duration::from_secs(3));
    let error = identities.allocate(&labels("web")).await.unwrap_err().to_string();
    assert!(error.contains("k8s:app=web") && error.contains("not within 3s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_waits_for_any_more_sets_no_number_aside() {
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let identities = Identities::with_settings(
        kube::Client::new(silent, "default"),
        Settings {
            space: Space::new(0, 255).unwrap(),
            management: Management::Agent,
            well_known: Vec::new(),
            timeout: Duration::from_secs(3),
            grace: Duration::ZERO,
        },
    );
    identities.synced();
    let free = || identities.state().ledger.pool().free();
    let before = free();
    let error = identities.allocate(&labels("web")).await.unwrap_err().to_string();
    assert!(error.contains("not within 3s"), "{error}");
    assert_eq!(free(), before);
}

/// Ten agents need a number for each of many label sets at once (`CILIA_LABEL_SETS`, 40 by default).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_agree_whoever_was_first() {
    use cilia_runtime::testing::eventually;
    use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
    use tokio_util::sync::CancellationToken;

    let sets = std::env::var("CILIA_LABEL_SETS").ok().and_then(|sets| sets.parse().ok());
    let sets = sets.unwrap_or(40);
    let server = crate::endpoint::testing::api_server().await;
    let token = CancellationToken::new();
    let agents: Vec<Identities> = (0..10)
        .map(|number| {
            let space = Space::new(0, 255).unwrap();
            let client = server.client_as(&format!("agent-{number}"));
            let identities = Identities::new(client, space, Management::Agent);
            let (running, token) = (identities.clone(), token.clone());
            tokio::spawn(async move { running.run(token).await });
            identities
        })
        .collect();
    let asked = agents.iter().map(|identities| {
        let identities = identities.clone();
        let one = move |number: usize| {
            let identities = identities.clone();
            async move { (number, identities.allocate(&labels(&number.to_string())).await.unwrap()) }
        };
        let all = futures::stream::iter(0..sets).map(one).buffer_unordered(100);
        tokio::spawn(all.collect::<Vec<_>>())
    });
    let mut numbers = std::collections::BTreeMap::new();
    for asked in asked.collect::<Vec<_>>() {
        for (set, number) in asked.await.unwrap() {
            assert!((256..=65535).contains(&number.0));
            assert_eq!(*numbers.entry(set).or_insert(number), number, "all have one for {set}");
        }
    }
    let api: kube::Api<CiliumIdentity> = kube::Api::all(server.client());
    let made = api.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(made.len(), sets, "one per label set");
    for object in &made {
        let set: usize = object.security_labels["k8s:app"].parse().unwrap();
        assert_eq!(object.number(), Some(numbers[&set]));
    }
    let labels = |app: &str| if app == "app-0" { labels("0") } else { labels(app) };

    // A marked identity is not used before the mark is off.
    let number = agents[0].number(&labels("app-0")).unwrap();
    let mark =
        serde_json::json!({"metadata": {"annotations": {HEARTBEAT: "2026-01-01T00:00:00Z"}}});
    api.patch(&number.to_string(), &PatchParams::default(), &Patch::Merge(mark)).await.unwrap();
    eventually(|| async {
        if agents[0].is_current(&labels("app-0"), number) { Err(()) } else { Ok(()) }
    })
    .await;
    assert_eq!(agents[0].allocate(&labels("app-0")).await.unwrap(), number);
    let annotations = api.get(&number.to_string()).await.unwrap().metadata.annotations;
    assert_eq!(annotations.unwrap_or_default().get(HEARTBEAT), None);

    // One that is deleted while in use comes back under its number.
    api.delete(&number.to_string(), &DeleteParams::default()).await.unwrap();
    eventually(|| async { agents[1].number(&labels("app-0")).map_or(Ok(()), Err) }).await;
    let again = agents[1].allocate_like(&labels("app-0"), Some(number)).await.unwrap();
    assert_eq!(again, number);

    // Where two were made for the same labels, by agents that see nothing of each other, the older one counts.
    let (older, younger) = (identity("700", "twice", false), identity("699", "twice", false));
    api.create(&kube::api::PostParams::default(), &older).await.unwrap();
    eventually(|| async { agents[2].number(&labels("twice")).ok_or(()) }).await;
    // Creation is counted in seconds.
    eventually(|| async {
        let made = api.get("700").await.unwrap().metadata.creation_timestamp.unwrap().0;
        let now = k8s_openapi::jiff::Timestamp::now();
        if now.as_second() > made.as_second() { Ok(()) } else { Err(now) }
    })
    .await;
    api.create(&kube::api::PostParams::default(), &younger).await.unwrap();
    eventually(|| async { agents[2].labels(NumericIdentity(699)).ok_or(()) }).await;
    assert_eq!(agents[2].allocate(&labels("twice")).await.unwrap(), NumericIdentity(700));

    // A full range: what exists is used, a new set is told why it can't be, and gets the first number that is freed.
    let full = &agents[0];
    let space = Space::new(0, 255).unwrap();
    for number in space.range().filter(|number| full.labels(NumericIdentity(*number)).is_none()) {
        let mut job = super::Labels::new();
        job.insert("k8s", "app", "report");
        job.insert("k8s", "job-name", &number.to_string());
        full.applied(&CiliumIdentity {
            metadata: ObjectMeta { name: Some(number.to_string()), ..ObjectMeta::default() },
            security_labels: job.to_security_labels(),
        });
    }
    assert_eq!(full.allocate(&labels("0")).await.unwrap(), number);
    let error = full.allocate(&labels("new")).await.unwrap_err().to_string();
    for part in ["k8s:app=new;", "all 65280 identity numbers", "k8s:!job-name$"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let freed = space.range().map(NumericIdentity).find(|number| {
        full.labels(*number).is_some_and(|labels| labels.get("k8s", "job-name").is_some())
    });
    full.deleted(freed.unwrap());
    assert_eq!(full.allocate(&labels("new")).await.unwrap(), freed.unwrap());
    token.cancel();
}
