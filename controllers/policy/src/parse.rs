//! Reads a policy of any kind out of JSON, and says where in it what can't be read is.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clusterpolicy::cluster;
use crate::cnp::{Parsed, cilium, clusterwide};
use crate::config::Config;
use crate::error::{Error, Note};
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

fn parsed<K: DeserializeOwned + Serialize>(
    object: &Value,
    config: &Config,
    parse: fn(&K, &Config) -> Result<Parsed, Error>,
) -> Result<Parsed, String> {
    let read: K = typed(object)?;
    let mut parsed = parse(&read, config).map_err(|error| error.to_string())?;
    // The API server removes what it doesn't know; here it would go unnoticed.
    let known = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    for member in ["spec", "specs"] {
        unknown(&object[member], &known[member], member, &mut parsed.notes);
    }
    Ok(parsed)
}

/// An object of its kind; or the field that can't be read, and why.
pub(crate) fn typed<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    // Following the path costs time, which most objects need not spend.
    K::deserialize(object).or_else(|_| {
        serde_path_to_error::deserialize(object).map_err(|error| {
            let field = error.path().to_string();
            let fault = error.into_inner();
            if field == "." { fault.to_string() } else { format!("{field}: {fault}") }
        })
    })
}

/// Notes the members that mean nothing: `known` is what was understood of `written`.
fn unknown(written: &Value, known: &Value, field: &str, notes: &mut Vec<Note>) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (name, value) in written {
                let field = format!("{field}.{name}");
                match known.get(name) {
                    Some(known) => unknown(value, known, &field, notes),
                    None if is_empty(value) => {}
                    None => {
                        let text = "there is no such field: it is ignored".to_owned();
                        notes.push(Note { field, text });
                    }
                }
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (index, (written, known)) in written.iter().zip(known).enumerate() {
                unknown(written, known, &format!("{field}[{index}]"), notes);
            }
        }
        _ => {}
    }
}

/// Whether a value may be left out when it is written again.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read;
    use crate::config::Config;

    #[test]
    fn what_means_nothing_is_noted() {
        let peers = json!([{"matchLabels": {"app": "a"}, "matchLabel": {"app": "b"}}]);
        let object = json!({"kind": "CiliumNetworkPolicy", "apiVersion": "cilium.io/v2",
            "metadata": {"name": "p", "generation": 3, "madeUp": 1}, "status": {"conditions": []},
            "spec": {"endpointSelector": {}, "description": "", "egressDeny": [], "ingress": [
                {"fromEndpoints": peers, "toPort": [{"ports": [{"port": "80"}]}]},
                {"toPorts": [{"ports": [{"port": "80", "protocol": "TCP", "end": 90}]}]}]}});
        let (_, parsed) = read(&object, &Config::default()).expect("a policy");
        let notes: Vec<String> =
            parsed.expect("valid").notes.iter().map(|note| note.field.clone()).collect();
        assert_eq!(
            notes,
            [
                "spec.ingress[0].fromEndpoints[0].matchLabel",
                "spec.ingress[0].toPort",
                "spec.ingress[1].toPorts[0].ports[0].end"
            ]
        );
        let object = json!({"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {"podSelector": {},
            "ingress": [{"ports": [{"port": 80}], "form": []}, {"from": [{"podSelector": {}, "ipblock": {"cidr": "::/0"}}]}]}});
        let (_, parsed) = read(&object, &Config::default()).expect("a policy");
        let notes = parsed.expect("valid").notes;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(notes[0].field, "spec.ingress[1].from[0].ipblock");
    }

    #[test]
    fn what_cannot_be_read_has_a_place() {
        let read = |spec| {
            let object =
                json!({"kind": "CiliumNetworkPolicy", "metadata": {"name": "p"}, "spec": spec});
            read(&object, &Config::default()).expect("a policy").1.expect_err("it can't be read")
        };
        let fault = read(
            json!({"endpointSelector": {}, "ingress": [{}, {"fromEntities": ["host", "moon"]}]}),
        );
        assert!(
            fault.starts_with("spec.ingress[1].fromEntities[1]: unknown variant `moon`"),
            "{fault}"
        );
        let fault = read(
            json!({"endpointSelector": {}, "ingress": [{"toPorts": [{"ports": [{"port": 80}]}]}]}),
        );
        assert!(
            fault.starts_with("spec.ingress[0].toPorts[0].ports[0].port: invalid type: integer"),
            "{fault}"
        );
        assert!(read(json!(7)).starts_with("spec: invalid type"), "{}", read(json!(7)));
    }
}
