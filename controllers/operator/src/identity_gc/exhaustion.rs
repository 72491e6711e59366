//! Report 9: pods of ever new label sets use up the range. What there is goes on, and the rest comes by itself.

use std::collections::BTreeMap;

use cilia_crds::{CiliumEndpoint, CiliumIdentity};
use cilia_identity::Space;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::trial::Trial;

const NUMBERS: u32 = 24;
/// Pods beyond those for which there are numbers.
const LATE: u32 = 6;

/// Pods with one label set each, and what agents do for them.
struct Churn {
    all: Api<Pod>,
    endpoints: Api<CiliumEndpoint>,
    identities: Api<CiliumIdentity>,
    events: Api<Event>,
}

impl Churn {
    fn new(client: &Client) -> Self {
        Self {
            all: Api::namespaced(client.clone(), "default"),
            endpoints: Api::namespaced(client.clone(), "default"),
            identities: Api::all(client.clone()),
            events: Api::namespaced(client.clone(), "default"),
        }
    }

    async fn make(&self, names: &[String]) {
        for name in names {
            let pod = json!({
                "metadata": { "name": name, "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "main" }] },
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            self.all.create(&PostParams::default(), &pod).await.expect("create a pod");
        }
    }

    /// Waits until all of them have an identity, and publishes their endpoints; their numbers.
    async fn connect(&self, names: &[String]) -> BTreeMap<String, i64> {
        let numbers = eventually(|| async {
            let all =
                self.identities.list(&ListParams::default()).await.expect("list identities").items;
            let of = |name: &String| {
                let own =
                    all.iter().find(|one| one.security_labels.get("k8s:app") == Some(name))?;
                Some((name.clone(), own.name_any().parse::<i64>().expect("a number")))
            };
            let found: BTreeMap<String, i64> = names.iter().filter_map(of).collect();
            if found.len() == names.len() { Ok(found) } else { Err(found) }
        })
        .await;
        for (name, number) in &numbers {
            let object = json!({
                "metadata": { "name": name },
                "status": { "identity": { "id": number }, "state": "ready" },
            });
            let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
            let made = self.endpoints.create(&PostParams::default(), &object).await;
            made.expect("create an endpoint");
        }
        numbers
    }

    async fn end(&self, names: &[String]) {
        for name in names {
            let now = DeleteParams::default().grace_period(0);
            self.all.delete(name, &now).await.expect("delete a pod");
            let gone = self.endpoints.delete(name, &DeleteParams::default()).await;
            gone.expect("delete an endpoint");
        }
    }

    /// Waits until one of these pods was told that there is no number.
    async fn until_told(&self, names: &[String]) {
        eventually(|| async {
            let all = self.events.list(&ListParams::default()).await.expect("list events").items;
            let told = all.iter().any(|event| {
                let about = event.regarding.as_ref().and_then(|about| about.name.as_ref());
                event.reason.as_deref() == Some("NoIdentity")
                    && about.is_some_and(|name| names.contains(name))
            });
            if told { Ok(()) } else { Err(all.len()) }
        })
        .await;
    }
}

fn names(round: u32, count: u32) -> Vec<String> {
    (0..count).map(|number| format!("round-{round}-{number}")).collect()
}

/// `CILIA_CHURN_ROUNDS` fills the range so often anew; once by default.
pub(super) async fn the_range_is_used_up(trial: Trial) {
    let rounds = std::env::var("CILIA_CHURN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds: u32 = rounds.unwrap_or(1);
    let mut trial = trial.with(&[
        "--identity-allocation-mode=crd",
        "--identity-management-mode=operator",
        "--identity-gc-interval=200ms",
        "--identity-heartbeat-timeout=700ms",
    ]);
    trial.space = Some(Space::new(0, 255).expect("allowed").narrowed(NUMBERS));
    // What the chart adds in this mode.
    let rights = json!({
        "metadata": { "name": "identities" },
        "rules": [{ "apiGroups": ["cilium.io"], "resources": ["ciliumidentities"], "verbs": ["create", "get"] }],
    });
    trial.allow(serde_json::from_value(rights).expect("a role")).await;
    let duties = [trial.run("identity"), trial.run("identity_gc")];
    let pods = Churn::new(&trial.client);
    let stays = names(rounds, 1);
    pods.make(&stays).await;
    let first = pods.connect(&stays).await;
    let before = trial.writes(0).await.len();
    for round in 0..rounds {
        let most = names(round, NUMBERS - 1 + LATE);
        let (filling, late) = most.split_at(NUMBERS as usize - 1);
        pods.make(filling).await;
        pods.connect(filling).await;
        pods.make(late).await;
        pods.until_told(late).await;
        pods.end(filling).await;
        // Without anybody's help.
        pods.connect(late).await;
        pods.end(late).await;
    }
    let identities = &pods.identities;
    let number = first[&stays[0]].to_string();
    let labels = identities.get(&number).await.expect("it is there").security_labels;
    assert_eq!(labels["k8s:app"], stays[0]);
    let writes = trial.writes(before).await;
    assert!(writes.iter().all(|write| write.name != number), "{number} in {writes:?}");
    for duty in duties {
        duty.stop().await;
    }
}
