//! Keeps keys of the kvstore equal to a table of desired entries.
//!
//! Whoever owns a key says what it should be ([`Mirror::set`]); everything else follows from comparing
//! that with what is known to be there: the first write, a change, a lost lease, a deletion by somebody
//! else, a restart that finds its former keys on a lease that will end. A key that somebody else has
//! written meanwhile is theirs: it is not deleted, nor written over where the own one was lost before.
//! About 250 bytes an entry beside key and value.

mod table;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cilia_runtime::lanes::{Lane, Lanes, Next, Retry, Workqueues};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::client::Client;
use crate::keys::scope;
use crate::stand_in::is_stand_in;
use crate::txn::Txn;
use crate::watch::{Event, Watch};
pub use table::Entry;
use table::{Known, Step, Table};

/// How many keys are written at once, within the client's rate.
const WORKERS: usize = 16;

/// What somebody who watches the keys tells a [`Mirror`].
pub type Seen = Event;

/// Keys that are kept as they should be; clones share them.
#[derive(Debug, Clone)]
pub struct Mirror(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: Client,
    table: Mutex<Table>,
    lanes: Lanes<String>,
    /// What metrics call its keys; all are of one kind.
    scope: OnceLock<String>,
    /// How many keys are not as they should be.
    pending: watch::Sender<usize>,
    /// How often what is there is read, against writes that nobody saw.
    resync: Duration,
}

impl Mirror {
    /// Keeps nothing yet. `queue` is its name in `workqueue_*` metrics.
    pub fn new(
        client: Client,
        queue: &'static str,
        resync: Duration,
        workqueues: &Workqueues,
    ) -> Self {
        let retry = Retry {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(10),
            max: u32::MAX,
            ..Retry::default()
        };
        let lanes = Lanes::new(vec![Lane::new(queue)], retry, None, workqueues);
        let (table, pending) = (Mutex::default(), watch::Sender::new(0));
        let scope = OnceLock::new();
        Self(Arc::new(Shared { client, table, lanes, scope, pending, resync }))
    }

    /// The key should have this value, on this process's lease.
    pub fn set(&self, key: String, value: Vec<u8>) {
        self.want(key, Some(Entry { value, leased: true }));
    }

    /// The key should exist; with this value, if it is not there. It stays when it is forgotten.
    pub fn ensure(&self, key: String, value: Vec<u8>) {
        self.want(key, Some(Entry { value, leased: false }));
    }

    /// The key should not be there; nothing happens to a key that is not ours.
    pub fn remove(&self, key: &str) {
        self.want(key.into(), None);
    }

    /// The key is not ours to look after any more; it stays as it is.
    pub fn forget(&self, key: &str) {
        self.table().forget(key);
        self.0.client.release_lease(key);
        self.count();
    }

    /// The owner has written the key itself, together with something else.
    pub fn wrote(&self, key: &str, entry: Entry, lease: i64, revision: i64) {
        self.of_kind(key);
        let value = entry.value.clone();
        let mut table = self.table();
        table.want(key, Some(entry));
        table.wrote(key, Known { value, lease, revision });
        let settled = table.step(key, |lease| self.0.client.owns(key, lease)) == Step::Nothing;
        drop(table);
        if !settled {
            self.0.lanes.add(0, key.into());
        }
        self.count();
    }

    /// The key may have been lost: looks what is there.
    pub fn look(&self, key: &str) {
        self.table().doubt(key);
        self.0.lanes.add(0, key.into());
    }

    /// Whether the key is as it should be, as far as is known. A look that is due, as etcd may have lost it
    /// unseen, does not make it less so: without a quorum there would be no looks, and nothing to hold.
    pub fn holds(&self, key: &str) -> bool {
        self.table().holds(key, |lease| self.0.client.owns(key, lease))
    }

    /// Every key that should be there.
    pub fn keys(&self) -> Vec<String> {
        self.table().keys()
    }

    /// Somebody who watches the keys has seen this: repairs what others have deleted.
    pub fn seen(&self, event: &Seen) {
        let key = match event {
            Event::Put(kv) => {
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                if self.table().seen(&key, kv) {
                    self.0.lanes.add(0, key);
                    self.count();
                }
                return;
            }
            Event::Deleted(key) => key,
            Event::Listed | Event::Progress(_) => return,
        };
        if !self.table().vanished(key) {
            return;
        }
        tracing::info!(key, "key was deleted by somebody else, will be written again");
        self.0.lanes.add(0, key.clone());
        self.count();
    }

    /// Repairs what others delete of the keys that `watch` follows, until it ends.
    pub async fn repair(&self, mut watch: Watch) {
        while let Some(events) = watch.next().await {
            for event in &events {
                self.seen(event);
            }
        }
    }

