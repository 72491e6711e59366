//! Endpoints that come, change and go, and what slices say of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::testing::eventually_for;
use cilia_runtime::watch::{Event, watch};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Endpoints in a slice.
pub const MAX: usize = 4;
/// Between two changes.
const PACE: Duration = Duration::from_millis(25);
const NAMESPACES: [(&str, bool); 3] = [("fast", true), ("slow", false), ("other", false)];

type Key = (String, String);
type Living = Arc<Mutex<BTreeMap<Key, i64>>>;

/// Changes endpoints until its end, and watches whether one that lives disappears.
pub struct Storm {
    client: Client,
    /// With their identities. What dies leaves before it is deleted: its entry may go at any time.
    living: Living,
    changes: Arc<AtomicUsize>,
    calm: CancellationToken,
    changing: JoinHandle<()>,
    watched: CancellationToken,
    losses: JoinHandle<Vec<Key>>,
    /// Somebody edits and deletes slices, and namespaces get and lose priority.
    meddled: bool,
}

impl Storm {
    pub async fn start(client: Client, seed: u64) -> Self {
        Self::begin(client, seed, false).await
    }

    /// One in which somebody edits and deletes slices, and namespaces get and lose priority.
    pub async fn meddled(client: Client, seed: u64) -> Self {
        Self::begin(client, seed, true).await
    }

    async fn begin(client: Client, seed: u64, meddled: bool) -> Self {
        for (name, priority) in NAMESPACES {
            let annotations =
                if priority { json!({ "cilium.io/ces-namespace": "priority" }) } else { json!({}) };
            let object = json!({ "metadata": { "name": name, "annotations": annotations } });
            let object: Namespace = serde_json::from_value(object).expect("a namespace");
            let api: Api<Namespace> = Api::all(client.clone());
            api.create(&PostParams::default(), &object).await.expect("create a namespace");
        }
        let (living, changes) = (Living::default(), Arc::new(AtomicUsize::new(0)));
        let (calm, watched) = (CancellationToken::new(), CancellationToken::new());
        let losses = tokio::spawn(losses(client.clone(), Arc::clone(&living), watched.clone()));
        let changing = change_until(
            calm.clone(),
            client.clone(),
            Arc::clone(&living),
            Arc::clone(&changes),
            seed,
            meddled,
        );
        let changing = tokio::spawn(changing);
        Self { client, living, changes, calm, changing, watched, losses, meddled }
    }

    /// Waits for some more changes.
    pub async fn moves_on(&self) {
        let enough = self.changes.load(Ordering::Relaxed) + 80;
        eventually_for(Duration::from_mins(1), async || {
            let changes = self.changes.load(Ordering::Relaxed);
            if changes >= enough { Ok(()) } else { Err(format!("{changes} of {enough} changes")) }
        })
        .await;
    }

    /// Ends it, waits until slices say the truth, and holds what was seen on the way against the law.
    pub async fn end(self) {
        self.calm.cancel();
        self.changing.await.expect("the storm does not panic");
        let want = lock(&self.living).clone();
        eventually_for(Duration::from_mins(2), async || {
            let api: Api<CiliumEndpointSlice> = Api::all(self.client.clone());
            let slices =
                api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let mut listed: BTreeMap<Key, i64> = BTreeMap::new();
            for slice in &slices {
                if !(1..=MAX).contains(&slice.endpoints.len()) {
                    return Err(format!("{} lists {}", slice.name_any(), slice.endpoints.len()));
                }
                for (key, identity) in entries(slice) {
                    if listed.insert(key.clone(), identity).is_some() {
                        return Err(format!("{key:?} is listed twice"));
                    }
                }
            }
            if listed == want { Ok(()) } else { Err(differ(&listed, &want)) }
        })
        .await;
        self.watched.cancel();
        let losses = self.losses.await.expect("the watch does not panic");
        assert!(
            self.meddled || losses.is_empty(),
            "{losses:?} were in no slice although they lived"
        );
    }
}

