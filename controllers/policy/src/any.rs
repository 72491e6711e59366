//! Reads an object of whichever kind of policy, as people keep them in files.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cnp::Parsed;
use crate::config::Config;
use crate::error::Error;
use crate::rule::{Kind, PolicyId};

/// The policy that an object is, and its rules; or what is wrong with it.
pub fn any(object: &Value, config: &Config) -> Result<(PolicyId, Parsed), String> {
    fn read<K: DeserializeOwned>(
        object: &Value,
        config: &Config,
        parse: impl Fn(&K, &Config) -> Result<Parsed, Error>,
    ) -> Result<Parsed, String> {
        let object = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        parse(&object, config).map_err(|error| error.to_string())
    }
    let name = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, parsed) = match name("/kind") {
        "CiliumNetworkPolicy" => (Kind::Cilium, read(object, config, crate::cilium)?),
        "CiliumClusterwideNetworkPolicy" => {
            (Kind::CiliumClusterwide, read(object, config, crate::clusterwide)?)
        }
        "NetworkPolicy" => (Kind::Kubernetes, read(object, config, crate::kubernetes)?),
        "ClusterNetworkPolicy" => (Kind::Cluster, read(object, config, crate::cluster)?),
        other => {
            return Err(format!(
                "kind: {other:?} is not CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, \
                 NetworkPolicy or ClusterNetworkPolicy"
            ));
        }
    };
    let namespaced = matches!(kind, Kind::Cilium | Kind::Kubernetes);
    let namespace = match name("/metadata/namespace") {
        _ if !namespaced => "",
        "" => "default",
        namespace => namespace,
    };
    Ok((PolicyId { kind, namespace: namespace.into(), name: name("/metadata/name").into() }, parsed))
}
