//! Reads the objects in files.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::output::text;

/// The objects in files, and in the files of folders; what lists hold, instead of the lists.
pub(super) fn objects(files: &[String]) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for file in files {
        if file == "-" {
            all.extend(objects_of("standard input", input()?)?);
            continue;
        }
        let path = Path::new(file);
        let within = if path.is_dir() { folder(path)? } else { vec![path.to_owned()] };
        for path in within {
            let name = path.display().to_string();
            let content = std::fs::read_to_string(&path).with_context(|| format!("read {name}"))?;
            all.extend(objects_of(&name, &content)?);
        }
    }
    Ok(all)
}

/// Standard input, which can be read only once, and several agents may be asked about it.
fn input() -> anyhow::Result<&'static str> {
    static INPUT: OnceLock<String> = OnceLock::new();
    if let Some(text) = INPUT.get() {
        return Ok(text);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("read standard input")?;
    Ok(INPUT.get_or_init(|| text))
}

/// The manifests in a folder, by name.
fn folder(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || format!("read {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(read)? {
        let path = entry.with_context(read)?.path();
        let ends = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        if matches!(ends, "yaml" | "yml" | "json") && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{} has no file that ends with .yaml, .yml or .json", path.display());
    }
    files.sort_unstable();
    Ok(files)
}

fn objects_of(file: &str, content: &str) -> anyhow::Result<Vec<Value>> {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(content).with_context(|| format!("read {file}"))?;
    let listed = |object: Value| match &object["items"] {
        Value::Array(items) if text(&object["kind"]).ends_with("List") => items.clone(),
        _ => vec![object],
    };
    let objects: Vec<Value> =
        objects.into_iter().filter(|object| !object.is_null()).flat_map(listed).collect();
    if objects.is_empty() {
        bail!("{file} has no object");
    }
    Ok(objects)
}
