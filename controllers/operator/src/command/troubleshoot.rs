//! `troubleshoot`: tries every step of a connection to an etcd, and says which one fails.

mod endpoint;
mod tls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cilia_runtime::config::duration;
use serde::Deserialize;

/// Where the agent and the operator find the configuration of their own etcd.
const KVSTORE: &str = "/var/lib/etcd-config/etcd.config";
/// Where they find one file for each remote cluster.
const CLUSTERS: &str = "/var/lib/cilium/clustermesh/";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// The connection to the kvstore
    Kvstore {
        /// The configuration of the etcd client
        #[arg(long, value_name = "PATH", default_value = KVSTORE)]
        etcd_config: PathBuf,
        #[command(flatten)]
        limits: Limits,
    },
    /// The connections to remote clusters
    Clustermesh {
        /// The folder of the clusters' configurations
        #[arg(long, value_name = "PATH", default_value = CLUSTERS)]
        clustermesh_config: PathBuf,
        /// Clusters; all without any
        clusters: Vec<String>,
        #[command(flatten)]
        limits: Limits,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Limits {
    /// How long each step may take
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("not {}", duration::ALLOWED))
}

/// The configuration of an etcd client, as far as it concerns the connection.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct EtcdConfig {
    endpoints: Vec<String>,
    trusted_ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// Prints what was tried; an error if not everything went well.
pub(super) async fn run(command: &Command) -> anyhow::Result<()> {
    let mut well = true;
    match command {
        Command::Kvstore { etcd_config, limits } => {
            let report = report(etcd_config, limits.timeout).await;
            print!("{}", report.text);
            well &= report.well;
        }
        Command::Clustermesh { clustermesh_config, clusters, limits } => {
            let found = configurations(clustermesh_config)?;
            let known = |name: &String| found.iter().any(|(known, _)| known == name);
            if let Some(unknown) = clusters.iter().find(|name| !known(name)) {
                bail!("there is no cluster {unknown} in {}", clustermesh_config.display());
            }
            let wanted = |name: &String| clusters.is_empty() || clusters.contains(name);
            println!("Found {} cluster configurations", found.len());
            for (name, path) in found.iter().filter(|(name, _)| wanted(name)) {
                let report = report(path, limits.timeout).await;
                println!("\nCluster {name:?}:\n{}", report.text.trim_end());
                well &= report.well;
            }
        }
    }
    if well { Ok(()) } else { bail!("not everything is well: see ❌") }
}

/// The clusters' names and configurations.
fn configurations(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.to_owned();
            // Beside them lie certificates, and what a mounted Secret needs for itself.
            let is_config = !name.contains("..") && !name.contains('.') && path.is_file();
            is_config.then_some((name, path))
        })
        .collect();
    found.sort();
    Ok(found)
}

/// What was found out about a configuration.
#[derive(Debug)]
struct Report {
    text: String,
    well: bool,
}

impl Report {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn good(&mut self, indent: &str, what: &str) {
        self.line(&format!("{indent}✅ {what}"));
    }

    fn note(&mut self, indent: &str, what: &str) {
        self.line(&format!("{indent}ℹ️  {what}"));
    }

    fn bad(&mut self, indent: &str, what: &str) {
        self.well = false;
        self.line(&format!("{indent}❌ {what}"));
    }
}

async fn report(path: &Path, timeout: Duration) -> Report {
    let mut report = Report { text: String::new(), well: true };
    report.line(&format!("📄 Configuration path: {}\n", path.display()));
    let read = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let config = read.and_then(|text| {
        serde_saphyr::from_str::<EtcdConfig>(&text).map_err(|error| error.to_string())
    });
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            report.bad("", &format!("Cannot read the configuration: {error}"));
            return report;
        }
    };
    report.line("🔑 Digital certificates:");
    let client = tls::client(&config, &mut report);
    report.line("\n🔌 Endpoints:");
    if config.endpoints.is_empty() {
        report.bad("   ", "The configuration names no endpoints");
    }
    for url in &config.endpoints {
        report.line(&format!("   - {url}"));
        endpoint::check(url, client.as_ref(), timeout, &mut report).await;
    }
    report
}

#[cfg(test)]
mod tests;
