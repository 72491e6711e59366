//! Makes the API server know our kinds, before anything reads or writes them.

mod decide;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cilia_runtime::config::Config;
use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use decide::{Progress, needs_update, progress, updated, wanted};

const POLL: Duration = Duration::from_millis(500);
/// The server accepts a new kind in a moment; then it is not worth half a second of everyone's start.
const FIRST_POLL: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_mins(1);

/// Registers the kinds that `config` asks for and waits until they can be used.
pub(crate) async fn run(client: Client, config: &Config) -> anyhow::Result<()> {
    if config.bool("skip-crd-creation") {
        info!("CRDs are not registered: skip-crd-creation is set");
        return Ok(());
    }
    let crds = Api::all(client);
    let registered =
        wanted(cilia_crds::all(), config).into_iter().map(|ours| register(&crds, ours));
    try_join_all(registered).await?;
    info!("all CRDs are there");
    Ok(())
}

async fn register(
    crds: &Api<CustomResourceDefinition>,
    ours: CustomResourceDefinition,
) -> anyhow::Result<()> {
    let name = ours.name_any();
    let deadline = Instant::now() + LIMIT;
    let mut pause = FIRST_POLL;
    let mut cause = anyhow!("not established");
    while Instant::now() < deadline {
        match step(crds, &ours, &name).await {
            Ok(Progress::Established) => return Ok(()),
            Ok(Progress::Rejected(message)) => {
                bail!("register CRD {name}: its names are not accepted: {message}")
            }
            Ok(Progress::Pending) => {}
            Err(error) if may_pass(&error) => {
                debug!(crd = name, %error, "CRD not written yet");
                cause = error.into();
            }
            Err(error) => return Err(error).with_context(|| format!("register CRD {name}")),
        }
        sleep(pause).await;
        pause = (pause * 2).min(POLL);
    }
    Err(cause.context(format!("register CRD {name}: not done within {LIMIT:?}")))
}

/// One look at the definition, and the write that it needs.
async fn step(
    crds: &Api<CustomResourceDefinition>,
    ours: &CustomResourceDefinition,
    name: &str,
) -> kube::Result<Progress> {
    match crds.get_opt(name).await? {
        None => crds.create(&PostParams::default(), ours).await?,
        Some(installed) if needs_update(&installed, ours) => {
            crds.replace(name, &PostParams::default(), &updated(installed, ours)).await?
        }
        Some(installed) => return Ok(progress(&installed)),
    };
    info!(crd = name, "CRD written");
    Ok(Progress::Pending)
}

/// Another writer was faster, or the server is busy or away.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 409 | 429 | 500..),
        _ => true,
    }
}
