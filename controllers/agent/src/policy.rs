//! Keeps the policy map of every local endpoint equal to what policies and identities say.
//!
//! One task owns the core ([`cilia_policy::Repository`]): it takes policies, identities and
//! endpoints as they come, a burst at once, and writes what differs, additions first. No map is
//! touched before all policies, identities, addresses and former endpoints are known, so a restart
//! changes nothing.

mod closed;
mod feed;
pub mod host;
mod realize;
mod references;
#[cfg(test)]
mod test_agent;
mod trouble;
mod worker;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cilia_crds::{Labels, NumericIdentity};
use cilia_loader::Datapath;
use cilia_policy::{Config, Mode, Repository};
use kube::Client;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::endpoint::LocalEndpoint;
use crate::identity::Identities;
use crate::ipcache::Cache;
use crate::node::Nodes;
use crate::readiness::Readiness;

pub use feed::Kinds;
pub use realize::named_ports;
use realize::{Order, Subject};
pub use trouble::Trouble;

/// The gate that opens once the maps are right.
pub const GATE: &str = "policy";

/// A map with this part of its room taken is nearly full: nine tenths.
const NEARLY: (usize, usize) = (9, 10);

/// Why an endpoint's policy isn't in place.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The endpoint has no identity, so nothing can be said about it.
    #[error("realize policy of endpoint {id}: it has no identity yet")]
    NoIdentity {
        /// The endpoint's number.
        id: u16,
    },
    /// The map can't hold what the policies say.
    #[error(
        "realize policy of endpoint {id}: {entries} entries are needed, its map holds {most} (bpf-policy-map-max)"
    )]
    Overflow {
        /// The endpoint's number.
        id: u16,
        /// How many entries are needed.
        entries: usize,
        /// How many fit.
        most: usize,
    },
    /// The kernel refused.
    #[error("realize policy of endpoint {id}: {cause}")]
    Map {
        /// The endpoint's number.
        id: u16,
        /// What the kernel said.
        cause: String,
    },
    /// The kernel refused the audit mode of all endpoints.
    #[error("set the audit mode of all endpoints: {cause}")]
    Audit {
        /// What the kernel said.
        cause: String,
    },
    /// There is no such endpoint here.
    #[error("no endpoint {id} on this node")]
    Unknown {
        /// The endpoint's number.
        id: u16,
    },
    /// The agent is shutting down.
    #[error("realize policy of endpoint {id}: the agent is stopping")]
    Stopping {
        /// The endpoint's number.
        id: u16,
    },
}

/// What policy is made from.
pub struct Sources {
    /// To watch policies.
    pub client: Client,
    /// Which kinds of policy count.
    pub kinds: Kinds,
    /// All identities.
    pub identities: Identities,
    /// All nodes.
    pub nodes: Nodes,
    /// Where the prefixes go that policies name.
    pub ipcache: Cache,
}

/// How policy is put in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// The node itself has policy (`enable-host-firewall`).
    pub host: bool,
    /// An endpoint whose policy does not fit into its map exchanges nothing, instead of what fits
    /// (`enable-endpoint-lockdown-on-policy-overflow`).
    pub lockdown: bool,
}

/// Puts the policy of endpoints in place; clones share it.
#[derive(Debug, Clone)]
pub struct Enforcer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: Config,
    orders: mpsc::UnboundedSender<Order>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Order>>>,
    settings: Settings,
    /// When traffic is restricted, as somebody has said last.
    mode: Mutex<Mode>,
    view: watch::Sender<Arc<View>>,
}

/// What the API and the metrics show.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Counts the changes of policies.
    pub revision: u64,
    /// How often a policy was taken in or removed, and how often one could not be used.
    pub changes: [u64; 2],
    /// Endpoints, by number.
    pub endpoints: Vec<EndpointView>,
    /// Policies in use.
    pub policies: Arc<[PolicyView]>,
    /// Policies that can't be used, with the fault.
    pub faults: Vec<(String, String)>,
    /// The labels of identities that only this node knows: of prefixes, of nodes, and its own.
    pub local: Arc<BTreeMap<NumericIdentity, Arc<Labels>>>,
}

/// What is in place for an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointView {
    /// Its number.
    pub id: u16,
    /// The identity whose policy it has.
    pub identity: NumericIdentity,
    /// The revision in its map.
    pub revision: u64,
    /// Whether a rule restricts what comes to it.
    pub ingress: bool,
    /// Whether a rule restricts what it sends.
    pub egress: bool,
    /// Entries of its map.
    pub entries: usize,
    /// Entries that its policy takes; more than `most` do not fit.
    pub needed: usize,
    /// Entries that fit.
    pub most: usize,
    /// What policy says is recorded, not enforced (`PolicyAuditMode`).
    pub audit: bool,
    /// Why the map isn't as it should be.
    pub error: Option<String>,
}

