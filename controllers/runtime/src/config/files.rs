//! Reads the config file (YAML) and the config folder (one file per key, a mounted `ConfigMap`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::Error;

/// Keys and their text as a file holds them.
pub(super) type Entries = BTreeMap<String, (PathBuf, String)>;

/// The entries of `--config-dir`: the name of each file is a key, its text the value.
pub(super) fn folder(path: &Path) -> Result<Entries, Error> {
    let read = |path: &Path, cause| Error::Read { path: path.into(), cause };
    let mut entries = Entries::new();
    for entry in std::fs::read_dir(path).map_err(|e| read(path, e))? {
        let file = entry.map_err(|e| read(path, e))?.path();
        let Some(key) = file.file_name().and_then(|name| name.to_str()).map(String::from) else {
            continue;
        };
        // `..data` and its kin are how kubelet swaps the files of a `ConfigMap` at once.
        if key.starts_with("..") || !file.is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&file).map_err(|e| read(&file, e))?;
        entries.insert(key, (file, text.trim_end_matches(['\n', '\r']).to_string()));
    }
    Ok(entries)
}

/// The entries of `--config`; lists and maps become the text that a flag would have.
pub(super) fn file(path: &Path) -> Result<Entries, Error> {
    let text =
        std::fs::read_to_string(path).map_err(|cause| Error::Read { path: path.into(), cause })?;
    let parse = |cause: String| Error::Parse { path: path.into(), cause };
    if text.trim().is_empty() {
        return Ok(Entries::new());
    }
    let values: BTreeMap<String, serde_json::Value> =
        serde_saphyr::from_str(&text).map_err(|e| parse(e.to_string()))?;
    values
        .into_iter()
        .map(|(key, value)| {
            let text = flat(&value)
                .ok_or_else(|| parse(format!("{key}: a list or map inside a list or map")))?;
            Ok((key, (path.into(), text)))
        })
        .collect()
}

/// The one-line form of a YAML value.
fn flat(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value as V;
    match value {
        V::Array(items) => {
            let items: Option<Vec<String>> =
                items.iter().map(scalar).map(|item| item.map(|i| quoted(&i))).collect();
            Some(items?.join(","))
        }
        V::Object(map) => {
            let pairs: Option<BTreeMap<_, _>> =
                map.iter().map(|(k, v)| Some((k, scalar(v)?))).collect();
            serde_json::to_string(&pairs?).ok()
        }
        value => scalar(value),
    }
}

fn scalar(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value as V;
    match value {
        V::Null => Some(String::new()),
        V::String(text) => Some(text.clone()),
        V::Bool(_) | V::Number(_) => Some(value.to_string()),
        V::Array(_) | V::Object(_) => None,
    }
}

fn quoted(item: &str) -> String {
    if item.contains([',', '"']) || item.contains(char::is_whitespace) {
        format!("\"{}\"", item.replace('"', "\"\""))
    } else {
        item.into()
    }
}
