//! What a kvstore needs one head for: signs of life, who the cluster is, shared services, and collection.
//!
//! Recurring work is one queue of [`Task`]s; what follows Kubernetes or the kvstore has a file of its own.

mod double_write;
mod export;
mod identities;
mod nodes;
mod policy_status;
mod services;
mod shell;
mod silent;
mod stand_in;
mod tasks;

#[cfg(test)]
mod succession_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use cilia_kvstore::value::{Capabilities, ClusterConfig, encode};
use cilia_kvstore::{Client, Mirror, Options, Settings, Watchdog, keys};
use cilia_runtime::config::Config;
use futures::FutureExt;
use tokio_util::sync::CancellationToken;

pub(crate) use shell::commands;

use crate::http::KvstoreHealth;
use crate::wiring::Context;

/// How often the cluster's configuration is compared with what is there.
const CONFIG_RESYNC: Duration = Duration::from_mins(5);
const LEASE_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(25)..=Duration::from_hours(24);

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    if !is_on(config) {
        return Ok(());
    }
    settings(config).map(drop)
}

/// Whether there is a kvstore.
pub(crate) fn is_on(config: &Config) -> bool {
    config.string("kvstore") == "etcd"
}

fn settings(config: &Config) -> anyhow::Result<Settings> {
    let options = Options::parse(config.map("kvstore-opt"))?;
    let lease_ttl = config.duration("kvstore-lease-ttl");
    if !LEASE_TTL.contains(&lease_ttl) {
        return Err(config.reject("kvstore-lease-ttl", "25s to 24h").into());
    }
    let cluster = config.string("cluster-name").to_owned();
    Ok(Settings { lease_ttl, cluster, ..Settings::new(options) })
}

/// Looks after the kvstore, on every replica, until `stop`: probes ask whether it can be used.
pub(crate) fn health(
    config: &Config,
    stop: &CancellationToken,
) -> anyhow::Result<Option<KvstoreHealth>> {
    if !is_on(config) {
        return Ok(None);
    }
    let client = Client::new(&settings(config)?, None)?;
    client.bootstrapped();
    let watchdog = Watchdog::new(client, config.uint("kvstore-max-consecutive-quorum-errors"));
    let health = watchdog.health();
    tokio::spawn({
        let stop = stop.clone();
        async move { watchdog.run(stop).await }
    });
    Ok(Some(Arc::new(move || {
        let health = health.borrow().clone();
        let answer = if health.ok { Ok(()) } else { Err(health.message) };
        std::future::ready(answer).boxed()
    })))
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    if !is_on(config) {
        return Ok(());
    }
    let settings = settings(config)?;
    let waits = context.stop.run_until_cancelled(settings.options.wait_for_file());
    if waits.await.is_none() {
        return Ok(());
    }
    let client = Client::new(&settings, Some(&context.metrics))?;
    let tolerated = config.uint("kvstore-max-consecutive-quorum-errors");
    let watchdog = Watchdog::new(client.clone(), tolerated);
    tokio::join!(
        watchdog.run(context.stop.clone()),
        tasks::run(&context, &client),
        cluster_config(&context, &client),
        services::run(&context, &client),
        nodes::run(&context, &client),
        stand_in::run(&context, &client),
        identities::run(&context, &client),
        policy_status::run(&context, &client),
    );
    Ok(())
}

/// Says who this cluster is, and says it again when somebody takes that away.
async fn cluster_config(context: &Context, client: &Client) {
    let config = &context.config;
    let value = ClusterConfig {
        id: u32::try_from(config.uint("cluster-id")).unwrap_or_default(),
        capabilities: Capabilities {
            max_connected_clusters: u32::try_from(config.uint("max-connected-clusters"))
                .unwrap_or_default(),
            service_exports_enabled: Some(false),
            ..Capabilities::default()
        },
    };
    let key = keys::cluster_config(config.string("cluster-name"));
    let mirror =
        Mirror::new(client.clone(), "kvstore-cluster-config", CONFIG_RESYNC, &context.workqueues);
    mirror.set(key.clone(), encode(&value));
    let mut watch = client.watch(&key);
    let follow = async {
        while let Some(events) = watch.next().await {
            for event in &events {
                mirror.seen(event);
                if let cilia_kvstore::Event::Put(kv) = event
                    && kv.value != encode(&value)
                {
                    // Nobody else may say who this cluster is.
                    mirror.look(&key);
                }
            }
        }
    };
    tokio::select! {
        () = mirror.run(context.stop.clone()) => {}
        () = follow => {}
    }
}
