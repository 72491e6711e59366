//! A definition as rows of the tables: one per schema node, one per version.

use serde_json::{Map, Value};

/// Columns of the table of schema nodes.
pub(crate) const COLUMNS: [&str; 26] = [
    "kind",
    "version",
    "path",
    "type",
    "format",
    "required",
    "enum",
    "pattern",
    "min",
    "max",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "default",
    "nullable",
    "list-type",
    "list-map-keys",
    "map-type",
    "preserve-unknown-fields",
    "int-or-string",
    "embedded-resource",
    "combinators",
    "cel",
];

/// Columns of the table of kinds.
pub(crate) const META_COLUMNS: [&str; 14] = [
    "kind",
    "listKind",
    "group",
    "version",
    "served",
    "storage",
    "deprecated",
    "scope",
    "plural",
    "singular",
    "shortNames",
    "categories",
    "subresources",
    "printerColumns",
];

/// Schema keywords that are called otherwise in the table.
const RENAMED: [(&str, &str); 7] = [
    ("minimum", "min"),
    ("maximum", "max"),
    ("x-kubernetes-list-type", "list-type"),
    ("x-kubernetes-map-type", "map-type"),
    ("x-kubernetes-preserve-unknown-fields", "preserve-unknown-fields"),
    ("x-kubernetes-int-or-string", "int-or-string"),
    ("x-kubernetes-embedded-resource", "embedded-resource"),
];

/// The rows of a definition's schema nodes.
pub(crate) fn field_rows(crd: &Value) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for version in list(&crd["spec"]["versions"]) {
        let names = [text(&crd["spec"]["names"]["kind"]), text(&version["name"])];
        walk(&names, "", &version["schema"]["openAPIV3Schema"], false, &mut rows);
    }
    rows
}

/// The rows of a definition's versions.
pub(crate) fn meta_rows(crd: &Value) -> Vec<Vec<String>> {
    let (spec, names) = (&crd["spec"], &crd["spec"]["names"]);
    let row = |version: &Value| {
        let columns = list(&version["additionalPrinterColumns"]).iter().map(|column| {
            let priority = column["priority"].as_i64().unwrap_or(0).to_string();
            [text(&column["name"]), text(&column["type"]), text(&column["jsonPath"]), priority]
                .join("|")
        });
        let subresources = version["subresources"].as_object().into_iter().flat_map(Map::keys);
        let flag = |name: &str| version[name].as_bool().unwrap_or(false).to_string();
        vec![
            text(&names["kind"]),
            text(&names["listKind"]),
            text(&spec["group"]),
            text(&version["name"]),
            flag("served"),
            flag("storage"),
            flag("deprecated"),
            text(&spec["scope"]),
            text(&names["plural"]),
            text(&names["singular"]),
            joined(&names["shortNames"], ","),
            joined(&names["categories"], ","),
            subresources.cloned().collect::<Vec<_>>().join(","),
            columns.collect::<Vec<_>>().join(";"),
        ]
    };
    list(&spec["versions"]).iter().map(row).collect()
}

fn walk(
    names: &[String; 2],
    path: &str,
    node: &Value,
    required: bool,
    rows: &mut Vec<Vec<String>>,
) {
    let node = node.as_object().expect("a schema is an object");
    let mut row = vec![String::new(); COLUMNS.len()];
    let mut set = |column: &str, value: String| {
        row[COLUMNS.iter().position(|name| *name == column).expect(column)] = value;
    };
    set("kind", names[0].clone());
    set("version", names[1].clone());
    set("path", if path.is_empty() { "." } else { path }.to_owned());
    set("required", if required { "y" } else { "n" }.to_owned());
    let mut combinators = Map::new();
    for (keyword, value) in node {
        match keyword.as_str() {
            "properties" | "items" | "additionalProperties" | "required" | "description" => {}
            "enum" => set("enum", joined(value, "|")),
            "default" => set("default", canonical(value.clone())),
            "x-kubernetes-list-map-keys" => set("list-map-keys", joined(value, ",")),
            "x-kubernetes-validations" => {
                let rule = |rule: &Value| text(&rule["rule"]);
                let words = |rule: String| rule.split_whitespace().collect::<Vec<_>>().join(" ");
                let rules: Vec<_> = list(value).iter().map(rule).map(words).collect();
                set("cel", rules.join(" ;; "));
            }
            "oneOf" | "anyOf" | "allOf" | "not" => {
                combinators.insert(keyword.clone(), without_descriptions(value.clone()));
            }
            name => {
                let renamed = RENAMED.iter().find(|(keyword, _)| *keyword == name);
                set(renamed.map_or(name, |(_, column)| column), text(value));
            }
        }
    }
    if !combinators.is_empty() {
        set("combinators", canonical(Value::Object(combinators)));
    }
    rows.push(row);

    let needed = node.get("required").map_or(&[][..], list);
    let properties = node.get("properties").and_then(Value::as_object).into_iter().flatten();
    let mut known = 0;
    for (name, property) in properties {
        let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        let segment = if plain { name.clone() } else { format!("\"{name}\"") };
        let required = needed.iter().any(|needed| needed == name);
        known += usize::from(required);
        walk(names, &format!("{path}.{segment}"), property, required, rows);
    }
    assert_eq!(known, needed.len(), "required but undeclared at {names:?} {path}");
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(inner @ Value::Object(_)) = node.get(keyword) {
            walk(names, &format!("{path}{suffix}"), inner, false, rows);
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn joined(value: &Value, separator: &str) -> String {
    list(value).iter().map(text).collect::<Vec<_>>().join(separator)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // Bounds are floating point numbers in the API's types, and whole ones in the table.
        Value::Number(number) => number.to_string().trim_end_matches(".0").to_owned(),
        other => other.to_string(),
    }
}

fn canonical(mut value: Value) -> String {
    value.sort_all_objects();
    value.to_string()
}

fn without_descriptions(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept =
                |(name, inner): &(String, Value)| name != "description" || !inner.is_string();
            let strip = |(name, inner)| (name, without_descriptions(inner));
            Value::Object(object.into_iter().filter(kept).map(strip).collect())
        }
        Value::Array(items) => items.into_iter().map(without_descriptions).collect(),
        other => other,
    }
}
