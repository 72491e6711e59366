//! Says on each Cilium policy whether it can be used: condition `Valid`, with the field and the fault.

mod decision;
mod reconciler;

#[cfg(test)]
mod tests;

use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_policy::{Lenient, Mode};
use cilia_runtime::config::Config;
use kube::Api;

use crate::wiring::Context;
use reconciler::Reconciler;

/// Errors for settings that cannot work.
#[expect(clippy::unnecessary_wraps, reason = "the shape of every duty")]
pub(crate) fn check(_: &Config) -> anyhow::Result<()> {
    Ok(())
}

/// What the agents will be told about policies, too.
fn policy_config(config: &Config) -> cilia_policy::Config {
    cilia_policy::Config {
        mode: Mode::parse(config.string("enable-policy")).unwrap_or_default(),
        dual_stack: config.bool("enable-ipv4") && config.bool("enable-ipv6"),
        cluster: config.string("cluster-name").into(),
        local_cluster: config.bool("policy-default-local-cluster"),
        non_default_deny: config.bool("enable-non-default-deny-policies"),
        extended_protocols: config.bool("enable-extended-ip-protocols"),
        node_selectors: config.bool("enable-node-selector-labels"),
        l7_proxy: config.bool("enable-l7-proxy"),
        host_firewall: config.bool("enable-host-firewall"),
        ..cilia_policy::Config::default()
    }
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
