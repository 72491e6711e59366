//! Gives each node its ranges of pod addresses: the shell around `cilia_ipam`, a file per mode.

mod cluster_pool;
mod metrics;
mod multi_pool;
mod nodes;
mod reconciler;

#[cfg(test)]
mod tests;

use cilia_runtime::config::Config;
use kube::api::ObjectMeta;

use crate::wiring::Context;

const CLUSTER_POOL: &str = "cluster-pool";
const MULTI_POOL: &str = "multi-pool";
const WORKERS: &str = "parallel-alloc-workers";

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    workers(config)?;
    match config.string("ipam") {
        CLUSTER_POOL => cluster_pool::pool(config).map(drop),
        MULTI_POOL => multi_pool::new_pools(config).map(drop),
        _ => Ok(()),
    }
}

/// Runs until `context.stop`. In the modes `kubernetes`, `crd` and `delegated-plugin` others give
/// nodes their addresses.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    match context.config.string("ipam") {
        CLUSTER_POOL => cluster_pool::run(context).await,
        MULTI_POOL => multi_pool::run(context).await,
        _ => Ok(()),
    }
}

/// How many nodes are written at once.
fn workers(config: &Config) -> anyhow::Result<usize> {
    let workers = usize::try_from(config.int(WORKERS)).ok().filter(|workers| *workers > 0);
    Ok(workers.ok_or_else(|| config.reject(WORKERS, "a number from 1"))?)
}

/// When an object was made, in seconds since 1970.
fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()).unwrap_or_default()
}
