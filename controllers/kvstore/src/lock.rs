//! Locks: the etcd mutex that Cilium uses, `<path>/<lease>`, held by the oldest key of the path.

use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::client::Client;
use crate::txn::Txn;
use crate::{Error, keys};

/// How long a lock is waited for.
const WAIT: Duration = Duration::from_mins(1);
/// Between two looks at who holds it, while a watch would cost more than it tells.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(250);
/// Between two attempts to give it back.
const LAST_RETURN: Duration = Duration::from_secs(2);

/// A lock that is held until it is given back or dropped, or until its lease is lost: writes that
/// need it carry [`Lock::guard`].
#[derive(Debug)]
pub struct Lock {
    client: Client,
    path: String,
    key: String,
    /// The revision at which the key was made: who holds the lock has the lowest.
    created: i64,
    /// The store's revision when the lock was had.
    pub revision: i64,
    /// Whether the key may be there.
    held: bool,
    /// Until the key is gone nobody else in this process takes the lock: it would be the same key.
    turn: Option<OwnedMutexGuard<()>>,
}

impl Client {
    /// Waits for the lock of this path, at most a minute.
    pub async fn lock(&self, path: &str) -> Result<Lock, Error> {
        self.lock_within(path, WAIT).await
    }

    /// The same, at most `wait`.
    pub async fn lock_within(&self, path: &str, wait: Duration) -> Result<Lock, Error> {
        self.take_lock(path, wait, true).await
    }

    /// Takes and gives back the lock of a path that nobody else uses: there is a quorum. What a failure
    /// leaves is taken over by the next time.
    pub(crate) async fn prove_quorum(&self, path: &str) -> Result<(), Error> {
        self.take_lock(path, WAIT, false).await?.unlock().await
    }

    /// A failure may leave the lock's key behind; whether it is `cleared` away then.
    async fn take_lock(&self, path: &str, wait: Duration, cleared: bool) -> Result<Lock, Error> {
        let deadline = Instant::now() + wait;
        let timed_out = |holder: String| Error::LockTimeout {
            path: path.into(),
            holder,
            seconds: wait.as_secs(),
        };
        let turn = tokio::time::timeout_at(deadline, self.0.turns.take(path.to_owned()))
            .await
            .map_err(|_| timed_out("this process".into()))?;
        let lease = self.0.lock_leases.attach(path).await?;
        let key = format!("{path}/{lease:x}");
        let txn = Txn::new().if_absent(&key).put(&key, b"", lease).get(&key).else_get(&key);
        let mut lock = Lock {
            client: self.clone(),
            path: path.into(),
            created: 0,
            key,
            revision: 0,
            held: cleared,
            turn: Some(turn),
        };
        let outcome = self.txn("lock", path, txn).await;
        let outcome = outcome.inspect_err(|error| lock.held &= !error.is_refusal())?;
        let created = outcome.read.into_iter().flatten().next().map(|kv| kv.create_revision);
        lock.created = created.ok_or_else(|| Error::LockLost(path.into()))?;
        (lock.revision, lock.held) = (outcome.revision, true);
        let mut pause = FIRST_LOOK;
        loop {
            let Some(holder) = lock.before().await? else { return Ok(lock) };
            if Instant::now() + pause > deadline {
                lock.unlock().await?;
                return Err(timed_out(holder));
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LAST_LOOK);
        }
    }
}

impl Lock {
    /// The key of the one who has the lock before this one; `None` once it is ours.
    async fn before(&mut self) -> Result<Option<String>, Error> {
        let (present, revision) = self.client.list(&format!("{}/", self.path)).await?;
        let mut mine = false;
        let mut first: Option<(i64, String)> = None;
        for kv in present {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if keys::lock_path(&key) != self.path {
                // Another path that begins alike.
                continue;
            }
            mine |= key == self.key && kv.create_revision == self.created;
            if first.as_ref().is_none_or(|(created, _)| kv.create_revision < *created) {
                first = Some((kv.create_revision, key));
            }
        }
        if !mine {
            return Err(Error::LockLost(self.path.clone()));
        }
        self.revision = revision;
        Ok(first.filter(|(created, _)| *created != self.created).map(|(_, key)| key))
    }

    /// Adds the condition that the lock is still held.
    #[must_use]
    pub fn guard(&self, txn: Txn) -> Txn {
        txn.if_created_at(&self.key, self.created)
    }

    /// Errors if the lock is lost.
    pub async fn check(&self) -> Result<(), Error> {
        let outcome = self.client.txn("check lock", &self.path, self.guard(Txn::new())).await?;
        if outcome.done { Ok(()) } else { Err(Error::LockLost(self.path.clone())) }
    }

    /// The key that holds it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Gives the lock back.
    pub async fn unlock(mut self) -> Result<(), Error> {
        let given_back = self.client.delete_as("unlock", &self.key).await;
        // If that failed it is done as soon as possible, as for one that is dropped.
        self.held = given_back.is_err();
        given_back.map(drop)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.held && tokio::runtime::Handle::try_current().is_ok() {
            let (path, key) = (self.path.clone(), self.key.clone());
            tokio::spawn(give_back(self.client.clone(), path, key, self.turn.take()));
        } else {
            self.client.0.lock_leases.release(&self.path);
        }
    }
}

/// Deletes a lock's key, however long etcd is away: without it nobody else would get the lock as long as this
/// process lives. Frees its place on the lease, too.
async fn give_back(client: Client, path: String, key: String, turn: Option<OwnedMutexGuard<()>>) {
    let stop = client.0.stop.clone();
    let mut pause = Duration::from_millis(100);
    while let Err(error) = client.delete_as("unlock", &key).await {
        tracing::warn!(%error, "lock not given back, will be tried again");
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = (2 * pause).min(LAST_RETURN);
    }
    client.0.lock_leases.release(&path);
    drop(turn);
}
