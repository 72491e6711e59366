//! Makes the API server know our kinds, before anything reads or writes them.

mod decide;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cilia_runtime::config::Config;
use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{sleep, timeout};
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
    let registered = async {
        write(crds, &ours, &name).await?;
        wait_until_served(crds, &name).await
    };
    timeout(LIMIT, registered)
        .await
        .unwrap_or_else(|_| Err(anyhow!("not done within {LIMIT:?}")))
        .with_context(|| format!("register CRD {name}"))
}

/// Creates the definition, or updates one that is older than ours.
async fn write(
    crds: &Api<CustomResourceDefinition>,
    ours: &CustomResourceDefinition,
    name: &str,
) -> anyhow::Result<()> {
    loop {
        let outcome = match crds.get_opt(name).await? {
            None => crds.create(&PostParams::default(), ours).await,
            Some(installed) if needs_update(&installed, ours) => {
                crds.replace(name, &PostParams::default(), &updated(installed, ours)).await
            }
            Some(_) => return Ok(()),
        };
        match outcome {
            Ok(_) => {
                info!(crd = name, "CRD written");
                return Ok(());
            }
            // Somebody else was faster: look again at what they wrote.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                debug!(crd = name, "CRD changed meanwhile");
                sleep(POLL).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn wait_until_served(crds: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    let mut pause = FIRST_POLL;
    loop {
        match progress(&crds.get(name).await?) {
            Progress::Established => return Ok(()),
            Progress::Rejected(message) => bail!("its names are not accepted: {message}"),
            Progress::Pending => sleep(pause).await,
        }
        pause = (pause * 2).min(POLL);
    }
}
