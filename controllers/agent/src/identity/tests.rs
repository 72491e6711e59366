//! Identities without an API server: what watch events make of them.

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::Space;
use kube::api::ObjectMeta;

use super::{HEARTBEAT, Identities, Management};

fn identities() -> Identities {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    Identities::new(client, Space::new(0, 255).unwrap(), Management::Agent)
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
    assert_eq!(*snapshot[&number], labels("web"));
    identities.deleted(number);
    assert_eq!(identities.labels(number), None);
    assert_eq!(snapshot.len(), NumericIdentity::RESERVED.len() + 1, "a snapshot does not change");
}

#[tokio::test]
async fn reserved_label_sets_need_no_allocation() {
    let identities = identities();
    let init = Labels::reserved("init");
    assert_eq!(identities.allocate(&init).await.unwrap(), NumericIdentity::INIT);
    assert!(identities.is_current(&init, NumericIdentity::INIT));
}

/// Two agents give a hundred pods of five label sets each their identities at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_agree_whoever_was_first() {
    use cilia_runtime::testing::eventually;
    use kube::api::{Patch, PatchParams};
    use tokio_util::sync::CancellationToken;

    let server = crate::endpoint::testing::api_server().await;
    let token = CancellationToken::new();
    let agent = |name: &str| {
        let space = Space::new(0, 255).unwrap();
        let identities = Identities::new(server.client_as(name), space, Management::Agent);
        let (running, token) = (identities.clone(), token.clone());
        tokio::spawn(async move { running.run(token).await });
        identities
    };
    let agents = [agent("a"), agent("b")];
    let asked = (0..200).map(|n| {
        let (identities, app) = (agents[n % 2].clone(), format!("app-{}", n / 2 % 5));
        tokio::spawn(async move { (identities.allocate(&labels(&app)).await.unwrap(), app) })
    });
    for asked in asked.collect::<Vec<_>>() {
        let (number, _) = asked.await.unwrap();
        assert!((256..=65535).contains(&number.0));
    }
    let api: kube::Api<CiliumIdentity> = kube::Api::all(server.client());
    let made = api.list(&kube::api::ListParams::default()).await.unwrap().items;
    assert!(
        (5..=10).contains(&made.len()),
        "one per label set, or two where both were first: {}",
        made.len()
    );
    for app in (0..5).map(|n| format!("app-{n}")) {
        let number = eventually(|| async {
            match [&agents[0], &agents[1]].map(|agent| agent.number(&labels(&app))) {
                [Some(a), Some(b)] if a == b => Ok(a),
                other => Err(other),
            }
        })
        .await;
        let object = made.iter().find(|identity| identity.number() == Some(number)).unwrap();
        assert_eq!(object.labels(), labels(&app));
    }

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
    for other in api.list(&kube::api::ListParams::default()).await.unwrap().items {
        if other.labels() == labels("app-0") {
            api.delete(&other.metadata.name.unwrap(), &kube::api::DeleteParams::default())
                .await
                .unwrap();
        }
    }
    eventually(|| async { agents[1].number(&labels("app-0")).map_or(Ok(()), Err) }).await;
    let again = agents[1].allocate_like(&labels("app-0"), Some(number)).await.unwrap();
    assert_eq!(again, number);
    token.cancel();
}
