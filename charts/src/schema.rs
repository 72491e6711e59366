//! Decides what `values.schema.json` says: each value's type, and that no other value exists.
//!
//! A name that neither Cilium's chart nor ours knows is an error, so a typo cannot pass as a setting.
//! What a type alone cannot say (a CIDR, a range, a choice) is in `data/value-rules.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{Error, values};

const RULES: &str = include_str!("../data/value-rules.json");

/// A value, or a folder of values.
#[derive(Default)]
struct Node {
    schema: Option<Value>,
    children: BTreeMap<String, Node>,
}

/// The text of `values.schema.json`.
pub fn generate() -> Result<String, Error> {
    let rules: Map<String, Value> = serde_json::from_str(RULES).map_err(|cause| Error::Parse {
        what: "value-rules.json".into(),
        cause: cause.to_string(),
    })?;
    let known = values::cilium()?;
    let mut root = Node::default();
    for (path, known) in &known {
        root.insert(path, of_kind(&known.kind));
    }
    for (path, default) in values::ours(&known)? {
        if !known.contains_key(&path) {
            root.insert(&path, of_default(&default));
        }
    }
    for (path, rule) in &rules {
        if path != "definitions" {
            root.insert(path, rule.clone());
        }
    }
    root.insert("global", json!({"type": "object"}));
    let mut schema = root.schema();
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["definitions"] = rules.get("definitions").cloned().unwrap_or_default();
    Ok(format!("{schema:#}\n"))
}

impl Node {
    fn insert(&mut self, path: &str, schema: Value) {
        let node = path
            .split('.')
            .fold(self, |node, name| node.children.entry(name.to_owned()).or_default());
        node.schema = Some(schema);
    }

    fn schema(&self) -> Value {
        if self.children.is_empty() {
            return self.schema.clone().unwrap_or_else(|| json!({}));
        }
        let properties: Map<String, Value> =
            self.children.iter().map(|(name, node)| (name.clone(), node.schema())).collect();
        // A map whose keys are free, some of which are known.
        let open = self.schema.is_some();
        json!({"type": "object", "properties": properties, "additionalProperties": open})
    }
}

/// The schema of a type as the table names it. Null takes a default away, so it is always allowed.
fn of_kind(kind: &str) -> Value {
    let types =
        kind.strip_prefix("null (").and_then(|inner| inner.strip_suffix(')')).unwrap_or(kind);
    let names: Option<Vec<&str>> = types
        .split('|')
        .map(|name| match name {
            "bool" | "boolean" => Some("boolean"),
            "int" | "integer" => Some("integer"),
            "list" | "array" => Some("array"),
            "map" | "object" => Some("object"),
            "number" => Some("number"),
            "string" => Some("string"),
            _ => None,
        })
        .chain([Some("null")])
        .collect();
    names.map_or_else(|| json!({}), |names| json!({"type": names}))
}

/// The schema of a value of our own, by its default.
fn of_default(default: &Value) -> Value {
    match default {
        Value::Null => json!({}),
        Value::Bool(_) => of_kind("bool"),
        Value::Number(_) => of_kind("number"),
        Value::String(_) => of_kind("string"),
        Value::Array(_) => of_kind("list"),
        Value::Object(_) => of_kind("map"),
    }
}
