//! Removes `CiliumIdentities` that nobody uses: silence, mark, silence, delete.

mod collector;
mod counts;
mod heartbeats;
mod pace;
mod report;
mod revision;

#[cfg(test)]
mod exhaustion;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, NumericIdentity};
use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, Event, Key, reflect, watch};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, select_all};
use futures::{FutureExt, StreamExt};
use kube::Api;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::wiring::Context;
use collector::{Collector, IdentityState};
pub(crate) use counts::{Collection, Collections};
use report::Report;

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    rate(config)?;
    Ok(())
}

/// Deletions per second, and at once.
pub(crate) fn rate(config: &Config) -> Result<(f64, f64), Error> {
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
    let client = &context.client;
    let identities: Api<CiliumIdentity> = Api::all(client.clone());
    let (identities, changes) = reflect(watch(identities), IdentityState::of);
    let mut sources: Vec<BoxStream<'static, Heard>> = vec![changes.map(Heard::identity).boxed()];
    if !config.bool("disable-endpoint-crd") {
        let endpoints: Api<CiliumEndpoint> = Api::all(client.clone());
        sources.push(watch(endpoints).map(Heard::endpoint).boxed());
    }
    if config.bool("enable-cilium-endpoint-slice") {
        let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
        sources.push(watch(slices).map(Heard::slice).boxed());
    }
    if sources.len() == 1 {
        warn!("identities are not collected: neither endpoints nor slices say which are in use");
        return Ok(());
    }
    let lanes = vec![Lane::new("crd-identity-gc")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    lanes.add(0, ());
    let settings = collector::Settings {
        interval,
        timeout: config.duration("identity-heartbeat-timeout"),
        floor: rate(config)?,
        space: context.space,
    };
    let report = Report::new(&context.metrics, &context.collections, context.events.clone());
    let collector = Arc::new(Collector::new(client.clone(), identities, settings, report));
    let complete = CancellationToken::new();
    let pump = async {
        let mut missing = sources.len();
        let mut heard = select_all(sources);
        while let Some(Some(heard)) = context.stop.run_until_cancelled(heard.next()).await {
            match heard {
                Heard::Identity { name, existed, exists } => {
                    collector.heard(&name, existed, exists);
                }
                Heard::Users(who, identities) => collector.used(who, identities),
                Heard::Synced => {
                    missing -= 1;
                    if missing == 0 {
                        complete.cancel();
                    }
                }
            }
        }
    };
    let handle = {
        let (collector, metrics) = (Arc::clone(&collector), context.metrics.clone());
        move |_: Job<()>| -> BoxFuture<'static, Result<Next, Infallible>> {
            let (collector, metrics) = (Arc::clone(&collector), metrics.clone());
            async move {
                let next = collector.run().await;
                metrics.group_ran("crd-identity-gc", true);
                Ok(next)
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

/// Something has changed.
#[derive(Debug)]
enum Heard {
    Identity {
        name: Arc<str>,
        existed: bool,
        exists: bool,
    },
    /// An endpoint or a slice uses these identities now.
    Users(Key, Vec<NumericIdentity>),
    /// One of the sources is complete.
    Synced,
}

impl Heard {
    fn identity(change: Change<IdentityState>) -> Self {
        match change {
            Change::Object { key, old, new } => {
                Self::Identity { name: key.name, existed: old.is_some(), exists: new.is_some() }
            }
            Change::Synced => Self::Synced,
        }
    }

    fn endpoint(event: Event<CiliumEndpoint>) -> Self {
        match event {
            Event::Applied(endpoint) => {
                let identity = endpoint.status.as_ref().and_then(|status| status.identity.as_ref());
                let number = identity.and_then(|identity| number(identity.id?));
                Self::Users(Key::of(&endpoint), number.into_iter().collect())
            }
            Event::Deleted(key) => Self::Users(key, Vec::new()),
            Event::Synced => Self::Synced,
        }
    }

    fn slice(event: Event<CiliumEndpointSlice>) -> Self {
        match event {
            Event::Applied(slice) => {
                let numbers = slice.endpoints.iter().filter_map(|entry| number(entry.id?));
                Self::Users(Key::of(&slice), numbers.collect())
            }
            Event::Deleted(key) => Self::Users(key, Vec::new()),
            Event::Synced => Self::Synced,
        }
    }
}

fn number(id: i64) -> Option<NumericIdentity> {
    u32::try_from(id).ok().map(NumericIdentity)
}
