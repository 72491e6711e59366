//! Where identities are: in Kubernetes, in the kvstore, or in both (`identity-allocation-mode`).
//!
//! Whoever uses [`Identities`] does not know. In both means: made in Kubernetes first and then in the
//! kvstore, under the kvstore's lock, with one number; followed on the side that is read.

use std::sync::{Mutex, PoisonError};

use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::Record;
use cilia_kvstore::Allocator;
use cilia_kvstore::allocator::{Change, Maker, NoMaker};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio_util::sync::CancellationToken;

use super::{Error, Identities};

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
                kubernetes.ensure(number, labels).await;
                Ok(number)
            }
            Backend::BothReadKubernetes(_) => {
                self.allocate_in_both(allocator, labels, former).await
            }
        }
    }

    /// Kubernetes counts: the kvstore's failures are told, and cost nobody an identity.
    async fn allocate_in_both(
        &self,
        allocator: &Allocator,
        labels: &Labels,
        former: Option<NumericIdentity>,
    ) -> Result<NumericIdentity, Error> {
        self.wait_synced().await;
        if self.number(labels).is_none() {
            let kubernetes = InKubernetes::new(&self.0.api);
            match allocator.allocate(labels, former, &kubernetes).await {
                Ok(number) => {
                    kubernetes.ensure(number, labels).await;
                    if let Some(identity) = kubernetes.read(number).await {
                        self.answered(number, Some(&identity));
                    }
                }
                Err(error) => tracing::warn!(%error, "identity not made in the kvstore"),
            }
        }
        let number = self.allocate_in_kubernetes(labels, former).await?;
        match allocator.adopt(labels, number).await {
            Ok(true) => {}
            Ok(false) => {
                let labels = labels.canonical();
                tracing::warn!(%number, labels, "the number is another's in the kvstore");
            }
            Err(error) => tracing::warn!(%error, "identity not written to the kvstore"),
        }
        Ok(number)
    }

    /// What was just allocated is known before the watch says so.
    fn learn(&self, allocator: &Allocator, number: NumericIdentity) {
        if let Some((labels, created)) = allocator.get(number) {
            self.heard(number, Record { labels, created, marked: false });
        }
    }
}

/// Makes the objects of identities that are made in the kvstore.
struct InKubernetes<'a> {
    api: &'a Api<CiliumIdentity>,
    /// The uid of what was made last.
    made: Mutex<Option<String>>,
}

impl<'a> InKubernetes<'a> {
    fn new(api: &'a Api<CiliumIdentity>) -> Self {
        Self { api, made: Mutex::default() }
    }

    async fn read(&self, number: NumericIdentity) -> Option<CiliumIdentity> {
        self.api.get_opt(&number.to_string()).await.ok().flatten()
    }

    /// The object, if it was missing.
    async fn ensure(&self, number: NumericIdentity, labels: &Labels) {
        match self.make(number, labels).await {
            Ok(true) => {}
            Ok(false) => {
                let labels = labels.canonical();
                tracing::warn!(%number, labels, "the number is another's in Kubernetes");
            }
            Err(error) => tracing::warn!(error, "identity not written to Kubernetes"),
        }
    }
}

impl Maker for InKubernetes<'_> {
    async fn make(&self, number: NumericIdentity, labels: &Labels) -> Result<bool, String> {
        let object = super::allocate::object(number, labels);
        match self.api.create(&PostParams::default(), &object).await {
            Ok(made) => {
                *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made.metadata.uid;
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let there = self.api.get_opt(&number.to_string()).await;
                let there =
                    there.map_err(|error| format!("read CiliumIdentity {number}: {error}"))?;
                Ok(there.is_some_and(|there| there.labels() == *labels))
            }
            Err(error) => Err(format!("create CiliumIdentity {number}: {error}")),
        }
    }

    async fn take_back(&self, number: NumericIdentity) {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(uid) = made else { return };
        let guard = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams::default().preconditions(guard);
        if let Err(error) = self.api.delete(&number.to_string(), &params).await {
            tracing::warn!(%number, %error, "identity not taken back: it will be collected");
        }
    }
}
