//! Decides which duties run: the list in [`duties`], one line each.
//!
//! A duty is a folder (or file) beside this one with
//!
//! ```ignore
//! /// Errors for settings that cannot work; called on every replica before the election.
//! pub(crate) fn check(config: &Config) -> anyhow::Result<()>
//! /// Runs until `context.stop`; an error ends the whole process.
//! pub(crate) async fn run(context: Context) -> anyhow::Result<()>
//! ```
//!
//! `run` is started once this process leads and the CRDs are there, and is never started twice. A duty
//! that stands by is started at once, and waits for `context.leading` before it writes. It
//! returns `Ok` at once if the configuration switches it off, and soon after `context.stop` is
//! cancelled. A failure that may pass (the API server is away, a conflict) is its own to retry, on lanes.
//! Its writes fail by themselves when the process no longer leads: `context.client` sees to that.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cilia_identity::Space;
use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::leader::Leadership;
use cilia_runtime::metrics::Metrics;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::clustermesh::Remotes;
use crate::identity_gc::Collections;

/// What a duty works with; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// Reads always, writes while this process leads.
    pub(crate) client: Client,
    /// The same for bursts of writes to many objects: unless `operator-k8s-client-qps` was set, the server's
    /// own fairness and the number of the duty's workers limit them.
    pub(crate) bulk: Client,
    /// The right to write, and how it came about.
    pub(crate) leadership: Leadership,
    /// The slices' own, with a user agent and limits of its own.
    pub(crate) slices: Client,
    /// All settings.
    pub(crate) config: Arc<Config>,
    /// The numbers that the cluster's identities have.
    pub(crate) space: Space,
    /// Where the duty registers its metrics, by Cilium's names without `cilium_operator_`.
    pub(crate) metrics: Metrics,
    /// The metrics of collections of identities, of which two duties have one each.
    pub(crate) collections: Collections,
    /// How other clusters are, for the API.
    pub(crate) remotes: Remotes,
    /// The `workqueue_*` metrics, for the duty's lanes.
    pub(crate) workqueues: Workqueues,
    /// Events on objects.
    pub(crate) events: Recorder,
    /// Whether this process leads and the CRDs are there.
    pub(crate) leading: Leading,
    /// Cancelled when the process shuts down.
    pub(crate) stop: CancellationToken,
}

/// Tells duties that stand by when their time has come; cheap to clone.
#[derive(Clone)]
pub(crate) struct Leading(tokio::sync::watch::Receiver<bool>);

impl Leading {
    /// Not yet; setting the other end to `true` begins it.
    pub(crate) fn not_yet() -> (tokio::sync::watch::Sender<bool>, Self) {
        let (begin, leading) = tokio::sync::watch::channel(false);
        (begin, Self(leading))
    }

    /// Completes when this process leads.
    pub(crate) async fn begins(mut self) {
        if self.0.wait_for(|leading| *leading).await.is_err() {
            // The process ends without having led.
            std::future::pending::<()>().await;
        }
    }
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A duty by its name, for logs and errors.
pub(crate) struct Duty {
    /// The name of its folder.
    pub(crate) name: &'static str,
    /// Its `check`.
    pub(crate) check: fn(&Config) -> anyhow::Result<()>,
    /// Its `run`.
    pub(crate) run: fn(Context) -> Running,
    /// Runs on every replica, so that it is ready the moment this one leads.
    pub(crate) stands_by: bool,
}

macro_rules! duty {
    ($name:ident) => {
        duty!($name, false)
    };
    ($name:ident, $stands_by:expr) => {
        Duty {
            name: stringify!($name),
            check: crate::$name::check,
            run: |context| Box::pin(crate::$name::run(context)),
            stands_by: $stands_by,
        }
    };
}

/// The duties in the order in which they start.
pub(crate) fn duties() -> Vec<Duty> {
    vec![
        duty!(unmanaged_pods),
        duty!(ipam),
        duty!(node_taint),
        duty!(node_gc),
        duty!(identity_gc),
        duty!(identity),
        duty!(endpoint_slice, true),
        duty!(endpoint_gc),
        duty!(kvstore),
        duty!(clustermesh),
        duty!(policy_validation),
    ]
}
