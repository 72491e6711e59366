//! What pods leave their marks in, counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use cilia_e2e::scenario::Stage;
use serde_json::Value;

use crate::crowd::marks_on;

/// Identities are counted only where they are collected soon; else they stay for half an hour.
const PODS: &str = super::PODS;

/// Everything there is, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Census(BTreeMap<&'static str, BTreeSet<String>>);

impl Census {
    pub(super) async fn take(stage: &Stage) -> Result<Self> {
        let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let labels = |object: &Value| object["security-labels"].to_string();
        if std::env::var_os(PODS).is_some() {
            let identities = stage.list("ciliumidentities", None).await?;
            // Their numbers may be others; that of the sets of labels is what counts.
            found.insert("identities", identities.iter().map(labels).collect());
            found.insert("numbers", identities.iter().map(name).collect());
        }
        let endpoints = stage.list("ciliumendpoints", None).await?;
        found.insert("endpoints", endpoints.iter().map(name).collect());
        let slices = stage.list("ciliumendpointslices", None).await?;
        let listed = slices.iter().flat_map(|slice| {
            let namespace = slice["namespace"].as_str().unwrap_or_default();
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            endpoints.map(move |endpoint| format!("{namespace}/{}", endpoint["name"]))
        });
        found.insert("in slices", listed.collect());
        for node in stage.cluster.nodes() {
            for (kind, marks) in marks_on(stage, &node).await? {
                let marks = marks.into_iter().map(|mark| format!("{}: {mark}", node.name()));
                found.entry(kind).or_default().extend(marks);
            }
        }
        Ok(Self(found))
    }

    /// What one has and the other hasn't: a few of each kind.
    pub(super) fn differs_from(&self, other: &Self) -> String {
        let mut text = String::new();
        for (kind, ours) in &self.0 {
            let empty = BTreeSet::new();
            let theirs = other.0.get(kind).unwrap_or(&empty);
            for (word, some) in [
                ("missing", ours.difference(theirs).take(3).collect::<Vec<_>>()),
                ("left", theirs.difference(ours).take(3).collect::<Vec<_>>()),
            ] {
                if !some.is_empty() {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{kind} {word}: {some:?}; ");
                }
            }
        }
        text
    }
}

impl std::fmt::Display for Census {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts: Vec<_> =
            self.0.iter().map(|(kind, all)| format!("{} {kind}", all.len())).collect();
        f.write_str(&counts.join(", "))
    }
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    format!("{namespace}/{}", metadata["name"].as_str().unwrap_or_default())
}
