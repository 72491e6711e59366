//! The cluster's identities as this node knows them, and a number for every label set it needs.
//!
//! Only the numbers and labels are kept: see [`cilia_identity::Index`] for the bytes.

mod allocate;
mod backend;
mod error;
mod grace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Fixed, Ledger, Record, Space};
use cilia_runtime::turns::Turns;
use cilia_runtime::watch::Event;
use futures::StreamExt as _;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use backend::Backend;
pub use error::Error;
use grace::Grace;

/// The annotation by which the operator marks identities that nobody uses.
const HEARTBEAT: &str = "io.cilium.heartbeat";

/// Who makes identities (`identity-management-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Management {
    /// Agents do (`agent`, `both`).
    Agent,
    /// The operator does; agents wait for it (`operator`).
    Operator,
}

/// Changes that are remembered for those who follow them.
const REMEMBERED: usize = 4096;

/// How this node uses identities.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cluster's numbers.
    pub space: Space,
    /// Who makes identities.
    pub management: Management,
    /// Numbers that some label sets have in every cluster.
    pub well_known: Vec<(NumericIdentity, Labels)>,
    /// `identity-allocation-timeout`: how long one attempt to get an identity may take.
    pub timeout: Duration,
    /// `identity-change-grace-period`: the most that an endpoint waits before it takes on an identity that the
    /// cluster has only just got.
    pub grace: Duration,
}

/// All identities; clones share them.
#[derive(Debug, Clone)]
pub struct Identities(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api: Api<CiliumIdentity>,
    management: Management,
    timeout: Duration,
    /// Where identities are, if not in Kubernetes alone.
    backend: OnceLock<Backend>,
    fixed: Vec<(NumericIdentity, Arc<Labels>)>,
    state: Mutex<State>,
    version: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    turns: Turns<Labels>,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    grace: Grace,
    /// The numbers that changed last, the version after each growing by one.
    changes: VecDeque<NumericIdentity>,
    /// How many changes there were.
    version: u64,
    /// What was said when no number was left, and when.
    advice: Option<(Instant, String)>,
    /// Made when somebody asks, thrown away when something changes.
    snapshot: Option<Arc<BTreeMap<NumericIdentity, Arc<Labels>>>>,
}

impl Identities {
    /// No identities yet, but the reserved ones.
    #[cfg(test)]
    pub fn new(client: Client, space: Space, management: Management) -> Self {
        let (well_known, grace, timeout) = (Vec::new(), Duration::ZERO, Duration::from_mins(2));
        Self::with_settings(client, Settings { space, management, well_known, timeout, grace })
    }

    /// No identities yet, but those that every cluster has.
    pub fn with_settings(client: Client, settings: Settings) -> Self {
        let reserved = NumericIdentity::RESERVED.iter();
        let reserved =
            reserved.filter_map(|(number, _)| Some((*number, number.reserved_labels()?)));
        let fixed = reserved.chain(settings.well_known);
        Self(Arc::new(Shared {
            api: Api::all(client),
            management: settings.management,
            timeout: settings.timeout,
            backend: OnceLock::new(),
            fixed: fixed.map(|(number, labels)| (number, Arc::new(labels))).collect(),
            state: Mutex::new(State {
                ledger: Ledger::new(settings.space),
                grace: Grace::new(settings.grace),
                changes: VecDeque::new(),
                version: 0,
                advice: None,
                snapshot: None,
            }),
            version: watch::Sender::new(0),
            synced: watch::Sender::new(false),
            turns: Turns::default(),
        }))
    }

    /// The labels of a number.
    pub fn labels(&self, number: NumericIdentity) -> Option<Labels> {
        self.shared_labels(number).map(|labels| Labels::clone(&labels))
    }

    fn shared_labels(&self, number: NumericIdentity) -> Option<Arc<Labels>> {
        let fixed = self.0.fixed.iter().find(|(fixed, _)| *fixed == number);
        let fixed = fixed.map(|(_, labels)| labels.clone());
        fixed.or_else(|| Some(Arc::clone(&self.state().ledger.index().get(number)?.labels)))
    }

    /// The number that stands for these labels now.
    pub fn number(&self, labels: &Labels) -> Option<NumericIdentity> {
        self.fixed(labels).or_else(|| self.state().ledger.index().number(labels))
    }

    /// The labels that an endpoint has whose pod and namespace have these: those of a fixed identity, where the pod
    /// names one that there is.
    pub fn of_endpoint(&self, labels: Labels) -> Labels {
        let name = labels.iter().find(|(name, _)| name.key == Fixed::LABEL);
        let wanted = name.map(|(_, name)| Labels::reserved(name));
        let user_s = |number: NumericIdentity| Fixed::NUMBERS.contains(&number.0);
        wanted.filter(|wanted| self.fixed(wanted).is_some_and(user_s)).unwrap_or(labels)
    }

    /// The number that these labels have in every cluster.
    fn fixed(&self, labels: &Labels) -> Option<NumericIdentity> {
        let mut fixed = self.0.fixed.iter();
        fixed.find(|(_, fixed)| **fixed == *labels).map(|(number, _)| *number)
    }

    /// Whether `number` is what these labels should have, with nobody about to delete it.
    pub fn is_current(&self, labels: &Labels, number: NumericIdentity) -> bool {
        if let Some(fixed) = self.fixed(labels) {
            return fixed == number;
        }
        let state = self.state();
        let index = state.ledger.index();
        let marked = index.get(number).is_none_or(|record| record.marked);
        index.number(labels) == Some(number) && !marked
    }

