//! Packs `CiliumEndpoints` into `CiliumEndpointSlices`: the shell around `cilia_slices`.

mod adaptive;
mod budget;
mod confirm;
mod metrics;
mod pump;
mod rate_limits;
mod reconciler;
mod slim;
mod store;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry, Workqueues};
use cilia_slices::{MOST_ENDPOINTS, Text};
use futures::future::BoxFuture;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::wiring::Context;
use budget::Budget;
use metrics::Metrics;
use pump::Pump;
use rate_limits::RateLimits;
use reconciler::Reconciler;

pub(crate) use budget::ADAPTIVE_FLAG;

const MAX_FLAG: &str = "ces-max-ciliumendpoints-per-ces";

/// Lane of priority namespaces.
const FAST: usize = 0;
/// Lane of all others.
const STANDARD: usize = 1;
/// How long changes of ordinary namespaces are gathered into one write.
const GATHER: Duration = Duration::from_millis(500);
/// One write in this many is an ordinary namespace's, however busy priority namespaces are.
const STANDARD_SHARE: u32 = 4;
/// Writes under way at once, and how many of these ordinary namespaces'.
const WORKERS: usize = 32;
const STANDARD_WORKERS: usize = 24;

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    if config.bool("enable-cilium-endpoint-slice") {
        limits(config)?;
        max(config)?;
    }
    Ok(())
}

fn limits(config: &Config) -> Result<RateLimits, Error> {
    let flag = "ces-rate-limits";
    RateLimits::parse(config.string(flag)).map_err(|error| config.reject(flag, error.to_string()))
}

fn max(config: &Config) -> Result<usize, Error> {
    let max = usize::try_from(config.int(MAX_FLAG)).ok().filter(|max| *max > 0);
    max.ok_or_else(|| config.reject(MAX_FLAG, "a number from 1"))
}

fn lanes(budget: &Budget, workqueues: &Workqueues) -> Lanes<Text> {
    let standard = Lane {
        delay: GATHER,
        share: STANDARD_SHARE,
        most: STANDARD_WORKERS,
        apart: budget.apart(),
        ..Lane::new("cilium_endpoint_slice_standard")
    };
    let lanes = vec![Lane::new("cilium_endpoint_slice_fast"), standard];
    Lanes::new(lanes, Retry::default(), Some(budget.rate()), workqueues)
}

/// Follows endpoints and slices from the start, and writes slices once this process leads.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    if !config.bool("enable-cilium-endpoint-slice") {
        return Ok(());
    }
    let (limits, max) = (limits(config)?, max(config)?);
    let budget = Arc::new(Budget::new(limits, config, &context.metrics));
    let lanes = lanes(&budget, &context.workqueues);
    let reconciler = Arc::new(Reconciler::new(
        context.slices.clone(),
        max,
        lanes.clone(),
        Metrics::register(&context.metrics),
        Arc::clone(&budget),
    ));
    info!(max, "packing endpoints into slices");
    if max > MOST_ENDPOINTS {
        warn!(
            "{MAX_FLAG} is {max}: a slice gets {MOST_ENDPOINTS} endpoints at most, as etcd takes no object of more than 1.5 MiB"
        );
    }
    let pump = Pump::new(Arc::clone(&reconciler), budget, &context);
    let turns = Arc::clone(&reconciler);
    let turn = move |slice: &Text| turns.turn(slice);
    let handle = move |job: Job<Text>| -> BoxFuture<'static, Result<Next, Failure>> {
        let reconciler = Arc::clone(&reconciler);
        Box::pin(async move { reconciler.reconcile(&job).await })
    };
    // Nothing comes into the lanes before the pump has started the core, as leader.
    tokio::join!(
        pump.run(&context.stop, context.leading.clone()),
        lanes.run_by(WORKERS, &context.stop, turn, handle),
    );
    Ok(())
}
