//! Looks at every identity once in a while, and does what was decided.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Space, Users};
use cilia_runtime::lanes::{Next, Rate};
use cilia_runtime::watch::{Key, Store};
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::heartbeats::{Heartbeats, Judgement};
use super::pace::Load;
use super::report::Report;
use super::revision::Revision;
use crate::failure::{CONFLICT, Failure, NOT_FOUND};

const KIND: &str = "CiliumIdentity";
const MARK: &str = "io.cilium.heartbeat";
/// Writes in flight.
const PARALLEL: usize = 8;
/// How often the pace of a long run is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// What is kept of a `CiliumIdentity`: about 120 bytes with its place in the store, beside its labels, which are
/// kept once for all duties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdentityState {
    revision: Revision,
    marked: bool,
    pub(super) labels: Arc<Labels>,
}

impl IdentityState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(identity: CiliumIdentity) -> Option<Self> {
        Some(Self {
            revision: Revision::of(&identity),
            marked: identity.annotations().contains_key(MARK),
            labels: identity.labels().shared(),
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    /// Silence after which an identity is marked, and then deleted.
    pub(super) timeout: Duration,
    /// Deletions a second, at least, and how many at once.
    pub(super) floor: (f64, f64),
    /// The numbers of the cluster.
    pub(super) space: Space,
}

pub(super) struct Collector {
    client: Client,
    identities: Store<IdentityState>,
    users: Mutex<Users<Key>>,
    settings: Settings,
    rate: Rate,
    heartbeats: Mutex<Heartbeats>,
    epoch: Instant,
    /// Identities that came since the last look, and when that was.
    made: AtomicU32,
    looked: Mutex<Instant>,
    report: Report,
}

type Due = (NumericIdentity, Key, Arc<IdentityState>, Judgement);

impl Collector {
    pub(super) fn new(
        client: Client,
        identities: Store<IdentityState>,
        settings: Settings,
        report: Report,
    ) -> Self {
        let epoch = Instant::now();
        Self {
            client,
            identities,
            users: Mutex::default(),
            settings,
            rate: Rate::new(settings.floor.0, settings.floor.1),
            heartbeats: Mutex::new(Heartbeats::new(settings.timeout)),
            epoch,
            made: AtomicU32::new(0),
            looked: Mutex::new(epoch),
            report,
        }
    }

    /// An identity was written, or is gone.
    pub(super) fn heard(&self, name: &str, existed: bool, exists: bool) {
        let Some(identity) = number(name) else { return };
        let now = self.epoch.elapsed();
        let mut heartbeats = self.heartbeats();
        if exists {
            heartbeats.beat(identity, now);
        } else {
            heartbeats.forget(identity);
        }
        if exists && !existed {
            self.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An endpoint or a slice says which identities it uses; none if it is gone.
    pub(super) fn used(&self, who: Key, identities: Vec<NumericIdentity>) {
        self.users().tell(who, identities);
    }

    pub(super) async fn run(&self) -> Next {
        let (start, total) = (Instant::now(), self.identities.len());
        let mut writes = self.judge();
        let due = writes.iter().filter(|(.., judgement)| *judgement == Judgement::Delete).count();
        // Marks go on and off first: they take no token, and those that wait for theirs can go the next time.
        writes
            .sort_by_key(|(identity, .., judgement)| (*judgement == Judgement::Delete, *identity));
        let (mut deleted, mut failures) = (0, 0);
        let load = self.pace(self.load(due));
        let done = futures::stream::iter(writes).map(|due: Due| async move {
            let done = self.perform(&due).await;
            (due.3 == Judgement::Delete, done)
        });
        let mut done = done.buffer_unordered(PARALLEL);
        let (mut left, mut looked) = (due, Instant::now());
        while let Some((deletes, done)) = done.next().await {
            left -= usize::from(deletes);
            match done {
                Ok(done) => deleted += usize::from(done && deletes),
                // One identity's trouble is no other's.
                Err(failure) => {
                    warn!(%failure, "identity left for the next run");
                    failures += 1;
                }
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                self.pace(self.load(left));
            }
        }
        self.heartbeats().purge(self.epoch.elapsed());
        self.report.ran(total.saturating_sub(deleted), deleted, failures == 0, start.elapsed());
        let identities = self.identities.all();
        let labels = identities.into_iter().map(|(_, state)| Arc::clone(&state.labels)).collect();
        self.report.advise(load, labels).await;
        Next::After(load.interval(self.settings.interval))
    }

    /// What there is to write.
    fn judge(&self) -> Vec<Due> {
        let now = self.epoch.elapsed();
        let (users, mut heartbeats) = (self.users(), self.heartbeats());
        let judge = |(key, state): (Key, Arc<IdentityState>)| {
            let identity = number(&key.name)?;
            let used = users.use_it(identity);
            let judgement = heartbeats.judge(identity, state.marked, used, now);
            Some((identity, key, state, judgement)).filter(|_| judgement != Judgement::Keep)
        };
        self.identities.all().into_iter().filter_map(judge).collect()
    }

    fn load(&self, due: usize) -> Load {
        let range = self.settings.space.range();
        let taken = self.identities.len();
        let (mut looked, now) =
            (self.looked.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let seconds = now.duration_since(*looked).as_secs_f64().max(1.0);
        *looked = now;
        Load {
            size: range.end() - range.start() + 1,
            taken: u32::try_from(taken).unwrap_or(u32::MAX),
            due: u32::try_from(due).unwrap_or(u32::MAX),
            made: f64::from(self.made.swap(0, Ordering::Relaxed)) / seconds,
        }
    }

    fn pace(&self, load: Load) -> Load {
        let (floor, burst) = self.settings.floor;
        let rate = load.deletions(floor);
        let (before, _) = self.rate.limits();
        if (rate - before).abs() > f64::EPSILON {
            info!(?load, from = before, to = rate, "identities are deleted at another rate");
            self.rate.set(rate, burst);
        }
        load
    }

    /// Whether the write was done; not if the identity is another by now, was changed, or came into use.
    async fn perform(&self, (identity, key, state, judgement): &Due) -> Result<bool, Failure> {
        let (api, name): (Api<CiliumIdentity>, _) = (Api::all(self.client.clone()), &*key.name);
        let result = match judgement {
            Judgement::Keep => return Ok(false),
            Judgement::Unmark => annotate(&api, name, state, Value::Null).await,
            Judgement::Mark => annotate(&api, name, state, json!(now())).await,
            Judgement::Delete => {
                self.rate.write().await;
                // That may have taken long.
                if self.users().use_it(*identity)
                    || self.identities.get(key).as_ref() != Some(state)
                {
                    return Ok(false);
                }
                let guard = Preconditions {
                    uid: Some(state.revision.uid()),
                    resource_version: Some(state.revision.version()),
                };
                let params = DeleteParams::default().preconditions(guard);
                let deleted = api.delete(name, &params).await;
                deleted.map(drop).map_err(Failure::of("delete", KIND, name))
            }
        };
        match result {
            Ok(()) => {
                info!(identity = name, ?judgement, "identity");
                Ok(true)
            }
            Err(failure) if failure.code() == Some(NOT_FOUND) => Ok(false),
            // Somebody is about to use it.
            Err(failure) if failure.code() == Some(CONFLICT) => {
                warn!(%failure, "identity was changed by another");
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    fn heartbeats(&self) -> MutexGuard<'_, Heartbeats> {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> MutexGuard<'_, Users<Key>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn annotate(
    api: &Api<CiliumIdentity>,
    name: &str,
    state: &IdentityState,
    mark: Value,
) -> Result<(), Failure> {
    let patch = json!({ "metadata": {
        "uid": state.revision.uid(),
        "resourceVersion": state.revision.version(),
        "annotations": { MARK: mark },
    } });
    let patched = api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(Failure::of("mark", KIND, name))
}

/// As Cilium writes it: RFC 3339 with nanoseconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

fn number(name: &str) -> Option<NumericIdentity> {
    name.parse().ok().map(NumericIdentity)
}
