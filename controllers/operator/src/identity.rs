//! Makes the `CiliumIdentities` of pods, where the operator does that: the shell around `cilia_identity`.

mod metrics;
mod reconciler;
mod sources;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::Context as _;
use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity};
use cilia_identity::{Fixed, Managed, Space, namespace_labels};
use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{PartialObjectMeta, reflect, watch};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, select_all};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::label_filter;
use crate::wiring::Context;
use metrics::Metrics;
use reconciler::{Item, Reconciler, Trouble};
use sources::{Heard, PodState};

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    space(config)?;
    fixed(config)?;
    Ok(())
}

/// Numbers that pods ask for by name: agents know them, so they need no `CiliumIdentity`.
fn fixed(config: &Config) -> Result<Fixed, Error> {
    let flag = "fixed-identity-mapping";
    Fixed::parse(config.map(flag)).ok_or_else(|| config.reject(flag, Fixed::ALLOWED))
}

/// The numbers that the cluster's identities have.
pub(crate) fn space(config: &Config) -> anyhow::Result<Space> {
    let number =
        |flag| u32::try_from(config.uint(flag)).map_err(|_| config.reject(flag, "at most 511"));
    Ok(Space::new(number("cluster-id")?, number("max-connected-clusters")?)?)
}

/// Whether the operator makes identities. Where nothing can be told apart by them, nobody needs any.
fn is_wanted(config: &Config) -> bool {
    let policies = [
        "enable-k8s-networkpolicy",
        "enable-cilium-network-policy",
        "enable-cilium-clusterwide-network-policy",
    ];
    let useless = config.string("enable-policy") == "never"
        && policies.iter().all(|flag| !config.bool(flag))
        && config.bool("disable-endpoint-crd")
        && config.string("identity-allocation-mode") == "crd";
    config.string("identity-management-mode") != "agent" && !useless
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    if !is_wanted(config) {
        return Ok(());
    }
    let client = &context.client;
    let pods: Api<Pod> = Api::all(client.clone());
    let filter = Arc::new(label_filter(config).context("the label filter")?);
    let of_pod = {
        let (filter, cluster) = (Arc::clone(&filter), config.string("cluster-name").to_owned());
        let fixed = fixed(config)?;
        move |pod| PodState::of(pod, &filter, &fixed, &cluster)
    };
    let (pods, pod_changes) = reflect(watch(pods), of_pod);
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let of_namespace = move |namespace: PartialObjectMeta<Namespace>| {
        let labels = namespace.metadata.labels.unwrap_or_default();
        Some(filter.apply(&namespace_labels(&labels)))
    };
    let (namespaces, namespace_changes) = reflect(watch(namespaces), of_namespace);
    let identities: Api<CiliumIdentity> = Api::all(client.clone());
    let mut sources: Vec<BoxStream<'static, Heard>> = vec![
        pod_changes.map(sources::pod).boxed(),
        namespace_changes.map(sources::namespace).boxed(),
        watch(identities).map(sources::identity).boxed(),
    ];
    // Who is in use is said by slices, where there are any: then agents may not publish all endpoints.
    if config.bool("enable-cilium-endpoint-slice") {
        let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
        sources.push(watch(slices).map(sources::slice).boxed());
    } else if !config.bool("disable-endpoint-crd") {
        let endpoints: Api<CiliumEndpoint> = Api::all(client.clone());
        sources.push(watch(endpoints).map(sources::endpoint).boxed());
    }
    let expected = sources.len();

    // Nothing is drawn before everything that exists is known: it would look free.
    let complete = CancellationToken::new();
    let lanes = vec![Lane::new("ciliumidentity_resource")];
    let lanes: Lanes<Item> = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let reconciler = Arc::new(Reconciler {
        client: client.clone(),
        events: context.events.clone(),
        managed: std::sync::Mutex::new(Managed::new(context.space)),
        pods,
        namespaces,
        complete: complete.clone(),
        lanes: lanes.clone(),
        metrics: Metrics::new(&context.metrics),
        conflicts: crate::conflicts::Conflicts::default(),
        first: std::sync::Mutex::default(),
        unplaced: std::sync::Mutex::default(),
    });

    let pump = async {
        let mut heard = select_all(sources);
        let mut synced = 0;
        while let Some(Some(heard)) = context.stop.run_until_cancelled(heard.next()).await {
            if matches!(heard, Heard::Synced) {
                synced += 1;
                if synced == expected {
                    info!("all pods and identities are known: identities are made");
                    complete.cancel();
                }
            } else {
                reconciler.hear(heard);
            }
        }
    };
    let handle = |job: Job<Item>| -> BoxFuture<'static, Result<Next, Trouble>> {
        let reconciler = Arc::clone(&reconciler);
        async move { reconciler.reconcile(&job).await }.boxed()
    };
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            let start = context.stop.run_until_cancelled(reconciler.start());
            tokio::join!(start, lanes.run(1, &context.stop, handle));
        }
    };
    tokio::join!(pump, work);
    Ok(())
}
