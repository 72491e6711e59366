//! Where identities are: in Kubernetes, in the kvstore, or in both (`identity-allocation-mode`).
//!
//! Whoever uses [`Identities`] does not know. In both means: made in Kubernetes first and then in the
//! kvstore, under the kvstore's lock, with one number; followed on the side that is read. Where a
//! write to the other side failed, [`Identities::claim`] makes up for it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::Record;
use cilia_kvstore::Allocator;
use cilia_kvstore::allocator::{Change, Maker, NoMaker};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio_util::sync::CancellationToken;

use super::{Error, Identities};

/// How long the kvstore may keep a pod waiting where it is only written.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where identities are, other than in Kubernetes alone.
#[derive(Debug, Clone)]
pub enum Backend {
    /// In the kvstore.
    Kvstore(Allocator),
    /// In both; Kubernetes is read.
    BothReadKubernetes(Allocator),
    /// In both; the kvstore is read.
    BothReadKvstore(Allocator),
}

impl Backend {
    fn allocator(&self) -> &Allocator {
        let (Self::Kvstore(allocator)
        | Self::BothReadKubernetes(allocator)
        | Self::BothReadKvstore(allocator)) = self;
        allocator
    }
}

impl Identities {
    /// Decides where identities are; to be called before [`Identities::run`].
    pub fn use_backend(&self, backend: Backend) {
        if self.0.backend.set(backend).is_err() {
            tracing::error!("identities have a backend already");
        }
    }

    /// Follows the side that is read, and keeps the kvstore's keys alive.
    pub(super) async fn run_backend(&self, backend: &Backend, stop: CancellationToken) {
        match backend {
            Backend::Kvstore(allocator) | Backend::BothReadKvstore(allocator) => {
                allocator.run(stop, |change| self.told(change)).await;
            }
            Backend::BothReadKubernetes(allocator) => {
                tokio::join!(allocator.run(stop.clone(), |_| {}), self.run_kubernetes(stop));
            }
        }
    }

    fn told(&self, change: Change) {
        match change {
            Change::Upsert { number, labels, created } => {
                self.heard(number, Record { labels, created, marked: false });
            }
            Change::Deleted(number) => self.deleted(number),
            Change::Synced => self.synced(),
        }
    }

    pub(super) async fn allocate_in(
        &self,
        backend: &Backend,
        labels: &Labels,
        former: Option<NumericIdentity>,
    ) -> Result<NumericIdentity, Error> {
        let allocator = backend.allocator();
        match backend {
            Backend::Kvstore(_) => {
                let number = allocator.allocate(labels, former, &NoMaker).await?;
                self.learn(allocator, number);
                Ok(number)
            }
            Backend::BothReadKvstore(_) => {
                let kubernetes = InKubernetes::new(&self.0.api);
                let number = allocator.allocate(labels, former, &kubernetes).await?;
                self.learn(allocator, number);
                Ok(number)
            }
            Backend::BothReadKubernetes(_) => {
                self.allocate_in_both(allocator, labels, former).await
            }
        }
    }

    /// Kubernetes counts: the kvstore's failures are told, and cost nobody an identity or much time.
    async fn allocate_in_both(
        &self,
        allocator: &Allocator,
        labels: &Labels,
        former: Option<NumericIdentity>,
    ) -> Result<NumericIdentity, Error> {
        self.wait_synced().await;
        let mut well = true;
        if self.number(labels).is_none() {
            let kubernetes = InKubernetes::new(&self.0.api);
            let allocated = allocator.allocate(labels, former, &kubernetes);
            match in_time(allocated).await {
                Ok(number) => {
                    if let Some(identity) = kubernetes.ensure(number, labels).await? {
                        self.answered(number, Some(&identity));
                    }
                }
                Err(error) => {
                    tracing::warn!(error, "identity not made in the kvstore, will be later");
                    well = false;
                }
            }
        }
        let number = self.allocate_in_kubernetes(labels, former).await?;
        if well {
            match in_time(allocator.adopt(labels, number)).await {
                Ok(true) => {}
                Ok(false) => {
                    let labels = labels.canonical();
                    tracing::warn!(%number, labels, "the number is another's in the kvstore");
                }
                Err(error) => {
                    tracing::warn!(error, "identity not written to the kvstore, will be later");
                }
            }
        }
        Ok(number)
    }

