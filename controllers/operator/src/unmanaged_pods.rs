//! Restarts pods that run without Cilium: those that started before it, with another network.

mod decision;
mod watcher;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, Scope, reflect, watch_scoped};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::wiring::Context;
use watcher::{PodState, Watcher};

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    interval(config)?;
    Ok(())
}

fn interval(config: &Config) -> Result<Duration, Error> {
    let flag = "unmanaged-pod-watcher-interval";
    let seconds = u64::try_from(config.int(flag));
    seconds.map(Duration::from_secs).map_err(|_| config.reject(flag, "0 or more seconds"))
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    let interval = interval(config)?;
    if interval.is_zero() || config.bool("disable-endpoint-crd") {
        return Ok(());
    }
    let pods: Api<Pod> = Api::all(context.client.clone());
    let scope = Scope {
        labels: config.string("pod-restart-selector").to_owned(),
        fields: "status.phase=Running".to_owned(),
    };
    let (pods, changes) = reflect(watch_scoped(pods, scope), PodState::of);
    let lanes = vec![Lane::new("unmanaged-pods")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    lanes.add(0, ());
    let watcher = Arc::new(Watcher::new(&context, pods, interval));
    let complete = CancellationToken::new();
    let pump = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(Some(change)) = context.stop.run_until_cancelled(changes.next()).await {
            if change == Change::Synced {
                complete.cancel();
            }
        }
    };
    let handle = move |_: Job<()>| -> BoxFuture<'static, Result<Next, Failure>> {
        let watcher = Arc::clone(&watcher);
        async move { watcher.run().await }.boxed()
    };
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            lanes.run(1, &context.stop, handle).await;
        }
    };
    tokio::join!(pump, work);
    Ok(())
}
