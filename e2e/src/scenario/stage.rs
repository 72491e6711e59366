//! Decides on which cluster the scenarios run, and how they ask it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

use super::chart;
use crate::image::{Image, catalog};
use crate::{Cluster, Error, Layout, Options, Progress};

/// How much of each answer is shown after a failure.
const LINES: usize = 25;
const LINE: usize = 400;
/// The repository's root.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Keeps the cluster after the scenarios, and uses one that is there: for work on a scenario.
const KEEP: &str = "CILIA_E2E_KEEP";
/// How many nodes, if not two.
const NODES: &str = "CILIA_E2E_NODES";
/// More values for the chart: `a.b=c`, separated by blanks.
const VALUES: &str = "CILIA_E2E_VALUES";

/// A cluster with Cilia on it.
#[derive(Debug)]
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// How long it took from nothing to ready nodes.
    pub ready_after: Duration,
}

impl Stage {
    /// Brings the cluster up and installs Cilia from the chart with the programs built last.
    pub async fn set(name: &str) -> Result<Self, Error> {
        let layout = Layout::new(name)?;
        let start = std::time::Instant::now();
        let progress = Progress::new();
        let images = catalog::cilia(&target()).await?;
        let archives = images.iter().map(Image::archive).collect::<Result<Vec<_>, _>>()?;
        let found = kept() && layout.kubeconfig().exists();
        let cluster = if found {
            Cluster::open(layout).await?
        } else {
            let mut options = Options::default();
            if let Ok(nodes) = std::env::var(NODES) {
                let invalid = |_| Error::Invalid(format!("{NODES}={nodes}: not a number"));
                options.nodes = nodes.parse().map_err(invalid)?;
            }
            Cluster::up(layout, options, &archives, progress).await?
        };
        let stage = Self { cluster, ready_after: Duration::ZERO };
        let values = std::env::var(VALUES).unwrap_or_default();
        chart::install(&stage, &values.split_whitespace().collect::<Vec<_>>()).await?;
        if found {
            for archive in &archives {
                stage.cluster.load(archive).await?;
            }
            chart::restart(&stage).await?;
        }
        progress.say("chart installed");
        chart::ready(&stage).await?;
        progress.say("agents, operators and nodes ready");
        Ok(Self { ready_after: start.elapsed(), ..stage })
    }

    /// Removes the cluster, unless it is to be kept.
    pub async fn strike(&self) -> Result<(), Error> {
        if kept() {
            eprintln!("kept: export KUBECONFIG={}", self.cluster.layout.kubeconfig().display());
            return Ok(());
        }
        Cluster::down(&self.cluster.layout).await.map(drop)
    }

    /// A program of the build that is under test.
    pub fn program(name: &str) -> PathBuf {
        target().join(name)
    }

    /// A client of the API server, as the administrator.
    pub async fn client(&self) -> Result<Client, Error> {
        let unusable = |error: &dyn std::fmt::Display| {
            Error::Invalid(format!("the administrator's kubeconfig: {error}"))
        };
        let file = Kubeconfig::read_from(self.cluster.layout.kubeconfig());
        let file = file.map_err(|error| unusable(&error))?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let config = config.map_err(|error| unusable(&error))?;
        Client::try_from(config).map_err(|error| unusable(&error))
    }

    /// The objects of `kind`, of one namespace or of all.
    pub async fn list(&self, kind: &str, namespace: Option<&str>) -> Result<Vec<Value>, Error> {
        let scope = namespace
            .map_or_else(|| vec!["--all-namespaces"], |namespace| vec!["--namespace", namespace]);
        let mut args = vec!["get", kind, "--output=json"];
        args.extend(scope);
        let list = parse(&self.cluster.kubectl(&args).await?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// One object.
    pub async fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value, Error> {
        let args = ["--namespace", namespace, "get", kind, name, "--output=json"];
        parse(&self.cluster.kubectl(&args).await?)
    }

    /// Creates or changes objects.
    pub async fn apply(&self, objects: &Value) -> Result<(), Error> {
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.cluster.kubectl_with_input(&args, &objects.to_string()).await.map(drop)
    }

    /// Deletes an object and waits until it is gone.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Error> {
        let args = ["--namespace", namespace, "delete", kind, name, "--ignore-not-found"];
        self.cluster.kubectl(&args).await.map(drop)
    }

    /// What is worth reading after a scenario has failed.
    pub async fn state(&self) -> String {
        let mut text = String::new();
        let questions: &[&[&str]] = &[
            &["get", "pods", "--all-namespaces", "--output=wide"],
            &["get", "events", "--all-namespaces", "--field-selector=type=Warning"],
            &["logs", "--namespace=kube-system", "--selector=k8s-app=cilium", "--tail=30"],
            &["logs", "--namespace=kube-system", "--selector=io.cilium/app=operator", "--tail=30"],
        ];
        for &question in questions {
            let answer = self.cluster.kubectl(question).await;
            let answer = last_lines(&answer.unwrap_or_else(|error| error.to_string()));
            let title = format!("--- kubectl {}", question.join(" "));
            text.extend([title.as_str(), "\n", answer.as_str(), "\n"]);
        }
        text
    }
}

/// The end of a text that may be long, each line cut to a readable length.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let cut = |line: &&str| line.chars().take(LINE).collect::<String>();
    lines[lines.len().saturating_sub(LINES)..].iter().map(cut).collect::<Vec<_>>().join("\n")
}

/// Where the programs under test are: beside the test that runs.
fn target() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    let mut folders = here.ancestors().skip(1);
    let found = folders.find(|folder| folder.join("cilia-cluster").is_file());
    found.map_or_else(|| root().join("target/debug"), Path::to_owned)
}

pub(super) fn root() -> &'static Path {
    Path::new(ROOT)
}

fn kept() -> bool {
    std::env::var_os(KEEP).is_some_and(|value| !value.is_empty() && value != "0")
}

pub(super) fn parse(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| Error::Invalid(format!("not JSON: {error}: {text}")))
}
