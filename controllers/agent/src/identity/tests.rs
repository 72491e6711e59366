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
