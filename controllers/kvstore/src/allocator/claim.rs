//! Finds or makes the number of a label set, and claims it for this agent.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use cilia_crds::{Labels, NumericIdentity};

use super::Allocator;
use crate::lock::Lock;
use crate::mirror::Entry;
use crate::txn::Txn;
use crate::{Error, KeyValue, keys};

const ATTEMPTS: u32 = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the index may take to know what is in the store.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Makes the identity elsewhere, before it is made in the kvstore (doublewrite).
pub trait Maker: Sync {
    /// Makes the identity; `false` if the number is another's there.
    fn make(
        &self,
        number: NumericIdentity,
        labels: &Labels,
    ) -> impl Future<Output = Result<bool, String>> + Send;

    /// Takes back what [`Maker::make`] made: the kvstore did not agree.
    fn take_back(&self, number: NumericIdentity) -> impl Future<Output = ()> + Send;
}

/// There is only the kvstore.
#[derive(Debug, Clone, Copy)]
pub struct NoMaker;

impl Maker for NoMaker {
    async fn make(&self, _: NumericIdentity, _: &Labels) -> Result<bool, String> {
        Ok(true)
    }

    async fn take_back(&self, _: NumericIdentity) {}
}

impl Allocator {
    /// The number of these labels, made if nobody has; with `former` if that is free, so that
    /// what was lost comes back as it was.
    pub async fn allocate<M: Maker>(
        &self,
        labels: &Labels,
        former: Option<NumericIdentity>,
        maker: &M,
    ) -> Result<NumericIdentity, Error> {
        self.wait_listed().await;
        let text = labels.canonical();
        let mut pause = FIRST_PAUSE;
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            match self.attempt(labels, &text, former.filter(|_| attempt == 0), maker).await {
                Ok(Some(number)) => return Ok(number),
                Ok(None) => last = "the number was taken by others first".into(),
                Err(error @ Error::Exhausted(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, labels = text, "allocation will be tried again");
                    last = error.to_string();
                }
            }
        }
        Err(Error::Contended { labels: text, attempts: ATTEMPTS, last })
    }

    /// Claims a number that the labels have; `false` if they don't have it, or not any more.
    pub async fn reclaim(&self, labels: &Labels, number: NumericIdentity) -> Result<bool, Error> {
        self.wait_listed().await;
        if self.held(labels) == Some(number) {
            return Ok(true);
        }
        self.claim(labels, &labels.canonical(), number).await
    }

    /// Claims a number that the labels have elsewhere, and makes it here if it is missing; `false`
    /// if the number stands for other labels here.
    pub async fn adopt(&self, labels: &Labels, number: NumericIdentity) -> Result<bool, Error> {
        self.wait_listed().await;
        let text = labels.canonical();
        if self.held(labels) == Some(number) || self.claim(labels, &text, number).await? {
            return Ok(true);
        }
        let lock = self.0.client.lock(&keys::identity_lock(&text)).await?;
        let made = self.create(labels, &text, number, &lock).await;
        give_back(lock).await;
        made
    }

    async fn attempt<M: Maker>(
        &self,
        labels: &Labels,
        text: &str,
        former: Option<NumericIdentity>,
        maker: &M,
    ) -> Result<Option<NumericIdentity>, Error> {
        if let Some(number) = self.held(labels) {
            return Ok(Some(number));
        }
        if let Some(number) = self.number(labels)
            && self.claim(labels, text, number).await?
        {
            return Ok(Some(number));
        }
        let lock = self.0.client.lock(&keys::identity_lock(text)).await?;
        let found = self.find_or_make(labels, text, former, maker, &lock).await;
        give_back(lock).await;
        found
    }

    /// With the lock of the labels, nobody else makes a number for them.
    async fn find_or_make<M: Maker>(
        &self,
        labels: &Labels,
        text: &str,
        former: Option<NumericIdentity>,
        maker: &M,
        lock: &Lock,
    ) -> Result<Option<NumericIdentity>, Error> {
        self.catch_up(lock.revision).await?;
        let known = self.number(labels);
        if let Some(number) = known
            && self.claim(labels, text, number).await?
        {
            return Ok(Some(number));
        }
        // Others may use a number whose master was lost: it comes back as it was.
        for number in self.used_by_others(text).await?.into_iter().chain(known).chain(former) {
            if self.0.space.contains(number) && self.create(labels, text, number, lock).await? {
                return Ok(Some(number));
            }
        }
        // The one that Kubernetes' allocation would draw, too.
        let drawn = self.state().pool.draw_for(labels, &mut rand::rng());
        let number = drawn.ok_or_else(|| Error::Exhausted(text.into()))?;
        let mut aside = SetAside { allocator: self, number, taken: false };
        let made = match maker.make(number, labels).await {
            Ok(true) => {
                let created = self.create(labels, text, number, lock).await;
                if !matches!(created, Ok(true)) {
                    maker.take_back(number).await;
                }
                created?
            }
            Ok(false) => false,
            Err(last) => {
                return Err(Error::Contended { labels: text.into(), attempts: 1, last });
            }
        };
        // Somebody else's: it stays taken, the watch will say by whom.
        aside.taken = true;
        Ok(made.then_some(number))
    }

    /// The number that this agent holds for the labels already.
    fn held(&self, labels: &Labels) -> Option<NumericIdentity> {
        let number = self.number(labels)?;
        if !self.0.mirror.holds(&self.use_key(labels)) {
            return None;
        }
        let mut state = self.state();
        let (_, since) = state.uses.get_mut(&number)?;
        *since = Instant::now();
        Some(number)
    }

    /// Claims a number that exists; `false` if it does not, or stands for other labels.
    async fn claim(
        &self,
        labels: &Labels,
        text: &str,
        number: NumericIdentity,
    ) -> Result<bool, Error> {
        let (master, key) = (keys::identity_id(number.0), self.use_key(labels));
        let lease = self.0.client.lease_for(&key).await?;
        let value = number.to_string();
        let txn = Txn::new()
            .if_value(&master, text.as_bytes())
            .put(&key, value.as_bytes(), lease)
            .get(&master);
        let outcome = self.0.client.txn("claim", &key, txn).await?;
        if outcome.done {
            let master = outcome.read.into_iter().flatten().next().unwrap_or_default();
            self.holds(labels, number, (lease, outcome.revision), &master);
        }
        Ok(outcome.done)
    }

    /// Makes a number and claims it; `false` if it is there with other labels.
    async fn create(
        &self,
        labels: &Labels,
        text: &str,
        number: NumericIdentity,
        lock: &Lock,
    ) -> Result<bool, Error> {
        let (master, key) = (keys::identity_id(number.0), self.use_key(labels));
        let lease = self.0.client.lease_for(&key).await?;
        let txn = Txn::new().if_absent(&master).put(&master, text.as_bytes(), 0).put(
            &key,
            number.to_string().as_bytes(),
            lease,
        );
        let outcome = self.0.client.txn("create under lock", &master, lock.guard(txn)).await?;
        if outcome.done {
            let revision = outcome.revision;
            let master = KeyValue {
                create_revision: revision,
                mod_revision: revision,
                ..KeyValue::default()
            };
            self.holds(labels, number, (lease, revision), &master);
            return Ok(true);
        }
        lock.check().await?;
        self.claim(labels, text, number).await
    }

    fn holds(
        &self,
        labels: &Labels,
        number: NumericIdentity,
        (lease, revision): (i64, i64),
        master: &KeyValue,
    ) {
        let labels = {
            let mut state = self.state();
            let labels = state.upsert(number, labels.clone(), master.create_revision);
            state.uses.insert(number, (Arc::clone(&labels), Instant::now()));
            labels
        };
        let value = number.to_string().into_bytes();
        let entry = Entry { value, leased: true };
        self.0.mirror.wrote(&self.use_key(&labels), entry, lease, revision);
        // One that an operator wrote for other clusters, in mode `crd`, is on a lease that ends.
        let entry = Entry { value: labels.canonical().into_bytes(), leased: false };
        let key = keys::identity_id(number.0);
        self.0.mirror.wrote(&key, entry, master.lease, master.mod_revision);
    }

    /// The numbers by which other agents use exactly these labels.
    async fn used_by_others(&self, text: &str) -> Result<Vec<NumericIdentity>, Error> {
        let (uses, _) = self.0.client.list(&keys::identity_values(text)).await?;
        let number = |kv: &KeyValue| {
            let key = std::str::from_utf8(&kv.key).ok()?;
            let value = std::str::from_utf8(&kv.value).ok()?;
            keys::is_use_of(key, text).then_some(NumericIdentity(value.parse().ok()?))
        };
        Ok(uses.iter().filter_map(number).collect())
    }

    /// Waits until the index knows everything up to this revision.
    async fn catch_up(&self, revision: i64) -> Result<(), Error> {
        let mut known = self.0.revision.subscribe();
        if *known.borrow_and_update() >= revision {
            return Ok(());
        }
        let progress = self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(progress) = progress {
            progress.request();
        }
        let waited = known.wait_for(|known| *known >= revision);
        match tokio::time::timeout(CATCH_UP, waited).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Value {
                key: keys::identity_ids(),
                reason: format!("identities up to revision {revision} are not known yet"),
            }),
        }
    }
}

/// A number that was drawn, and is free again if nothing comes of it.
struct SetAside<'a> {
    allocator: &'a Allocator,
    number: NumericIdentity,
    taken: bool,
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        let mut state = self.allocator.state();
        if !self.taken && state.index.get(self.number).is_none() {
            state.pool.release(self.number);
        }
    }
}

/// What was done under the lock is done, whether or not it can be given back now.
async fn give_back(lock: Lock) {
    if let Err(error) = lock.unlock().await {
        tracing::warn!(%error, "lock of an identity");
    }
}
