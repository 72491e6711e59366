//! Carries slices between the core, the lanes and the API server.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_runtime::lanes::{self, Job, Lanes, Next, Retry};
use cilia_slices::{Action, Changed, Event, Millis, Outcome, Slices, Text, Turn, Urgency};
use kube::Client;
use tokio::time::Instant;
use tracing::debug;

use super::budget::Budget;
use super::metrics::{Metrics, Sync};
use super::store::{Store, seen};
use super::{FAST, STANDARD};
use crate::conflicts::Conflicts;
use crate::failure::{Failure, NOT_FOUND};

/// A slice that has been read again, and is written from what it is now.
const AFTER_READ: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Reconciler {
    slices: Mutex<Slices>,
    store: Store,
    lanes: Lanes<Text>,
    metrics: Metrics,
    budget: Arc<Budget>,
    conflicts: Conflicts<Text>,
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
            conflicts: Conflicts::default(),
            epoch: Instant::now(),
        }
    }

    /// The cluster has this many nodes now, on which the limits depend.
    pub(super) fn nodes(&self, nodes: usize) {
        self.budget.nodes(nodes);
        self.lanes.set_apart(STANDARD, self.budget.apart());
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
        let (told, changed, priorities) = {
            let mut slices = self.slices();
            let told = what(&mut slices, self.now());
            (told, slices.take_changed(), slices.has_priorities())
        };
        // The lanes ask whose turn it is while they are locked, so the core must not be locked here.
        let reserve = if priorities { self.budget.reserve() } else { 0.0 };
        self.lanes.set_reserve(STANDARD, reserve);
        self.queue(changed.into_iter().filter(|changed| Some(&changed.slice) != apart));
        told
    }

    fn queue(&self, changed: impl Iterator<Item = Changed>) {
        for Changed { slice, priority } in changed {
            self.lanes.add(if priority { FAST } else { STANDARD }, slice);
        }
    }

    /// Begins to write, and has every slice looked at.
    pub(super) fn start(&self) {
        let all = self.tell(|slices, _| {
            slices.start();
            slices.all()
        });
        self.queue(all.into_iter());
    }

    /// Whether it is a slice's turn. What needs no write goes last.
    pub(super) fn turn(&self, slice: &Text) -> lanes::Turn<Option<Urgency>> {
        match self.slices().turn(slice, self.now(), self.budget.per_second()) {
            None => lanes::Turn::Now(None),
            Some(Turn::Now(urgency)) => lanes::Turn::Now(Some(urgency)),
            Some(Turn::Later(millis)) => lanes::Turn::In(Duration::from_millis(millis)),
        }
    }

    /// Has slices looked at that may be gone without an event.
    pub(super) fn doubt(&self, doubtful: &HashSet<String>) {
        self.tell(|slices, _| slices.relisted(|name| !doubtful.contains(name)));
    }

    /// Whether nothing is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.is_idle()
    }

    /// Writes a slice, if it needs to be written.
    pub(super) async fn reconcile(&self, job: &Job<Text>) -> Result<Next, Failure> {
        let Some(write) = self.slices().plan(&job.key) else {
            let (mapped, exists) = self.slices().at_rest(&job.key);
            self.metrics.at_rest(mapped, exists, job.lane, job.waited);
            // A conflict before was with somebody who made it right.
            return self.conflicts.next(&job.key, Ok(()));
        };
        if write.action == Action::Read {
            let apart = Some(&write.slice);
            self.tell_apart_from(apart, |slices, _| slices.abandon(&write.slice));
            self.read_again(&write.slice).await?;
            return Ok(Next::After(AFTER_READ));
        }
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
            let (inserted, removed, took) = (write.inserted, write.removed, sent.elapsed());
            debug!(slice = %write.slice, inserted, removed, ?took, "written");
            self.metrics.ended(Sync::Success);
            return self.conflicts.next(&write.slice, Ok(()));
        };
        // Or the retry would not wait for its time.
        let apart = Some(&write.slice);
        self.tell_apart_from(apart, |slices, _| slices.settle(&write.slice, outcome));
        let last = job.failures >= Retry::default().max;
        self.metrics.ended(if last { Sync::Fatal } else { Sync::Transient });
        if unknown {
            self.read_again(&write.slice).await?;
        }
        if failure.code() == Some(NOT_FOUND) {
            debug!(slice = %write.slice, %failure, "the slice is gone");
            self.conflicts.next(&write.slice, Ok(()))?;
            return Ok(Next::After(AFTER_READ));
        }
        self.conflicts.next(&write.slice, Err(failure))
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
