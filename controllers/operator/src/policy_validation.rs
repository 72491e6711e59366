//! Says on each Cilium policy whether it can be used: condition `Valid`, with the field and the fault.

mod decision;
mod reconciler;

#[cfg(test)]
mod tests;

use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_policy::Lenient;
use cilia_runtime::config::Config;
use kube::Api;

use crate::wiring::Context;
use reconciler::Reconciler;

/// Errors for settings that cannot work.
#[expect(clippy::unnecessary_wraps, reason = "the shape of every duty")]
pub(crate) fn check(_: &Config) -> anyhow::Result<()> {
    Ok(())
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    if !config.bool("validate-network-policy") {
        return Ok(());
    }
    let namespaced = async {
        if config.bool("enable-cilium-network-policy") {
            let api = |client, namespace: &str| {
                Api::<Lenient<CiliumNetworkPolicy>>::namespaced(client, namespace)
            };
            let all = Api::all(context.client.clone());
            Reconciler::new(&context, api, cilia_policy::cilium).run(all).await;
        }
    };
    let clusterwide = async {
        if config.bool("enable-cilium-clusterwide-network-policy") {
            let api = |client, _: &str| Api::<Lenient<CiliumClusterwideNetworkPolicy>>::all(client);
            let all = Api::all(context.client.clone());
            Reconciler::new(&context, api, cilia_policy::clusterwide).run(all).await;
        }
    };
    tokio::join!(namespaced, clusterwide);
    Ok(())
}
