//! Decides how an operator is started on an API server that knows nothing of Cilium.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::operator::Operator;

/// How long an operator may take to register the CRDs.
const LIMIT: Duration = Duration::from_mins(1);

/// The name and the words of an operator's command, given as `NAME=COMMAND`.
pub(crate) fn named(argument: &str) -> Result<(&str, Vec<String>)> {
    let (name, command) =
        argument.split_once('=').context("--operator: want NAME=COMMAND, '=' is missing")?;
    Ok((name, words(command)))
}

/// The words of a command.
pub(crate) fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

/// Lets the operator register the CRDs, which objects need before it can be measured.
pub(crate) async fn register_crds(
    client: &Client,
    start: impl Fn() -> Result<Operator>,
    served: impl AsyncFn() -> bool,
) -> Result<()> {
    let mut operator = start()?;
    until(LIMIT, "it registered no CRDs", served).await?;
    operator.kill()?;
    forget_leader(client).await
}

/// Whether objects of a kind can be listed, that is, its CRD is established.
pub(crate) async fn is_served<K>(client: &Client) -> bool
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    Api::<K>::all(client.clone()).list(&ListParams::default().limit(1)).await.is_ok()
}

/// Removes the lease that a killed operator holds, so that the next one need not wait for its end.
pub(crate) async fn forget_leader(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::all(client.clone());
    for lease in leases.list(&ListParams::default()).await? {
        if lease.name_any() == "cilium-operator-resource-lock" {
            let namespace = lease.namespace().context("a lease without a namespace")?;
            let api: Api<Lease> = Api::namespaced(client.clone(), &namespace);
            api.delete(&lease.name_any(), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Waits until something is so; `otherwise` says what is not, once `limit` is over.
pub(crate) async fn until(
    limit: Duration,
    otherwise: &str,
    is_so: impl AsyncFn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !is_so().await {
        ensure!(Instant::now() < deadline, "{otherwise} within {limit:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
