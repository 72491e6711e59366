//! The cluster's identities as this node knows them, and a number for every label set it needs.
//!
//! Only the numbers and labels are kept: see [`cilia_identity::Index`] for the bytes.

mod allocate;
mod error;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Index, Pool, Record, Space};
use cilia_runtime::watch::Event;
use futures::StreamExt as _;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::turns::Turns;

pub use error::Error;

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

/// All identities; clones share them.
#[derive(Debug, Clone)]
pub struct Identities(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api: Api<CiliumIdentity>,
    management: Management,
    state: Mutex<State>,
    version: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    turns: Turns<Labels>,
}

#[derive(Debug)]
struct State {
    index: Index,
    pool: Pool,
    /// Made when somebody asks, thrown away when something changes.
    snapshot: Option<Arc<BTreeMap<NumericIdentity, Arc<Labels>>>>,
}

impl Identities {
    /// No identities yet, but the reserved ones.
    pub fn new(client: Client, space: Space, management: Management) -> Self {
        Self(Arc::new(Shared {
            api: Api::all(client),
            management,
            state: Mutex::new(State {
                index: Index::default(),
                pool: Pool::new(space),
                snapshot: None,
            }),
            version: watch::Sender::new(0),
            synced: watch::Sender::new(false),
            turns: Turns::default(),
        }))
    }

    /// The labels of a number.
    pub fn labels(&self, number: NumericIdentity) -> Option<Labels> {
        let known = self.state().index.get(number).map(|record| Labels::clone(&record.labels));
        known.or_else(|| number.reserved_labels())
    }

    /// The number that stands for these labels now.
    pub fn number(&self, labels: &Labels) -> Option<NumericIdentity> {
        self.state().index.number(labels)
    }

    /// Whether `number` is what these labels should have, with nobody about to delete it.
    pub fn is_current(&self, labels: &Labels, number: NumericIdentity) -> bool {
        if reserved(labels) == Some(number) {
            return true;
        }
        let state = self.state();
        let marked = state.index.get(number).is_none_or(|record| record.marked);
        state.index.number(labels) == Some(number) && !marked
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
        let reserved = NumericIdentity::RESERVED.iter();
        let reserved =
            reserved.filter_map(|(number, _)| Some((*number, Arc::new(number.reserved_labels()?))));
        let allocated =
            state.index.iter().map(|(number, record)| (number, Arc::clone(&record.labels)));
        let snapshot: Arc<BTreeMap<_, _>> = Arc::new(reserved.chain(allocated).collect());
        state.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }

    /// Returns once every identity that there was at the start is known.
    pub async fn wait_synced(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Watches identities until the token is cancelled.
    pub async fn run(&self, token: CancellationToken) {
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

    /// An identity was made or changed.
    pub fn applied(&self, identity: &CiliumIdentity) {
        let Some(number) = identity.number() else {
            tracing::warn!(name = ?identity.metadata.name, "ignoring a CiliumIdentity whose name is no number");
            return;
        };
        let annotations = identity.metadata.annotations.as_ref();
        let record = Record {
            labels: Arc::new(identity.labels()),
            created: identity
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(0, |time| time.0.as_second()),
            marked: annotations.is_some_and(|annotations| annotations.contains_key(HEARTBEAT)),
        };
        let mut state = self.state();
        state.pool.take(number);
        let changed = state.index.upsert(number, record);
        self.changed(state, changed);
    }

    /// An identity is gone.
    pub fn deleted(&self, number: NumericIdentity) {
        let mut state = self.state();
        state.pool.release(number);
        let changed = state.index.remove(number);
        self.changed(state, changed);
    }

    /// Everything that there was at the start is known.
    pub fn synced(&self) {
        self.0.synced.send_replace(true);
        self.0.version.send_modify(|version| *version += 1);
    }

    fn changed(&self, mut state: MutexGuard<'_, State>, changed: bool) {
        if changed {
            state.snapshot = None;
            drop(state);
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a reserved label set, such as `reserved:init`.
fn reserved(labels: &Labels) -> Option<NumericIdentity> {
    labels.iter().find(|(name, _)| name.source == cilia_crds::labels::SOURCE_RESERVED)?;
    let of =
        |(number, _): &&(NumericIdentity, &str)| number.reserved_labels().as_ref() == Some(labels);
    NumericIdentity::RESERVED.iter().find(of).map(|(number, _)| *number)
}

#[cfg(test)]
#[path = "identity/tests.rs"]
mod tests;
