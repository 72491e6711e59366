//! Gives each node its ranges of pod addresses: the shell around `cilia_ipam`, a file per mode.

mod cluster_pool;
mod metrics;
mod multi_pool;
mod reconciler;

#[cfg(test)]
mod tests;

use cilia_runtime::config::Config;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use crate::wiring::Context;

const CLUSTER_POOL: &str = "cluster-pool";
const MULTI_POOL: &str = "multi-pool";
const WORKERS: &str = "parallel-alloc-workers";
/// An annotation that is only there while writes of a leader that was cut off may be under way.
const FENCE_ANNOTATION: &str = "ipam.cilia.io/fence";

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

/// A patch that is refused if the object is another or has changed.
fn guard(uid: &str, resource_version: &str) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": resource_version } })
}

/// A patch that does nothing but move the object's version.
fn fence(uid: &str, resource_version: &str) -> Value {
    let mut patch = guard(uid, resource_version);
    patch["metadata"]["annotations"] = json!({ FENCE_ANNOTATION: resource_version });
    patch
}

/// The same guard for a patch that makes the fence, if there is one, unnecessary.
fn guard_and_unfence(uid: &str, resource_version: &str, fenced: bool) -> Value {
    let mut patch = guard(uid, resource_version);
    if fenced {
        patch["metadata"]["annotations"] = json!({ FENCE_ANNOTATION: null });
    }
    patch
}

/// When an object was made, in seconds since 1970.
fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()).unwrap_or_default()
}
