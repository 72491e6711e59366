//! Decides which duties run: the list in [`duties`], one line each.
//!
//! A duty is a folder (or file) beside this one with
//!
//! ```ignore
//! /// Runs until `context.stop`; an error ends the whole process.
//! pub async fn run(context: Context) -> anyhow::Result<()>
//! ```
//!
//! It is started once this process leads and the CRDs are there, and is never started twice. It
//! returns `Ok` at once if the configuration switches it off, and soon after `context.stop` is
//! cancelled. A failure that may pass (the API server is away, a conflict) is its own to retry, on lanes.
//! Its writes fail by themselves when the process no longer leads: `context.client` sees to that.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use kube::Client;
use tokio_util::sync::CancellationToken;

/// What a duty works with; cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// Reads always, writes while this process leads.
    pub client: Client,
    /// All settings.
    pub config: Arc<Config>,
    /// Where the duty registers its metrics, by the names of metrics.md without `cilium_operator_`.
    pub metrics: Metrics,
    /// The `workqueue_*` metrics, for the duty's lanes.
    pub workqueues: Workqueues,
    /// Events on objects.
    pub events: Recorder,
    /// Cancelled when the process shuts down.
    pub stop: CancellationToken,
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A duty by its name, for logs and errors.
pub struct Duty {
    /// The name of its folder.
    pub name: &'static str,
    /// Its `run`.
    pub run: fn(Context) -> Running,
}

macro_rules! duty {
    ($name:ident) => {
        Duty { name: stringify!($name), run: |context| Box::pin(crate::$name::run(context)) }
    };
}

/// The duties in the order in which they start.
pub fn duties() -> Vec<Duty> {
    vec![
        // duty!(ipam),
    ]
}