    /// When to ask again whether an endpoint that has another identity may take this one on: every node shall have
    /// it in its policy maps by then. Nothing if it may.
    pub fn grace(&self, number: NumericIdentity) -> Option<Duration> {
        self.state().grace.left(number, Instant::now())
    }

    /// Changes whenever an identity comes, goes or changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Every identity with its labels, the reserved ones too.
    pub fn snapshot(&self) -> Arc<BTreeMap<NumericIdentity, Arc<Labels>>> {
        let mut state = self.state();
        if let Some(snapshot) = &state.snapshot {
            return Arc::clone(snapshot);
        }
        let fixed = self.0.fixed.iter().cloned();
        let index = state.ledger.index();
        let allocated = index.iter().map(|(number, record)| (number, Arc::clone(&record.labels)));
        let snapshot: Arc<BTreeMap<_, _>> = Arc::new(fixed.chain(allocated).collect());
        state.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// What has changed since there were so many changes, and how many there are now: each number with the labels
    /// that it has. Nothing if that is too long ago to be remembered: then all have to be looked at.
    pub fn changes_since(&self, version: Option<u64>) -> (u64, Option<Vec<Changed>>) {
        let state = self.state();
        let now = state.version;
        let missed = version.and_then(|version| usize::try_from(now.checked_sub(version)?).ok());
        let Some(missed) = missed.filter(|missed| *missed <= state.changes.len()) else {
            return (now, None);
        };
        let mut numbers: Vec<_> = state.changes.iter().rev().take(missed).copied().collect();
        drop(state);
        numbers.sort_unstable();
        numbers.dedup();
        let changed = |number| (number, self.shared_labels(number));
        (now, Some(numbers.into_iter().map(changed).collect()))
    }

    /// Returns once every identity that there was at the start is known.
    pub async fn wait_synced(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Watches identities until the token is cancelled.
    pub async fn run(&self, token: CancellationToken) {
        match self.0.backend.get() {
            Some(backend) => self.run_backend(backend, token).await,
            None => self.run_kubernetes(token).await,
        }
    }

    async fn run_kubernetes(&self, token: CancellationToken) {
        let events = cilia_runtime::watch::watch(self.0.api.clone());
        let follow = events.for_each(|event| {
            match event {
                Event::Applied(identity) => self.applied(&identity),
                Event::Deleted(key) => {
                    if let Ok(number) = key.name.parse() {
                        self.deleted(NumericIdentity(number));
                    }
                }
                Event::Synced => self.synced(),
            }
            std::future::ready(())
        });
        tokio::select! {
            () = token.cancelled() => {}
            () = follow => {}
        }
    }

    /// An identity was made or changed, says the watch.
    pub fn applied(&self, identity: &CiliumIdentity) {
        let Some(number) = identity.number() else {
            tracing::warn!(name = ?identity.metadata.name, "ignoring a CiliumIdentity whose name is no number");
            return;
        };
        self.heard(number, record(identity));
    }

    fn heard(&self, number: NumericIdentity, record: Record) {
        let synced = *self.0.synced.borrow();
        let mut state = self.state();
        if synced {
            state.grace.heard(number, Instant::now());
        }
        let changed = state.ledger.heard(number, Some(record));
        self.changed(state, number, changed);
    }

    /// An identity of another cluster is there, or gone.
    pub fn remote(&self, number: NumericIdentity, labels: Option<Arc<Labels>>) {
        match labels {
            Some(labels) => self.heard(number, Record { labels, created: 0, marked: false }),
            None => self.deleted(number),
        }
    }

    /// An identity is gone, says the watch.
    pub fn deleted(&self, number: NumericIdentity) {
        let mut state = self.state();
        state.grace.forget(number);
        let changed = state.ledger.heard(number, None);
        self.changed(state, number, changed);
    }

    /// The API server answers what an identity is, or that there is none.
    fn answered(&self, number: NumericIdentity, identity: Option<&CiliumIdentity>) {
        let mut state = self.state();
        if identity.is_some() {
            state.grace.seen(number, Instant::now());
        }
        let changed = state.ledger.answered(number, identity.map(record));
        self.changed(state, number, changed);
    }

    /// Everything that there was at the start is known.
    pub fn synced(&self) {
        self.0.synced.send_replace(true);
        self.0.version.send_modify(|version| *version += 1);
    }

    fn changed(&self, mut state: MutexGuard<'_, State>, number: NumericIdentity, changed: bool) {
        if changed {
            state.snapshot = None;
            state.version += 1;
            state.changes.push_back(number);
            if state.changes.len() > REMEMBERED {
                state.changes.pop_front();
            }
            drop(state);
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts of an identity.
fn record(identity: &CiliumIdentity) -> Record {
    let metadata = &identity.metadata;
    let created = metadata.creation_timestamp.as_ref();
    let annotations = metadata.annotations.as_ref();
    Record {
        labels: Arc::new(identity.labels()),
        created: created.map_or(0, |time| time.0.as_second()),
        marked: annotations.is_some_and(|annotations| annotations.contains_key(HEARTBEAT)),
    }
}

/// A number, and the labels that it has now; none if there is no such identity any more.
pub type Changed = (NumericIdentity, Option<Arc<Labels>>);

#[cfg(test)]
#[path = "identity/tests.rs"]
mod tests;