/// A policy in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyView {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; empty for what is cluster-wide.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The subjects of its rules.
    pub subjects: Vec<String>,
    /// What its author should know.
    pub notes: Vec<String>,
}

impl Enforcer {
    /// Nothing is enforced until [`Enforcer::run`].
    pub fn new(config: Config, settings: Settings) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let inbox = Mutex::new(Some(inbox));
        let view = watch::Sender::default();
        let mode = Mutex::new(config.mode);
        Self(Arc::new(Shared { config, orders, inbox, settings, mode, view }))
    }

    /// When endpoints' traffic is restricted.
    pub fn mode(&self) -> Mode {
        *self.0.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when endpoints' traffic is restricted, until the agent ends; false if it is ending.
    pub async fn set_mode(&self, mode: Mode) -> bool {
        let shared = Arc::clone(&self.0);
        // With the change itself: who asked may be gone by then, and others may ask meanwhile.
        let set = self.ask(move |repository| {
            if repository.set_mode(mode) {
                tracing::info!(mode = mode.name(), "policy enforcement changed");
            }
            *shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        });
        let set = set.await;
        set.is_some()
    }

    /// What policies mean.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The endpoint number of the node, if it has policy.
    pub fn host(&self) -> Option<u16> {
        self.0.settings.host.then_some(host::ENDPOINT)
    }

    /// Returns once the node's own map holds its policy.
    pub async fn realize_host(&self) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        self.keep(host::ENDPOINT, host::subject(), Some(done))?;
        answer.await.unwrap_or(Err(Error::Stopping { id: host::ENDPOINT }))
    }

    /// The same as [`Self::restore`] for the node itself.
    pub fn restore_host(&self) -> Result<(), Error> {
        self.keep(host::ENDPOINT, host::subject(), None)
    }

    /// Asks the rules and identities as they are now; nothing if the agent stops.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Repository) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, answer) = oneshot::channel();
        let question = move |repository: &mut Repository| {
            // The one who asked may be gone: nothing to tell then.
            let _ = tell.send(question(repository));
        };
        self.0.orders.send(Order::Ask(realize::Question(Box::new(question)))).ok()?;
        answer.await.ok()
    }

    /// Records what an endpoint's policy says, instead of enforcing it; or enforces it again. Without
    /// an endpoint all of them, also those that had another setting.
    pub async fn set_audit(&self, whose: Option<u16>, audit: bool) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let stopping = || match whose {
            Some(id) => Error::Stopping { id },
            None => Error::Audit { cause: "the agent is stopping".to_owned() },
        };
        self.0.orders.send(Order::Audit(whose, audit, done)).map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Keeps the maps right until `stop`.
    pub async fn run(
        self,
        sources: Sources,
        datapath: Arc<Datapath>,
        readiness: Readiness,
        stop: CancellationToken,
    ) {
        let Some(inbox) = self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        worker::run(self, inbox, sources, datapath, readiness, stop).await;
    }

    /// Returns once the endpoint's map holds its policy; from then on it is kept right.
    pub async fn realize(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        self.keep(endpoint.id, Subject::of(endpoint)?, Some(done))?;
        answer.await.unwrap_or(Err(Error::Stopping { id: endpoint.id }))
    }

    /// Takes over an endpoint that a former agent connected: its map is kept right as soon as
    /// [`Self::restored`] has said that there are no more of its kind.
    pub fn restore(&self, endpoint: &LocalEndpoint) -> Result<(), Error> {
        self.keep(endpoint.id, Subject::of(endpoint)?, None)
    }

    /// Every endpoint of a former agent has been taken over. Until then nothing is written, for
    /// what they depend on would look as if nobody needed it.
    pub fn restored(&self) {
        // Without the task nobody writes at all.
        let _ = self.0.orders.send(Order::Restored);
    }

    fn keep(&self, id: u16, subject: Subject, done: Option<realize::Done>) -> Result<(), Error> {
        let order = Order::Keep(id, subject, done);
        self.0.orders.send(order).map_err(|_| Error::Stopping { id })
    }

    /// Removes an endpoint's map.
    pub async fn remove(&self, id: u16) {
        let (done, answer) = oneshot::channel();
        if self.0.orders.send(Order::Remove(id, done)).is_ok() {
            // If the agent stops meanwhile, the next one finds the map without an endpoint.
            let _ = answer.await;
        }
    }

    /// What is in place now, and later.
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.0.view.subscribe()
    }
}

#[cfg(test)]
mod explain_tests;
#[cfg(test)]
mod reference_tests;
#[cfg(test)]
#[path = "policy/tests.rs"]
mod tests;
