//! Holds `config/crd/` against the definitions: up to date, and YAML that says the same.

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

#[test]
fn the_folder_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/crd");
    for (name, text) in cilia_crds::manifests() {
        let found = fs::read_to_string(folder.join(&name)).expect(&name);
        assert!(found == text, "config/crd/{name} is out of date: run `make manifests`");
    }
}

#[test]
fn the_yaml_says_what_the_definitions_say() {
    let mut read: Vec<CustomResourceDefinition> = Vec::new();
    for (name, text) in cilia_crds::manifests() {
        if name != "kustomization.yaml" {
            read.push(serde_saphyr::from_str(&text).expect(&name));
        }
    }
    assert_eq!(read, cilia_crds::all());
}
