//! Work on the kvstore that comes round again and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cilia_identity::Space;
use cilia_kvstore::gc::{self, Locks, Report, Unused};
use cilia_kvstore::{Client, Event, keys, value};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Rate, Retry};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{double_write, silent};
use crate::identity_gc::Collection;
use crate::wiring::Context;

const HEARTBEAT: Duration = Duration::from_mins(1);
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(25);
const LOCKS: Duration = Duration::from_secs(25);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    /// Write the heartbeat, by which readers see that writes go through.
    Heartbeat,
    /// Break locks that are held for too long.
    Locks,
    /// Delete identities that nobody uses.
    Identities,
    /// Compare the identities of Kubernetes and the kvstore.
    DoubleWrite,
}

struct Worker {
    context: Context,
    client: Client,
    rate: Rate,
    gc_interval: Duration,
    locks: Mutex<Locks>,
    unused: Mutex<Unused>,
    collection: Collection,
    double_write: double_write::Reporter,
}

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let config = &context.config;
    let mode = config.string("identity-allocation-mode");
    let gc_interval = config.duration("identity-gc-interval");
    let Ok((per_second, burst)) = crate::identity_gc::rate(config) else { return };
    let collects = mode != "crd" && !gc_interval.is_zero();
    let double = mode.starts_with("doublewrite");
    let worker = Arc::new(Worker {
        client: client.clone(),
        rate: Rate::new(per_second, burst),
        gc_interval,
        locks: Mutex::default(),
        unused: Mutex::default(),
        collection: context.collections.of("kvstore", collects),
        double_write: double_write::Reporter::new(context, double),
        context: context.clone(),
    });
    let retry = Retry { cap: Duration::from_secs(10), max: u32::MAX, ..Retry::default() };
    let lanes = vec![Lane::new("kvstore-tasks")];
    let lanes: Lanes<Task> = Lanes::new(lanes, retry, None, &context.workqueues);
    lanes.add(0, Task::Heartbeat);
    lanes.add(0, Task::Locks);
    if collects {
        lanes.add(0, Task::Identities);
    }
    if double {
        lanes.add(0, Task::DoubleWrite);
    }
    let handle = move |job: Job<Task>| -> BoxFuture<'static, anyhow::Result<Next>> {
        let worker = Arc::clone(&worker);
        async move { worker.perform(job.key).await }.boxed()
    };
    let mut heartbeat = client.watch(keys::HEARTBEAT);
    let repair = async {
        while let Some(events) = heartbeat.next().await {
            if events.iter().any(|event| matches!(event, Event::Deleted(_))) {
                lanes.add(0, Task::Heartbeat);
            }
        }
    };
    tokio::select! {
        () = lanes.run(4, &context.stop, handle) => {}
        () = repair => {}
    }
}

impl Worker {
    async fn perform(&self, task: Task) -> anyhow::Result<Next> {
        match task {
            Task::Heartbeat => {
                let write = async {
                    // Read first: a heartbeat that is not on our lease ends with another's.
                    self.client.put_if_different(keys::HEARTBEAT, &value::now(), true).await
                };
                tokio::time::timeout(HEARTBEAT_WITHIN, write)
                    .await
                    .map_err(|_| anyhow::anyhow!("write heartbeat: timed out"))??;
                Ok(Next::After(HEARTBEAT))
            }
            Task::Locks => {
                let before = lock(&self.locks).clone();
                let (_, next) =
                    tokio::time::timeout(LOCKS, gc::locks(&self.client, &before)).await??;
                *lock(&self.locks) = next;
                Ok(Next::After(LOCKS))
            }
            Task::Identities => self.collect().await,
            Task::DoubleWrite => {
                self.double_write.report(&self.context, &self.client).await?;
                let interval =
                    self.context.config.duration("double-write-metric-reporter-interval");
                Ok(Next::After(interval.max(Duration::from_secs(1))))
            }
        }
    }

    async fn collect(&self) -> anyhow::Result<Next> {
        let start = Instant::now();
        let space = crate::identity::space(&self.context.config)?;
        let before = lock(&self.unused).clone();
        let report = self.run_collection(space, &before).await;
        let well = report.as_ref().is_ok_and(|report| report.failures == 0);
        self.context.metrics.group_ran("kvstore-identity-gc", well);
        self.collection.ran(well, start.elapsed());
        let report = report?;
        self.collection.left(report.alive, report.deleted.len());
        *lock(&self.unused) = report.unused;
        Ok(Next::After(self.gc_interval.saturating_sub(start.elapsed())))
    }

    async fn run_collection(&self, space: Space, before: &Unused) -> anyhow::Result<Report> {
        let mut found = gc::look(&self.client, space, before).await?;
        if !found.candidates().is_empty() {
            found.spare(&silent::in_use(&self.context, &self.client).await?);
        }
        Ok(gc::collect(&self.client, found, &self.rate).await)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