    /// Says where it is missing that this node uses an identity, and that there is one; `false` if
    /// that cannot be, as the number or the labels are another's.
    pub async fn claim(&self, labels: &Labels, number: NumericIdentity) -> Result<bool, Error> {
        match self.0.backend.get() {
            None => Ok(true),
            Some(Backend::Kvstore(allocator)) => Ok(allocator.reclaim(labels, number).await?),
            Some(Backend::BothReadKubernetes(allocator)) => {
                self.wait_synced().await;
                Ok(self.number(labels) == Some(number) && allocator.adopt(labels, number).await?)
            }
            Some(Backend::BothReadKvstore(allocator)) => {
                let kubernetes = InKubernetes::new(&self.0.api);
                Ok(allocator.reclaim(labels, number).await?
                    && kubernetes.ensure(number, labels).await?.is_some())
            }
        }
    }

    /// What was just allocated is known before the watch says so.
    fn learn(&self, allocator: &Allocator, number: NumericIdentity) {
        if let Some((labels, created)) = allocator.get(number) {
            self.heard(number, Record { labels, created, marked: false });
        }
    }
}

async fn in_time<T>(
    work: impl Future<Output = Result<T, cilia_kvstore::Error>>,
) -> Result<T, String> {
    let late = |_| format!("no answer within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?.map_err(|error| error.to_string())
}

/// Makes the objects of identities that are made in the kvstore.
struct InKubernetes<'a> {
    api: &'a Api<CiliumIdentity>,
    /// What was made last.
    made: Mutex<Option<CiliumIdentity>>,
}

impl<'a> InKubernetes<'a> {
    fn new(api: &'a Api<CiliumIdentity>) -> Self {
        Self { api, made: Mutex::default() }
    }

    /// The object, made if it is missing; nothing if the number is another's.
    async fn ensure(
        &self,
        number: NumericIdentity,
        labels: &Labels,
    ) -> Result<Option<CiliumIdentity>, Error> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(made) = made.filter(|made| made.number() == Some(number)) {
            return Ok(Some(made));
        }
        let ours = |there: CiliumIdentity| Some(there).filter(|there| there.labels() == *labels);
        // Mostly it is there.
        let there = match self.read(number).await? {
            Some(there) => ours(there),
            None => match self.create(number, labels).await? {
                Some(made) => Some(made),
                // Somebody was faster.
                None => self.read(number).await?.and_then(ours),
            },
        };
        if there.is_none() {
            let labels = labels.canonical();
            tracing::warn!(%number, labels, "the number is another's in Kubernetes");
        }
        Ok(there)
    }

    async fn read(&self, number: NumericIdentity) -> Result<Option<CiliumIdentity>, Error> {
        let failed =
            |cause| Error::Kubernetes { operation: "read", number, cause: Box::new(cause) };
        self.api.get_opt(&number.to_string()).await.map_err(failed)
    }

    /// What was made; nothing if there is one of this number.
    async fn create(
        &self,
        number: NumericIdentity,
        labels: &Labels,
    ) -> Result<Option<CiliumIdentity>, Error> {
        let object = super::allocate::object(number, labels);
        match self.api.create(&PostParams::default(), &object).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(cause) => {
                let cause = Box::new(cause);
                Err(Error::Kubernetes { operation: "create", number, cause })
            }
        }
    }
}

impl Maker for InKubernetes<'_> {
    async fn make(&self, number: NumericIdentity, labels: &Labels) -> Result<bool, String> {
        let text = |error: Error| error.to_string();
        let Some(made) = self.create(number, labels).await.map_err(text)? else {
            let there = self.read(number).await.map_err(text)?;
            return Ok(there.is_some_and(|there| there.labels() == *labels));
        };
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        Ok(true)
    }

    async fn take_back(&self, number: NumericIdentity) {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(uid) = made.and_then(|made| made.metadata.uid) else { return };
        let guard = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams::default().preconditions(guard);
        if let Err(error) = self.api.delete(&number.to_string(), &params).await {
            tracing::warn!(%number, %error, "identity not taken back: it will be collected");
        }
    }
}
