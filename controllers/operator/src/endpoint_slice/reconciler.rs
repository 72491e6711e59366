//! Carries slices between the core, the lanes and the API server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_runtime::lanes::{Job, Lanes, Next, Retry};
use cilia_slices::{Event, Millis, Outcome, Slices, Text, Urgency};
use kube::Client;
use tokio::time::Instant;
use tracing::debug;

use super::budget::Budget;
use super::metrics::{Metrics, Sync};
use super::store::{Store, seen};
use super::{FAST, STANDARD};
use crate::failure::{CONFLICT, Failure, NOT_FOUND};

/// After a conflict the slice has been read again, and is written from what it is now.
const AFTER_CONFLICT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Reconciler {
    slices: Mutex<Slices>,
    store: Store,
    lanes: Lanes<Text>,
    metrics: Metrics,
    budget: Arc<Budget>,
    epoch: Instant,
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        max: usize,
        lanes: Lanes<Text>,
        metrics: Metrics,
        budget: Arc<Budget>,
    ) -> Self {
        Self {
            slices: Mutex::new(Slices::new(max, rand::random())),
            store: Store::new(client),
            lanes,
            metrics,
            budget,
            epoch: Instant::now(),
        }
    }

    /// Tells the core something, and queues what has come to be wrong.
    pub(super) fn tell<T>(&self, what: impl FnOnce(&mut Slices, Millis) -> T) -> T {
        self.tell_apart_from(None, what)
    }

    /// Does not queue one slice: its worker does, when its time comes.
    fn tell_apart_from<T>(
        &self,
        apart: Option<&Text>,
        what: impl FnOnce(&mut Slices, Millis) -> T,
    ) -> T {
        let (told, changed) = {
            let mut slices = self.slices();
            let told = what(&mut slices, self.now());
            (told, slices.take_changed())
        };
        // The lanes ask for ranks while they are locked, so the core must not be locked here.
        for changed in changed.into_iter().filter(|changed| Some(&changed.slice) != apart) {
            let lane = if changed.priority { FAST } else { STANDARD };
            self.lanes.add(lane, changed.slice);
        }
        told
    }

    /// How urgent it is to write a slice.
    pub(super) fn urgency(&self, slice: &Text) -> Option<Urgency> {
        self.slices().urgency(slice, self.now())
    }

    /// Whether nothing is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.is_idle()
    }

    /// Writes a slice, if it needs to be written.
    pub(super) async fn reconcile(&self, job: &Job<Text>) -> Result<Next, Failure> {
        let Some(write) = self.slices().plan(&job.key) else { return Ok(Next::Done) };
        self.metrics.planned(&write, job.lane, job.waited);
        job.write().await;
        let sent = Instant::now();
        let (outcome, failure) = match self.store.write(&write).await {
            Ok(outcome) => (outcome, None),
            Err((outcome, failure)) => (outcome, Some(failure)),
        };
        self.budget.answered(sent.elapsed(), failure.as_ref());
        let unknown = outcome == Outcome::Unknown;
        let Some(failure) = failure else {
            self.tell(|slices, _| slices.settle(&write.slice, outcome));
            debug!(slice = %write.slice, inserted = write.inserted, removed = write.removed, "written");
            self.metrics.ended(Sync::Success);
            return Ok(Next::Done);
        };
        // Or the retry would not wait for its time.
        let apart = Some(&write.slice);
        self.tell_apart_from(apart, |slices, _| slices.settle(&write.slice, outcome));
        let last = job.failures >= Retry::default().max;
        self.metrics.ended(if last { Sync::Fatal } else { Sync::Transient });
        if unknown {
            self.read_again(&write.slice).await?;
        }
        if matches!(failure.code(), Some(CONFLICT | NOT_FOUND)) {
            debug!(slice = %write.slice, %failure, "the slice was changed by another");
            return Ok(Next::After(AFTER_CONFLICT));
        }
        Err(failure)
    }

    async fn read_again(&self, name: &Text) -> Result<(), Failure> {
        let slice = self.store.read(name).await?;
        self.tell_apart_from(Some(name), |slices, now| match &slice {
            Some(slice) => slices.apply(seen(slice), now),
            None => slices.apply(Event::SliceGone { name, uid: None }, now),
        });
        Ok(())
    }

    fn slices(&self) -> MutexGuard<'_, Slices> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.epoch.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }
}
