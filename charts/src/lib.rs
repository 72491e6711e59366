//! Decides what the chart's generated files say, and renders the chart for its tests.
//!
//! Three things are generated: `values.schema.json` and `files/unbuilt-values.tsv` of the chart, out of
//! the tables of Cilium's values in `data/`, and the kustomize bases in `config/`, out of the rendered
//! chart. `cilia-manifests` writes them, `cilia-manifests --check` says whether they are up to date.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub mod helm;
pub mod kustomize;
pub mod schema;
pub mod values;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither `$HELM` nor a folder of `$PATH` has it.
    #[error("find {0}: set ${1} to its path, put it on PATH, or run `make tools`")]
    ToolMissing(&'static str, &'static str),
    /// The program could not be started.
    #[error("run {program}: {cause}")]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The program found fault with its input.
    #[error("{0}")]
    Rejected(String),
    /// A document that isn't YAML, or isn't an object of Kubernetes.
    #[error("parse {what}: {cause}")]
    Parse {
        /// File or template.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The chart's folder.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cilia")
}
