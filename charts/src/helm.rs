//! Decides which helm to use, and reads what it renders.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::Error;

/// The Kubernetes version for which the chart is rendered without a cluster.
pub const KUBE_VERSION: &str = "v1.36.0";

/// One rendered object.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its YAML, comments and all, without helm's own first comment.
    pub text: String,
    /// The same, parsed.
    pub value: Value,
}

impl Document {
    /// The object's kind.
    pub fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Renders the chart as release `cilium` of namespace `kube-system`.
pub fn template(arguments: &[&str]) -> Result<Vec<Document>, Error> {
    let chart = crate::chart();
    let chart = chart.to_string_lossy();
    let mut all = vec![
        "template",
        "cilium",
        &chart,
        "--namespace",
        "kube-system",
        "--kube-version",
        KUBE_VERSION,
    ];
    all.extend(arguments);
    documents(&run("helm", "HELM", &all)?)
}

/// The notes that helm prints after an installation.
pub fn notes(arguments: &[&str]) -> Result<String, Error> {
    let chart = crate::chart();
    let chart = chart.to_string_lossy();
    let mut all =
        vec!["install", "cilium", &chart, "--namespace", "kube-system", "--dry-run=client"];
    all.extend(arguments);
    let output = run("helm", "HELM", &all)?;
    Ok(output.split_once("\nNOTES:\n").map(|(_, notes)| notes.to_owned()).unwrap_or_default())
}

/// Splits a stream of YAML documents, leaving out the empty ones.
pub fn documents(stream: &str) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    for text in stream.split("---\n") {
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("# Source: "))
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect();
        if text.lines().all(|line| line.is_empty() || line.starts_with('#')) {
            continue;
        }
        let value = serde_saphyr::from_str(&text)
            .map_err(|cause| Error::Parse { what: text.clone(), cause: cause.to_string() })?;
        documents.push(Document { text, value });
    }
    Ok(documents)
}

/// Runs a tool and returns what it prints. Its complaint is the error.
pub fn run(
    tool: &'static str,
    variable: &'static str,
    arguments: &[&str],
) -> Result<String, Error> {
    let program = find(tool, variable)?;
    let output = Command::new(&program)
        .args(arguments)
        .output()
        .map_err(|cause| Error::Start { program, cause })?;
    if !output.status.success() {
        return Err(Error::Rejected(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `$variable`, else the first on `$KUBEBUILDER_ASSETS`, `$PATH`, and among what `cilia-cluster tools` built.
fn find(tool: &'static str, variable: &'static str) -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let folders = [std::env::var_os("KUBEBUILDER_ASSETS"), std::env::var_os("PATH")];
    let folders = folders.iter().flatten().flat_map(std::env::split_paths);
    let mut programs = folders.chain(built_folders()).map(|folder| folder.join(tool));
    programs.find(|path| path.is_file()).ok_or(Error::ToolMissing(tool, variable))
}

/// The folders of programs that were built from `e2e/tools`.
fn built_folders() -> Vec<PathBuf> {
    let cache = std::env::var_os("CILIA_CACHE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/cilia"));
    let Some(cache) = cache.or_else(home) else { return Vec::new() };
    let folders = std::fs::read_dir(cache.join("tools")).into_iter().flatten().flatten();
    folders.map(|entry| entry.path()).collect()
}
