//! Decides what runs on every replica, what on the leader, and in which order it starts and stops.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cilia_runtime::client::{self, Settings};
use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::leader::{self, Elector, Leadership};
use cilia_runtime::metrics::Metrics;
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clustermesh::Remotes;
use crate::config::LEASE;
use crate::identity_gc::Collections;
use crate::wiring::{Context, Duty, Leading, duties};
use crate::{crd_registration, http, identity, kvstore, shell};

const COMPONENT: &str = "cilium-operator";
/// The oldest Kubernetes that is supported.
const OLDEST_MINOR: u32 = 21;

/// Runs until `stop` or a failure that a restart has to cure.
pub(crate) async fn run(
    config: Config,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if let Some(path) = config.path("shell-sock-path") {
        let mut commands = shell::builtin(&config, &metrics);
        commands.extend(kvstore::commands(&config)?);
        shell::serve(&path, commands, &stop);
    }
    if !config.bool("enable-k8s") {
        http::serve(&config, http::Sources::new(None, metrics), &stop).await?;
        info!("Kubernetes is disabled: nothing to do");
        stop.cancelled().await;
        return Ok(());
    }
    // Not for work: probes and the version check must not wait for the work's requests.
    let own = client::client(&config, &Settings::new(&config, COMPONENT)).await?;
    let remotes = Remotes::default();
    let sources = http::Sources {
        kvstore: kvstore::health(&config, &stop)?,
        clusters: Arc::new({
            let remotes = remotes.clone();
            move || remotes.show()
        }),
        ..http::Sources::new(Some(own.clone()), metrics.clone())
    };
    http::serve(&config, sources, &stop).await?;
    let election = leader::Settings::new(&config, LEASE)?;
    let ordinary = Settings::new(&config, COMPONENT);
    let lease_client = election.client(&ordinary);
    let elector = Elector::new(client::client(&config, &lease_client).await?, election);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        checked = check_version(&own) => checked?,
    }
    // Without retries in the client: the lanes look again before they write again.
    let settings = Settings { leadership: Some(elector.leadership()), retry: false, ..ordinary };
    let client = client::client(&config, &settings).await?;
    let limited = config.is_set("operator-k8s-client-qps");
    let bulk = Settings { limits: settings.limits.filter(|_| limited), ..settings.clone() };
    let bulk = client::client(&config, &bulk).await?;
    let slices = Settings {
        user_agent: format!("{} ciliumendpointslice-controller", settings.user_agent),
        ..settings
    };
    let slices = client::client(&config, &slices).await?;
    let (begin, leading) = Leading::not_yet();
    let context = Context {
        events: Recorder::new(client.clone(), COMPONENT),
        client,
        bulk,
        slices,
        leadership: elector.leadership(),
        space: identity::space(&config)?,
        config: Arc::new(config),
        collections: Collections::register(&metrics),
        remotes,
        workqueues: Workqueues::register(&metrics),
        metrics,
        leading,
        stop: stop.child_token(),
    };
    let (ready, others) = duties().into_iter().partition(|duty: &Duty| duty.stands_by);
    let mut running = Running::default();
    running.start(ready, &context);
    let lead = async |_: Leadership| {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            registered = crd_registration::run(context.client.clone(), &context.config) => registered?,
        }
        begin.send_replace(true);
        running.start(others, &context);
        running.finish(&context.stop).await
    };
    elector.run(&stop, lead).await?.unwrap_or(Ok(()))
}

/// The duties that run.
#[derive(Default)]
struct Running(JoinSet<anyhow::Result<()>>);

impl Running {
    fn start(&mut self, duties: Vec<Duty>, context: &Context) {
        for Duty { name, run, .. } in duties {
            let duty = run(context.clone());
            self.0.spawn(async move { duty.await.with_context(|| format!("duty {name}")) });
        }
    }

    /// Waits until all have ended; the first that fails stops the others.
    async fn finish(mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.0.join_next().await {
            let ended = ended.unwrap_or_else(|panic| Err(anyhow!("a duty panicked: {panic}")));
            if ended.is_err() && outcome.is_ok() {
                stop.cancel();
                outcome = ended;
            }
        }
        // With every duty switched off there is still the Lease to hold.
        if outcome.is_ok() {
            stop.cancelled().await;
        }
        outcome
    }
}

/// Waits for the API server and looks whether it is recent enough.
async fn check_version(client: &Client) -> anyhow::Result<()> {
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                info!(version = version.git_version, "connected to Kubernetes");
                let number = |text: &str| {
                    text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>()
                };
                let (major, minor) = (number(&version.major), number(&version.minor));
                if matches!((major, minor), (Ok(1), Ok(minor)) if minor < OLDEST_MINOR) {
                    bail!(
                        "Kubernetes {} is too old: at least 1.{OLDEST_MINOR} is needed",
                        version.git_version
                    );
                }
                return Ok(());
            }
            Err(error) => {
                tracing::warn!(%error, "the API server does not answer, will be retried");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}
