//! Bad policies of every kind, and what their authors are told: the field, the fault, what would be right.

mod peers;
mod ports;
mod rules;
mod selectors;

use cilia_policy::{Config, read};
use serde_json::{Value, json};

/// What is said of an object, as the condition `Valid` has it: its fault, else `Ok` with its notes.
pub(crate) fn told(kind: &str, mut object: Value) -> Result<Vec<String>, String> {
    object["kind"] = json!(kind);
    if object["metadata"].is_null() {
        object["metadata"] = json!({"name": "p", "namespace": "test"});
    }
    let (_, parsed) = read(&object, &Config::default()).expect("a policy");
    parsed.map(|parsed| parsed.notes.iter().map(ToString::to_string).collect())
}

/// A rule for all endpoints with one item in a section, in a `CiliumNetworkPolicy`.
pub(crate) fn item(section: &str, item: &Value) -> Result<Vec<String>, String> {
    told("CiliumNetworkPolicy", json!({"spec": {"endpointSelector": {}, section: [item]}}))
}

/// The same with these ports as the only element of `toPorts`.
pub(crate) fn element(section: &str, element: &Value) -> Result<Vec<String>, String> {
    item(section, &json!({"toPorts": [element]}))
}

pub(crate) fn is(name: &str, got: Result<Vec<String>, String>, want: &str) {
    assert_eq!(got.expect_err(name), want, "{name}");
}

/// Whether a fault, or the only note, begins so.
pub(crate) fn begins(name: &str, got: Result<Vec<String>, String>, want: &str) {
    let got = match got {
        Ok(notes) => {
            assert_eq!(notes.len(), 1, "{name}: {notes:?}");
            notes[0].clone()
        }
        Err(fault) => fault,
    };
    assert!(got.starts_with(want), "{name}: {got}");
}