    /// Returns once every key is as it should be.
    pub async fn settled(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    /// Writes until `stop`. To be called once.
    pub async fn run(&self, stop: CancellationToken) {
        let work = self.0.lanes.run(WORKERS, &stop, async |job| {
            let done = self.reconcile(&job.key).await;
            if let (Err(_), Some(scope)) = (&done, self.0.scope.get()) {
                self.0.client.0.sync.failed(scope, &self.0.client.0.cluster);
            }
            done?;
            Ok::<_, Error>(Next::Done)
        });
        let mut lost = self.0.client.lost_leases();
        let mut rewinds = self.0.client.rewinds();
        let follow = async {
            let mut resync = tokio::time::interval(self.0.resync);
            resync.tick().await;
            loop {
                tokio::select! {
                    Ok(()) = lost.changed() => {}
                    Ok(()) = rewinds.changed() => self.table().rewound(),
                    _ = resync.tick() => self.table().look_at_all(),
                }
                for key in self.keys() {
                    if !self.is_settled(&key) {
                        self.0.lanes.add(0, key);
                    }
                }
                self.count();
            }
        };
        tokio::select! {
            () = work => {}
            () = follow => {}
        }
    }

    fn is_settled(&self, key: &str) -> bool {
        self.table().step(key, |lease| self.0.client.owns(key, lease)) == Step::Nothing
    }

    fn want(&self, key: String, entry: Option<Entry>) {
        self.of_kind(&key);
        let news = self.table().want(&key, entry);
        if news {
            self.0.lanes.add(0, key);
            self.count();
        }
    }

    /// All keys are of one kind: the first says which.
    fn of_kind(&self, key: &str) {
        self.0.scope.get_or_init(|| {
            let (scope, inner) = (scope(key), &self.0.client.0);
            inner.sync.completed(&scope, &inner.cluster, "write", false);
            scope
        });
    }

    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let client = &self.0.client;
        let mut read = false;
        loop {
            let (step, rewinds) = {
                let mut table = self.table();
                (table.step(key, |lease| client.owns(key, lease)), table.rewinds())
            };
            let since = if let Step::Replace(_, revision) = step { revision } else { 0 };
            match step {
                Step::Nothing => break,
                Step::Read if read => break,
                Step::Read => {
                    read = true;
                    let present = client.get(key).await?;
                    let known = present.map(|kv| Known {
                        value: kv.value,
                        lease: kv.lease,
                        revision: kv.mod_revision,
                    });
                    self.table().found(key, known);
                }
                Step::Put(value) => {
                    let lease = client.lease_for(key).await?;
                    let txn = Txn::new().put(key, &value, lease);
                    let revision = client.txn("update", key, txn).await?.revision;
                    self.table().wrote(key, Known { value, lease, revision });
                }
                Step::Return(value) | Step::Replace(value, _) => {
                    let lease = client.lease_for(key).await?;
                    let txn = Txn::new().if_unchanged_since(key, since).put(key, &value, lease);
                    let outcome = client.txn("return", key, txn.else_get(key)).await?;
                    if !outcome.done && outcome.read.iter().flatten().next().is_none() {
                        // What stood in for it is gone, too.
                        self.table().found(key, None);
                        continue;
                    }
                    let Some(kv) = outcome.read.into_iter().flatten().next() else {
                        let revision = outcome.revision;
                        self.table().wrote(key, Known { value, lease, revision });
                        continue;
                    };
                    let ours = client.owns(key, kv.lease);
                    if !ours && !is_stand_in(kv.lease) && kv.value != value {
                        tracing::warn!(key, "key was lost, and is somebody else's now");
                    }
                    let known =
                        Known { value: kv.value, lease: kv.lease, revision: kv.mod_revision };
                    self.table().taken(key, known, ours, rewinds);
                }
                Step::Create(value) => {
                    let txn = Txn::new().if_absent(key).put(key, &value, 0).else_get(key);
                    let outcome = client.txn("create", key, txn).await?;
                    let there = outcome.read.into_iter().flatten().next();
                    if there.is_none() {
                        tracing::info!(key, "key written that was missing");
                    }
                    let known = there
                        .map_or(Known { value, lease: 0, revision: outcome.revision }, |kv| {
                            Known { value: kv.value, lease: kv.lease, revision: kv.mod_revision }
                        });
                    self.table().found(key, Some(known));
                }
                Step::Unbind(value, revision) => {
                    let txn = Txn::new().if_unchanged_since(key, revision);
                    let outcome =
                        client.txn("update", key, txn.put(key, &value, 0).else_get(key)).await?;
                    let known = if outcome.done {
                        Some(Known { value, lease: 0, revision: outcome.revision })
                    } else {
                        outcome.read.into_iter().flatten().next().map(|kv| Known {
                            value: kv.value,
                            lease: kv.lease,
                            revision: kv.mod_revision,
                        })
                    };
                    self.table().found(key, known);
                }
                Step::Delete(revision) => {
                    let txn = Txn::new().if_unchanged_since(key, revision).delete(key);
                    let deleted = client.txn("delete", key, txn).await?.done;
                    tracing::debug!(key, deleted, "key given up");
                    if self.table().gone(key, revision) {
                        client.release_lease(key);
                    }
                }
            }
        }
        self.count();
        Ok(())
    }

    fn count(&self) {
        let client = &self.0.client;
        let pending = self.table().pending(|key, lease| client.owns(key, lease));
        if let Some(scope) = self.0.scope.get() {
            let inner = &client.0;
            inner.sync.pending(scope, &inner.cluster, pending);
            // Once everything has been written it stays so.
            if pending == 0 {
                inner.sync.completed(scope, &inner.cluster, "write", true);
            }
        }
        self.0.pending.send_if_modified(|known| std::mem::replace(known, pending) != pending);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
