//! The definitions as YAML, the way they lie in `config/crd/`.

use std::fmt::Write as _;

use serde_json::{Number, Value};

const HEADER: &str = "# Made by cilia-crds-generate from the types in crds/: change those.\n";

/// The files of `config/crd/` with their texts: one per kind, and the kustomization that lists them.
#[expect(clippy::missing_panics_doc, reason = "what is there to say is fixed, and tested")]
pub fn manifests() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut kustomization = format!(
        "{HEADER}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    );
    for crd in crate::all() {
        let name = format!("{}.yaml", crd.spec.names.plural);
        let mut value = serde_json::to_value(&crd).expect("a definition is JSON");
        make_whole(&mut value);
        let text = serde_saphyr::to_string(&value).expect("JSON is YAML");
        writeln!(kustomization, "- {name}").expect("a string takes what is written to it");
        files.push((name, format!("{HEADER}{text}")));
    }
    files.push(("kustomization.yaml".to_owned(), kustomization));
    files
}

/// Writes `1` for `1.0`: bounds are floating point numbers in the API's types.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            if let Some(whole) = text.strip_suffix(".0").and_then(|text| text.parse::<i64>().ok()) {
                *number = Number::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(object) => object.values_mut().for_each(make_whole),
        _ => {}
    }
}
