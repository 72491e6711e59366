//! Holds every generated definition against the tables of what Cilium's are: each node of each
//! schema, and what is said about each kind. There is no deviation.

#[path = "tables/flatten.rs"]
mod flatten;

use std::collections::BTreeMap;

use flatten::{COLUMNS, META_COLUMNS, field_rows, meta_rows};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// Cells by the columns that name the row.
type Table = BTreeMap<Vec<String>, Vec<String>>;

fn definitions() -> Vec<Value> {
    let all = cilia_crds::all();
    all.iter().map(|crd| serde_json::to_value(crd).expect("definitions are JSON")).collect()
}

fn read(text: &str, header: &[&str], keys: &[&str]) -> Table {
    let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    assert_eq!(lines.next().expect("a header"), header);
    table(lines.map(|line| line.into_iter().map(str::to_owned).collect()), header, keys)
}

fn table(rows: impl IntoIterator<Item = Vec<String>>, header: &[&str], keys: &[&str]) -> Table {
    let place = |key: &&str| header.iter().position(|column| column == key).expect("a column");
    let places: Vec<usize> = keys.iter().map(place).collect();
    let named = |row: Vec<String>| (places.iter().map(|&at| row[at].clone()).collect(), row);
    let rows: Vec<_> = rows.into_iter().map(named).collect();
    let count = rows.len();
    let table: Table = rows.into_iter().collect();
    assert_eq!(table.len(), count, "two rows of one name");
    table
}

fn differences(got: &Table, want: &Table, header: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, row) in want {
        let Some(made) = got.get(name) else {
            found.push(format!("{}: missing", name.join(" ")));
            continue;
        };
        let name = name.join(" ");
        for (column, (made, row)) in header.iter().zip(made.iter().zip(row)) {
            if made != row {
                found.push(format!("{name}: {column} is {made:?}, not {row:?}"));
            }
        }
    }
    let extra = got.keys().filter(|name| !want.contains_key(*name));
    found.extend(extra.map(|name| format!("{}: not in the table", name.join(" "))));
    found
}

#[test]
fn every_schema_node_is_as_the_table_says() {
    let keys = ["kind", "version", "path"];
    let want = read(include_str!("data/crd-fields.tsv"), &COLUMNS, &keys);
    let got = table(definitions().iter().flat_map(field_rows), &COLUMNS, &keys);
    let found = differences(&got, &want, &COLUMNS);
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_kind_is_as_the_table_says() {
    let keys = ["kind", "version"];
    let want = read(include_str!("data/crd-meta.tsv"), &META_COLUMNS, &keys);
    let got = table(definitions().iter().flat_map(meta_rows), &META_COLUMNS, &keys);
    let found = differences(&got, &want, &META_COLUMNS);
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_only_label_is_the_schema_version() {
    for crd in cilia_crds::all() {
        let CustomResourceDefinition { metadata, spec, .. } = crd;
        assert_eq!(metadata.name, Some(format!("{}.cilium.io", spec.names.plural)));
        let label = ("io.cilium.k8s.crd.schema.version".to_owned(), "1.32.3".to_owned());
        assert_eq!(metadata.labels, Some([label].into()));
        assert_eq!(metadata.annotations, None);
        assert!(spec.conversion.is_none());
    }
}
