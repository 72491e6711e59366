//! Reads a policy of any kind.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clusterpolicy::cluster;
use crate::cnp::{Parsed, cilium, clusterwide};
use crate::config::Config;
use crate::error::Error;
use crate::knp::kubernetes;
use crate::rule::{Kind, PolicyId};

/// A policy's name, and what it says or what is wrong with it; nothing, if the object is none.
pub fn read(object: &Value, config: &Config) -> Option<(PolicyId, Result<Parsed, String>)> {
    let kind = object["kind"].as_str()?;
    let (kind, parsed) = match kind {
        "CiliumNetworkPolicy" => (Kind::Cilium, parsed(object, config, cilium)),
        "CiliumClusterwideNetworkPolicy" => {
            (Kind::CiliumClusterwide, parsed(object, config, clusterwide))
        }
        "NetworkPolicy" => (Kind::Kubernetes, parsed(object, config, kubernetes)),
        "ClusterNetworkPolicy" => (Kind::Cluster, parsed(object, config, cluster)),
        _ => return None,
    };
    let text = |name: &str| object["metadata"][name].as_str();
    let namespace = match kind {
        Kind::Cilium | Kind::Kubernetes => text("namespace").unwrap_or("default"),
        Kind::CiliumClusterwide | Kind::Cluster => "",
    };
    let name = text("name").unwrap_or_default().into();
    Some((PolicyId { kind, namespace: namespace.into(), name }, parsed))
}

fn parsed<K: DeserializeOwned>(
    object: &Value,
    config: &Config,
    parse: fn(&K, &Config) -> Result<Parsed, Error>,
) -> Result<Parsed, String> {
    let object: K = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    parse(&object, config).map_err(|error| error.to_string())
}
