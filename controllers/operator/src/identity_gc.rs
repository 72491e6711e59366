//! Removes `CiliumIdentities` that nobody uses: silence, mark, silence, delete.

mod collector;
mod heartbeats;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cilia_crds::CiliumIdentity;
use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Rate, Retry};
use cilia_runtime::watch::{Change, PartialObjectMeta, reflect, watch};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::wiring::Context;
use collector::{Collector, IdentityState};

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    rate(config)?;
    Ok(())
}

/// Deletions per second, and at once.
fn rate(config: &Config) -> Result<(f64, f64), Error> {
    let (limit, interval) = ("identity-gc-rate-limit", "identity-gc-rate-interval");
    let seconds = config.duration(interval).as_secs_f64();
    if seconds <= 0.0 {
        return Err(config.reject(interval, "more than 0"));
    }
    let deletions = u32::try_from(config.int(limit)).ok().filter(|limit| *limit > 0);
    let deletions = deletions.ok_or_else(|| config.reject(limit, "a number from 1"))?;
    Ok((f64::from(deletions) / seconds, f64::from(deletions)))
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    let interval = config.duration("identity-gc-interval");
    let in_kubernetes = config.string("identity-allocation-mode") != "kvstore";
    if interval.is_zero() || !in_kubernetes {
        return Ok(());
    }
    let (per_second, burst) = rate(config)?;
    let identities: Api<PartialObjectMeta<CiliumIdentity>> = Api::all(context.client.clone());
    let (identities, changes) = reflect(watch(identities), IdentityState::of);
    let lanes = vec![Lane::new("crd-identity-gc")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    lanes.add(0, ());
    let collector = Arc::new(Collector::new(
        context.client.clone(),
        identities,
        collector::Settings {
            interval,
            timeout: config.duration("identity-heartbeat-timeout"),
            slices: config.bool("enable-cilium-endpoint-slice"),
        },
        Rate::new(per_second, burst),
        &context.metrics,
    ));
    let complete = CancellationToken::new();
    let pump = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(Some(change)) = context.stop.run_until_cancelled(changes.next()).await {
            match change {
                Change::Object { key, new, .. } => collector.heard(&key.name, new.is_some()),
                Change::Synced => complete.cancel(),
            }
        }
    };
    let handle = {
        let (collector, metrics) = (Arc::clone(&collector), context.metrics.clone());
        move |_: Job<()>| -> BoxFuture<'static, Result<Next, Failure>> {
            let (collector, metrics) = (Arc::clone(&collector), metrics.clone());
            async move {
                let result = collector.run().await;
                metrics.group_ran("crd-identity-gc", result.is_ok());
                result
            }
            .boxed()
        }
    };
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            lanes.run(1, &context.stop, handle).await;
        }
    };
    tokio::join!(pump, work);
    Ok(())
}
