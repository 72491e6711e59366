//! Decides which values the chart takes, and which of them have an effect.
//!
//! Known are the values of Cilium's chart (`data/helm-values.tsv`, and what the `ConfigMap`'s keys are made
//! of, `data/helm-config-keys.tsv`) and those of our `values.yaml`. The latter are the ones that are built.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::Error;

const VALUES: &str = include_str!("../data/helm-values.tsv");
const CONFIG_KEYS: &str = include_str!("../data/helm-config-keys.tsv");
const OURS: &str = include_str!("../cilia/values.yaml");

/// A value of Cilium's chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// As the table has it: `string`, `null (integer)`, ...; empty if the table doesn't say.
    pub kind: String,
    /// Its default; null if there is none.
    pub default: Value,
}

/// A line of the table of the `ConfigMap`'s keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKey {
    /// The key, which is a flag's name.
    pub key: String,
    /// What it is with the chart's defaults; none if it is absent.
    pub default: Option<String>,
}

/// The values of Cilium's chart by path. A path ends where a key needs quotes.
pub fn cilium() -> Result<BTreeMap<String, Known>, Error> {
    let mut known = BTreeMap::new();
    for line in CONFIG_KEYS.lines().skip(1) {
        let sources = line.split('\t').nth(1).unwrap_or_default();
        for path in sources.split(", ").filter(|path| *path != "constant" && !path.starts_with('<'))
        {
            known.insert(path.to_owned(), Known { kind: String::new(), default: Value::Null });
        }
    }
    for line in VALUES.lines().skip(1) {
        let mut fields = line.split('\t');
        let (Some(path), Some(kind), Some(default)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(Error::Parse {
                what: "helm-values.tsv".into(),
                cause: format!("line {line:?}"),
            });
        };
        let known_as = if let Some((map, _)) = path.split_once(".\"") {
            (map, Known { kind: "map".into(), default: Value::Null })
        } else {
            let default = serde_json::from_str(default).map_err(|cause| Error::Parse {
                what: format!("default of {path}"),
                cause: cause.to_string(),
            })?;
            (path, Known { kind: kind.to_owned(), default })
        };
        known.insert(known_as.0.to_owned(), known_as.1);
    }
    Ok(known)
}

/// The table of the `ConfigMap`'s keys.
pub fn config_keys() -> Vec<ConfigKey> {
    CONFIG_KEYS
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let key = fields.next()?.to_owned();
            let default = fields.next_back()?;
            Some(ConfigKey {
                key,
                default: (default != "-").then(|| default.trim_matches('"').to_owned()),
            })
        })
        .collect()
}

/// Our values with their defaults, by path. `ends` are paths not to go below.
pub fn ours(ends: &BTreeMap<String, Known>) -> Result<BTreeMap<String, Value>, Error> {
    let values: Map<String, Value> = serde_saphyr::from_str(OURS)
        .map_err(|cause| Error::Parse { what: "values.yaml".into(), cause: cause.to_string() })?;
    let mut leaves = BTreeMap::new();
    collect(&values, "", ends, &mut leaves);
    Ok(leaves)
}

fn collect(
    node: &Map<String, Value>,
    prefix: &str,
    ends: &BTreeMap<String, Known>,
    leaves: &mut BTreeMap<String, Value>,
) {
    for (key, value) in node {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(inner) if !inner.is_empty() && !ends.contains_key(&path) => {
                collect(inner, &path, ends, leaves);
            }
            _ => {
                leaves.insert(path, value.clone());
            }
        }
    }
}

/// The values that the chart takes and ignores, with their defaults: lines of `files/unbuilt-values.tsv`.
pub fn unbuilt() -> Result<String, Error> {
    let known = cilium()?;
    let ours = ours(&known)?;
    let unbuilt = known.iter().filter(|(path, _)| !ours.contains_key(*path));
    let lines = unbuilt
        .map(|(path, known)| [path.as_str(), "\t", &known.default.to_string(), "\n"].concat());
    Ok(lines.collect())
}
