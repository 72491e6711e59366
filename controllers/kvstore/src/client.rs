//! Writes etcd, and asks it: one rate for everything a process asks, and leases for what it owns.

mod limits;
mod read;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cilia_runtime::lanes::Rate;
use cilia_runtime::metrics::{DEFAULT_BUCKETS, Metrics};
use cilia_runtime::turns::Turns;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Error;
use crate::connection::Connection;
use crate::keys::{range_end, scope};
use crate::lease::Leases;
use crate::messages::{
    Answer, CompactionRequest, DeleteRequest, DeleteResponse, Done, Header, PutRequest,
    PutResponse, TxnResponse,
};
use crate::metrics::{SyncMetrics, action};
use crate::options::Options;
use crate::txn::{Outcomes, Txn, read_of};
use crate::watch::Watch;

pub use limits::Fared;
pub(crate) use limits::OfClusters;

const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";

/// Locks end soon after their holder does.
pub(crate) const LOCK_TTL: Duration = Duration::from_secs(25);
/// The lifetime of what a process owns, where no flag says otherwise.
const LEASE_TTL: Duration = Duration::from_mins(15);

type Labels = [(&'static str, String); 4];
type EventLabels = [(&'static str, String); 2];
/// Seconds that events wait for their reader.
const QUEUE_BUCKETS: [f64; 11] =
    [0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0];

/// How to be a client.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where etcd is, and how much of it to take.
    pub options: Options,
    /// How long what this process owns outlives it.
    pub lease_ttl: Duration,
    /// How long its locks outlive it.
    pub lock_ttl: Duration,
    /// The cluster whose etcd it is, for metrics.
    pub cluster: String,
}

impl Settings {
    /// With Cilium's lifetimes.
    pub fn new(options: Options) -> Self {
        Self { options, lease_ttl: LEASE_TTL, lock_ttl: LOCK_TTL, cluster: String::new() }
    }
}

/// A client of etcd; clones share it. What it keeps alive ends with the last clone.
#[derive(Debug, Clone)]
pub struct Client(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) connection: Arc<Connection>,
    options: Options,
    rate: Rate,
    inflight: Semaphore,
    listener: limits::OfClient,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lock_leases: Arc<Leases>,
    /// Those in this process who want the same lock.
    pub(crate) turns: Turns<String>,
    durations: Family<Labels, Histogram>,
    queued: Family<EventLabels, Histogram>,
    pub(crate) sync: SyncMetrics,
    pub(crate) cluster: String,
    pub(crate) stop: CancellationToken,
    _guard: DropGuard,
}

impl Client {
    /// A client that connects when it is first asked.
    pub fn new(settings: &Settings, metrics: Option<&Metrics>) -> Result<Self, Error> {
        let Settings { options, lease_ttl, lock_ttl, cluster } = settings;
        let connection = Arc::new(Connection::new(options)?);
        let qps = if options.bootstrap_qps > 0.0 { options.bootstrap_qps } else { options.qps };
        let stop = CancellationToken::new();
        let leases = |ttl| Arc::new(Leases::new(Arc::clone(&connection), ttl, stop.clone()));
        let durations: Family<Labels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(DEFAULT_BUCKETS));
        let queued: Family<EventLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(QUEUE_BUCKETS));
        let sync = metrics.map(SyncMetrics::register).unwrap_or_default();
        if let Some(metrics) = metrics {
            let name = "kvstore_operations_duration_seconds";
            let help = "Seconds of operations on the kvstore";
            metrics.register(name, help, durations.clone());
            let help = "Seconds that events of the kvstore waited for their reader";
            metrics.register("kvstore_events_queue_seconds", help, queued.clone());
        }
        Ok(Self(Arc::new(Inner {
            rate: Rate::new(qps, options.qps),
            inflight: Semaphore::new(options.max_inflight),
            listener: limits::OfClient::default(),
            leases: leases(*lease_ttl),
            lock_leases: leases(*lock_ttl),
            turns: Turns::default(),
            durations,
            queued,
            sync,
            cluster: cluster.clone(),
            _guard: stop.clone().drop_guard(),
            stop,
            options: options.clone(),
            connection,
        })))
    }

    /// What is counted; for others who read the same cluster or another.
    pub fn sync_metrics(&self) -> SyncMetrics {
        self.0.sync.clone()
    }

    /// Everything under a prefix of the own cluster has been read, or is about to be.
    pub fn initially_read(&self, prefix: &str, is: bool) {
        self.0.sync.completed(&scope(prefix), &self.0.cluster, "read", is);
    }

    /// Everything has been listed, or is not this client's business: from now on the ordinary rate holds.
    pub fn bootstrapped(&self) {
        self.0.rate.set(self.0.options.qps, self.0.options.qps);
    }

    /// The id of the etcd cluster that answered last; 0 before any has.
    pub fn cluster_id(&self) -> u64 {
        self.0.connection.cluster()
    }

    /// Asks, within the rate.
    pub(crate) async fn ask<Q, R>(
        &self,
        (kind, operation): (&'static str, &'static str),
        object: &str,
        method: &'static str,
        request: &Q,
    ) -> Result<R, Error>
    where
        Q: prost::Message + Clone + 'static,
        R: Answer,
    {
        let at_least = self.0.connection.revision();
        self.ask_since(at_least, (kind, operation), object, method, request).await
    }

    /// The same; the answer must know of `at_least` this revision. 0 for a member's older state.
    async fn ask_since<Q, R>(
        &self,
        at_least: i64,
        (kind, operation): (&'static str, &'static str),
        object: &str,
        method: &'static str,
        request: &Q,
    ) -> Result<R, Error>
    where
        Q: prost::Message + Clone + 'static,
        R: Answer,
    {
        let asked = Instant::now();
        self.0.rate.write().await;
        // The semaphore is never closed.
        let _permit = self.0.inflight.acquire().await.ok();
        let start = Instant::now();
        let answer: Result<R, Error> =
            self.0.connection.ask(operation, object, method, request).await;
        if let Ok(Some(header)) = answer.as_ref().map(Answer::header) {
            self.0.connection.told(header.revision, at_least);
        }
        let labels = [
            ("scope", scope(object)),
            ("kind", kind.to_owned()),
            ("action", action(operation).to_owned()),
            ("outcome", if answer.is_ok() { "success" } else { "fail" }.to_owned()),
        ];
        let took = start.elapsed();
        self.0.durations.get_or_create(&labels).observe(took.as_secs_f64());
        self.fared(start - asked, took, answer.is_ok());
        answer
    }

    /// Events under `prefix` have waited for their reader.
    pub(crate) fn queued(&self, prefix: &str, action: &str, seconds: f64) {
        let labels = [("scope", scope(prefix)), ("action", action.to_owned())];
        self.0.queued.get_or_create(&labels).observe(seconds);
    }

    fn heard(&self, header: Option<&Header>) -> i64 {
        let Some(header) = header else { return 0 };
        self.0.connection.answered_by(header.cluster_id);
        header.revision
    }

    /// Writes a key; on this process's lease, if `leased`. The revision of the write.
    pub async fn put(&self, key: &str, value: &[u8], leased: bool) -> Result<i64, Error> {
        let lease = if leased { self.0.leases.attach(key).await? } else { 0 };
        let request = PutRequest { key: key.into(), value: value.to_vec(), lease };
        let answer = self.ask(("set", "update"), key, PUT, &request).await;
        let answer: PutResponse = self.watch_lease(answer, lease)?;
        Ok(self.heard(answer.header.as_ref()))
    }

    /// Writes a key unless it is there with this value and, if `leased`, on this process's lease;
    /// whether there was something to write.
    pub async fn put_if_different(
        &self,
        key: &str,
        value: &[u8],
        leased: bool,
    ) -> Result<bool, Error> {
        let bound = self.0.leases.of(key);
        let same = |present: &crate::KeyValue| {
            present.value == value && (!leased || bound == Some(present.lease))
        };
        if self.get(key).await?.as_ref().is_some_and(same) {
            return Ok(false);
        }
        self.put(key, value, leased).await?;
        Ok(true)
    }

    /// Writes a key if there is none; whether there was none.
    pub async fn create(&self, key: &str, value: &[u8], leased: bool) -> Result<bool, Error> {
        let lease = if leased { self.0.leases.attach(key).await? } else { 0 };
        let txn = Txn::new().if_absent(key).put(key, value, lease);
        Ok(self.txn("create", key, txn).await?.done)
    }

    /// Deletes a key; whether there was one.
    pub async fn delete(&self, key: &str) -> Result<bool, Error> {
        self.delete_as("delete", key).await
    }

    /// The same, as part of something else.
    pub(crate) async fn delete_as(
        &self,
        operation: &'static str,
        key: &str,
    ) -> Result<bool, Error> {
        let request = DeleteRequest { key: key.into(), range_end: Vec::new() };
        let answer: DeleteResponse = self.ask(("delete", operation), key, DELETE, &request).await?;
        self.heard(answer.header.as_ref());
        self.0.leases.release(key);
        Ok(answer.deleted > 0)
    }

    /// Deletes every key that begins with `prefix`; how many there were.
    pub async fn delete_prefix(&self, prefix: &str) -> Result<i64, Error> {
        let request = DeleteRequest { key: prefix.into(), range_end: range_end(prefix) };
        let answer: DeleteResponse =
            self.ask(("delete", "delete all"), prefix, DELETE, &request).await?;
        self.heard(answer.header.as_ref());
        Ok(answer.deleted)
    }

    /// Runs a transaction that is about `object`.
    pub async fn txn(
        &self,
        operation: &'static str,
        object: &str,
        txn: Txn,
    ) -> Result<Outcomes, Error> {
        let lease = txn.request.success.iter().find_map(|op| match &op.operation {
            Some(crate::messages::Operation::Put(put)) if put.lease != 0 => Some(put.lease),
            _ => None,
        });
        let kind = if operation.starts_with("delete") { "delete" } else { "set" };
        let answer = self.ask((kind, operation), object, TXN, &txn.request).await;
        let answer: TxnResponse = self.watch_lease(answer, lease.unwrap_or_default())?;
        let revision = self.heard(answer.header.as_ref());
        Ok(Outcomes { done: answer.succeeded, revision, read: read_of(answer.responses) })
    }

    /// The lease that a key will be written on, for [`Txn::put`].
    pub async fn lease_for(&self, key: &str) -> Result<i64, Error> {
        self.0.leases.attach(key).await
    }

    /// The key is this process's no more: its place on the lease is free.
    pub fn release_lease(&self, key: &str) {
        self.0.leases.release(key);
    }

    /// Whether the key hangs on a lease of this process, as far as is known.
    pub fn owns(&self, key: &str, lease: i64) -> bool {
        self.0.leases.of(key) == Some(lease)
    }

    /// Changes when a lease was lost, and with it everything that hung on it.
    pub fn lost_leases(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.leases.subscribe()
    }

    /// Changes when etcd has lost writes: what is known of it is worth nothing then.
    pub(crate) fn rewinds(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.connection.rewinds()
    }

    /// How many leases there are for keys, and for locks.
    pub fn lease_counts(&self) -> (usize, usize) {
        (self.0.leases.count(), self.0.lock_leases.count())
    }

    /// Lists and then watches every key that begins with `prefix`.
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::start(self, prefix)
    }

    /// Forgets the history before `revision`, as etcd does by itself from time to time.
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        let request = CompactionRequest { revision, physical: true };
        let object = revision.to_string();
        let _: Done = self.ask(("set", "compact"), &object, COMPACT, &request).await?;
        Ok(())
    }

    /// A lease that etcd does not know is lost, whoever finds out first.
    fn watch_lease<R>(&self, answer: Result<R, Error>, lease: i64) -> Result<R, Error> {
        if let Err(error) = &answer
            && error.is_lease_lost()
            && lease != 0
        {
            self.0.leases.lost(lease);
            self.0.lock_leases.lost(lease);
        }
        answer
    }
}
