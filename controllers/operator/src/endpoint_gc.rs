//! Removes `CiliumEndpoints` whose pod is gone, and slices that nobody keeps.

mod collector;
mod decision;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cilia_runtime::config::Config;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::config::agents_namespace;
use crate::failure::Failure;
use crate::wiring::Context;
use collector::{Agents, Collector, Task};

/// Errors for settings that cannot work: there are none.
#[expect(clippy::unnecessary_wraps, reason = "the shape of every duty")]
pub(crate) fn check(_: &Config) -> anyhow::Result<()> {
    Ok(())
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    let interval = config.duration("cilium-endpoint-gc-interval");
    let off = config.bool("disable-endpoint-crd") || interval.is_zero();
    let lanes = vec![Lane::new("endpoint-gc")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    lanes.add(0, if off { Task::RemoveEndpoints } else { Task::Collect });
    if !config.bool("enable-cilium-endpoint-slice") {
        lanes.add(0, Task::RemoveSlices);
    }
    let agents = Agents {
        namespace: agents_namespace(config).to_owned(),
        labels: config.string("cilium-pod-labels").to_owned(),
    };
    let (client, events) = (context.client.clone(), context.events.clone());
    let collector = Collector::new(client, events, interval, agents, &context.metrics);
    let collector = Arc::new(collector);
    let handle = move |job: Job<Task>| -> BoxFuture<'static, Result<Next, Failure>> {
        let collector = Arc::clone(&collector);
        async move { collector.run(job.key).await }.boxed()
    };
    lanes.run(1, &context.stop, handle).await;
    Ok(())
}
