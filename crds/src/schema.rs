//! Turns what schemars derives into the structural schemas that Kubernetes wants, and Cilium has.
//!
//! Two parts: schemas of single fields that no Rust type says by itself, used with `schema_with`
//! or `transform`, and [`of`], which rewrites a derived schema as a whole.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// A DNS subdomain: the names of most Kubernetes objects.
pub(crate) const DNS_SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// A label's value.
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A list of address ranges.
pub(crate) fn cidrs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "string", "format": "cidr"}})
}

/// A list of address ranges that may well be empty, and says so.
pub(crate) fn external_cidrs(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = cidrs(generator);
    schema.insert("minItems".to_owned(), json!(0));
    schema
}

/// A list of at least one address range.
pub(crate) fn pool_cidrs(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = cidrs(generator);
    schema.insert("minItems".to_owned(), json!(1));
    schema
}

/// Labels by key.
pub(crate) fn label_values(_: &mut SchemaGenerator) -> Schema {
    let value = json!({"type": "string", "maxLength": 63, "pattern": LABEL_VALUE});
    json_schema!({"type": "object", "additionalProperties": value})
}

/// An integer that is not negative; the table has this bound on some integers only.
pub(crate) fn non_negative(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 0})
}

/// Exactly one of the members must be there.
pub(crate) fn one_of(members: &'static [&'static str]) -> impl Transform {
    presence("oneOf", members)
}

/// At least one of the members must be there.
pub(crate) fn any_of(members: &'static [&'static str]) -> impl Transform {
    presence("anyOf", members)
}

fn presence(keyword: &'static str, members: &'static [&'static str]) -> impl Transform {
    move |schema: &mut Schema| {
        let arm = |name: &&str| json!({"properties": {*name: {}}, "required": [name]});
        schema.insert(keyword.to_owned(), members.iter().map(arm).collect());
    }
}

/// The structural schema of a kind's Rust type.
pub(crate) fn of<T: JsonSchema>() -> JSONSchemaProps {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema =
        settings.with_transform(Structural).into_generator().into_root_schema_for::<T>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("metadata".to_owned(), json!({"type": "object"}));
        let text = |what: &str| json!({"type": "string", "description": what});
        properties.insert("apiVersion".to_owned(), text("The version of the object's schema."));
        properties.insert("kind".to_owned(), text("The object's kind."));
        properties.sort_keys();
    }
    serde_json::from_value(schema.to_value()).expect("a derived schema has the shape of a schema")
}

/// Takes out what structural schemas can't say or Cilium's don't: that an optional member may be
/// `null`, sizes of unsigned integers, one schema per enum value.
#[derive(Debug, Clone)]
struct Structural;

impl Transform for Structural {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if let Some(object) = schema.as_object_mut() {
            object.remove("title");
            drop_null(object);
            join_enum(object);
            drop_unsigned(object);
        }
    }
}

fn drop_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(arms)) = schema.get_mut("anyOf") else {
        return;
    };
    let before = arms.len();
    arms.retain(|arm| arm.get("type").is_none_or(|name| name != "null"));
    if arms.len() < before
        && let [Value::Object(only)] = arms.as_mut_slice()
    {
        let only = std::mem::take(only);
        schema.remove("anyOf");
        for (keyword, value) in only {
            // The member's own description says more than its type's.
            schema.entry(keyword).or_insert(value);
        }
    }
}

fn join_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(arms)) = schema.get("oneOf") else {
        return;
    };
    let values: Option<Vec<Value>> = arms.iter().map(|arm| arm.get("const").cloned()).collect();
    if let Some(values) = values {
        schema.remove("oneOf");
        schema.insert("type".to_owned(), json!("string"));
        schema.insert("enum".to_owned(), Value::Array(values));
    }
}

fn drop_unsigned(schema: &mut Map<String, Value>) {
    let largest = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        _ => return,
    };
    schema.remove("format");
    if schema.get("minimum").and_then(Value::as_u64) == Some(0) {
        schema.remove("minimum");
    }
    if schema.get("maximum").and_then(Value::as_u64) == Some(largest) {
        schema.remove("maximum");
    }
}