async fn change_until(
    calm: CancellationToken,
    client: Client,
    living: Living,
    changes: Arc<AtomicUsize>,
    seed: u64,
    meddled: bool,
) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pace = tokio::time::interval(PACE);
    while calm.run_until_cancelled(pace.tick()).await.is_some() {
        let number = changes.fetch_add(1, Ordering::Relaxed);
        if meddled && rng.random_bool(0.1) {
            meddle(&client, &mut rng).await;
        }
        let identity = rng.random_range(1000..2000);
        let chosen = {
            let living = lock(&living);
            let count = living.len().max(1);
            living.keys().nth(rng.random_range(0..count)).cloned()
        };
        match (chosen, rng.random_range(0..100)) {
            (Some((namespace, name)), 0..40) => {
                lock(&living).remove(&(namespace.clone(), name.clone()));
                let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), &namespace);
                api.delete(&name, &DeleteParams::default()).await.expect("delete an endpoint");
            }
            (Some((namespace, name)), 40..55) => {
                let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), &namespace);
                let patch = Patch::Merge(json!({ "status": { "identity": { "id": identity } } }));
                api.patch(&name, &PatchParams::default(), &patch)
                    .await
                    .expect("change an endpoint");
                lock(&living).insert((namespace, name), identity);
            }
            _ => {
                let (namespace, _) = NAMESPACES[rng.random_range(0..NAMESPACES.len())];
                let name = format!("pod-{number}");
                let object = json!({
                    "metadata": { "namespace": namespace, "name": name },
                    "status": {
                        "identity": { "id": identity },
                        "networking": {
                            "addressing": [{ "ipv4": format!("10.0.{}.{}", number / 256 % 256, number % 256) }],
                            "node": "192.0.2.1",
                        },
                    },
                });
                let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
                let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), namespace);
                api.create(&PostParams::default(), &object).await.expect("create an endpoint");
                lock(&living).insert((namespace.to_owned(), name), identity);
            }
        }
    }
}

/// Does to the slices, or to a namespace's priority, what somebody might do.
async fn meddle(client: &Client, rng: &mut StdRng) {
    let what = rng.random_range(0..4);
    if what == 0 {
        let (name, _) = NAMESPACES[rng.random_range(0..NAMESPACES.len())];
        let value = rng.random_bool(0.5).then_some("priority");
        let annotations = json!({ "cilium.io/ces-namespace": value });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let api: Api<Namespace> = Api::all(client.clone());
        api.patch(name, &PatchParams::default(), &patch).await.expect("annotate a namespace");
        return;
    }
    let api: Api<CiliumEndpointSlice> = Api::all(client.clone());
    let slices = api.list(&ListParams::default()).await.expect("list slices").items;
    if slices.is_empty() {
        return;
    }
    let name = slices[rng.random_range(0..slices.len())].name_any();
    let patch = match what {
        1 => {
            // The operator may have been quicker.
            let _ = api.delete(&name, &DeleteParams::default()).await;
            return;
        }
        2 => json!({ "namespace": "elsewhere" }),
        _ => json!({ "endpoints": [{ "name": "forged", "id": 1 }, { "name": "forged", "id": 2 }] }),
    };
    let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
}

/// Follows the slices, as an agent does; what it returns in the end vanished while it lived.
async fn losses(client: Client, living: Living, watched: CancellationToken) -> Vec<Key> {
    let mut events = std::pin::pin!(watch(Api::<CiliumEndpointSlice>::all(client)));
    let mut known: BTreeMap<String, BTreeSet<Key>> = BTreeMap::new();
    let mut losses = Vec::new();
    while let Some(Some(event)) = watched.run_until_cancelled(events.next()).await {
        let before = match event {
            Event::Applied(slice) => {
                let now = entries(&slice).map(|(key, _)| key).collect();
                known.insert(slice.name_any(), now)
            }
            Event::Deleted(key) => known.remove(&*key.name),
            Event::Synced => None,
        };
        let lives = lock(&living);
        let gone = before.into_iter().flatten();
        let gone = gone.filter(|key| !known.values().any(|keys| keys.contains(key)));
        losses.extend(gone.filter(|key| lives.contains_key(key)));
    }
    losses
}

fn entries(slice: &CiliumEndpointSlice) -> impl Iterator<Item = (Key, i64)> {
    let namespace = slice.namespace.clone().unwrap_or_default();
    slice.endpoints.iter().map(move |entry| {
        let name = entry.name.clone().unwrap_or_default();
        ((namespace.clone(), name), entry.id.unwrap_or_default())
    })
}

/// What is wrong, in words short enough to read.
fn differ(listed: &BTreeMap<Key, i64>, want: &BTreeMap<Key, i64>) -> String {
    let missing: Vec<_> = want.iter().filter(|(key, id)| listed.get(key) != Some(id)).collect();
    let dead: Vec<_> = listed.keys().filter(|key| !want.contains_key(*key)).collect();
    format!("missing or wrong: {missing:?}; dead: {dead:?}")
}

fn lock(living: &Living) -> MutexGuard<'_, BTreeMap<Key, i64>> {
    living.lock().expect("nobody panics while it is held")
}
