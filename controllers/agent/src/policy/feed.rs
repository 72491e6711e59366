//! Watches the kinds of policy that the configuration switches on, as one stream of changes.

use std::fmt::Debug;

use cilia_crds::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use cilia_policy::{ClusterNetworkPolicy, Config, Kind, Lenient, Note, PolicyId, rule::Rule};
use cilia_runtime::watch::{Event, Key, watch};
use futures::StreamExt as _;
use futures::stream::{self, SelectAll};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use super::closed::Closed;
use super::references::{self, Feed, Reference};

/// Which kinds of policy count.
#[derive(Debug, Clone, Copy)]
pub struct Kinds {
    /// `enable-cilium-network-policy`.
    pub cilium: bool,
    /// `enable-cilium-clusterwide-network-policy`.
    pub clusterwide: bool,
    /// `enable-k8s-networkpolicy`.
    pub kubernetes: bool,
}

/// A change of the policies.
#[derive(Debug)]
pub(super) enum News {
    /// A policy is new or changed.
    Policy(PolicyId, Vec<Rule>, Vec<Note>),
    /// A policy is new or changed, and can't be used; the rules are what it closes all the same.
    Fault(PolicyId, String, Vec<Rule>),
    /// A policy is gone.
    Gone(PolicyId),
    /// Something that policies refer to has changed.
    Reference(Reference),
    /// Every policy of one kind has been listed.
    Synced,
}

/// Every policy and what it refers to, and how many feeds are to be [`News::Synced`].
pub(super) fn policies(client: &Client, kinds: Kinds, config: &Config) -> (SelectAll<Feed>, usize) {
    let mut feeds = vec![references::api_server(client)];
    if kinds.cilium || kinds.clusterwide {
        feeds.push(references::groups(client));
    }
    if kinds.cilium {
        feeds.push(feed::<CiliumNetworkPolicy>(client, Kind::Cilium, config, |policy, config| {
            cilia_policy::cilium(policy, config)
        }));
    }
    if kinds.clusterwide {
        feeds.push(feed::<CiliumClusterwideNetworkPolicy>(
            client,
            Kind::CiliumClusterwide,
            config,
            cilia_policy::clusterwide,
        ));
    }
    if kinds.kubernetes {
        feeds.push(feed::<NetworkPolicy>(
            client,
            Kind::Kubernetes,
            config,
            cilia_policy::kubernetes,
        ));
        feeds.push(references::cluster_policies(client));
    }
    let count = feeds.len();
    (stream::select_all(feeds), count)
}

/// Every `ClusterNetworkPolicy`, once the cluster knows the kind.
pub(super) fn cluster_policies(client: &Client, config: &Config) -> Feed {
    feed::<ClusterNetworkPolicy>(client, Kind::Cluster, config, cilia_policy::cluster)
}

fn feed<K>(
    client: &Client,
    kind: Kind,
    config: &Config,
    parse: fn(&K, &Config) -> Result<cilia_policy::Parsed, cilia_policy::Error>,
) -> Feed
where
    K: Closed<DynamicType = ()> + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let config = config.clone();
    let id = move |key: Key| PolicyId { kind, namespace: key.namespace, name: key.name };
    let news = move |event: Event<Lenient<K>>| match event {
        Event::Synced => News::Synced,
        Event::Deleted(key) => News::Gone(id(key)),
        Event::Applied(policy) => {
            let id = id(Key::of(&policy));
            let object = match policy.object {
                Ok(object) => object,
                Err(error) => return News::Fault(id, error, Vec::new()),
            };
            match parse(&object, &config) {
                Ok(parsed) => News::Policy(id, parsed.rules, parsed.notes),
                Err(error) => {
                    let closed = object.closed_if_edited();
                    let closed = closed.and_then(|closed| parse(&closed, &config).ok());
                    let rules = closed.map(|parsed| parsed.rules).unwrap_or_default();
                    News::Fault(id, error.to_string(), rules)
                }
            }
        }
    };
    Box::pin(watch(Api::<Lenient<K>>::all(client.clone())).map(news))
}
