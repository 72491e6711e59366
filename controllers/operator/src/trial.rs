//! A duty on a real API server: its context, its start and its stop.

use std::sync::Arc;

use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, Write};
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::crd_registration;
use crate::wiring::{Context, Duty, Leading, duties};

/// The user agent of the duty under test.
const DUTY: &str = "duty";

/// An API server with the CRDs, on which duties are run.
pub(crate) struct Trial {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    arguments: Vec<String>,
}

/// A duty that runs.
pub(crate) struct Running {
    pub(crate) metrics: Metrics,
    stop: CancellationToken,
    ended: JoinHandle<anyhow::Result<()>>,
}

impl Trial {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let server = ApiServer::start().await;
        let client = server.client();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let config = config(&arguments);
        crd_registration::run(client.clone(), &config).await.expect("register the CRDs");
        Self { server, client, arguments }
    }

    /// The same server with other settings.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts the duty of this name.
    pub(crate) fn run(&self, name: &str) -> Running {
        let duty = duties().into_iter().find(|duty| duty.name == name);
        let Duty { run, .. } = duty.expect("a duty of this name");
        let client = self.server.client_as(DUTY);
        let metrics = Metrics::new("cilium_operator");
        let stop = CancellationToken::new();
        let (begin, leading) = Leading::not_yet();
        begin.send_replace(true);
        let context = Context {
            events: Recorder::new(self.server.client_as("events"), "test"),
            client,
            config: Arc::new(config(&self.arguments)),
            workqueues: Workqueues::register(&metrics),
            metrics: metrics.clone(),
            leading,
            stop: stop.clone(),
        };
        Running { metrics, stop, ended: tokio::spawn(run(context)) }
    }

    /// What duties have written since the first `from` of their writes.
    pub(crate) async fn writes(&self, from: usize) -> Vec<Write> {
        let writes = self.server.writes().await.into_iter();
        writes.filter(|write| write.agent == DUTY).skip(from).collect()
    }
}

impl Running {
    /// Whether it has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_finished()
    }

    /// Ends the duty in the middle of whatever it does.
    pub(crate) async fn kill(self) {
        self.ended.abort();
        let ended = self.ended.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "the duty had ended before");
    }

    /// Stops the duty and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended.await.expect("the duty does not panic").expect("the duty does not fail");
    }
}

fn config(arguments: &[String]) -> Config {
    Config::load(crate::config::flags(), arguments.to_vec(), []).expect("valid settings")
}
