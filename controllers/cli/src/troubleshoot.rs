//! `cilia troubleshoot`: looks, step by step, how far it is to an etcd: its names, connections, certificates, keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cilia_kvstore::{Client, Endpoints, Options, Settings, keys};
use tokio::net::{TcpStream, lookup_host};

use crate::access::{Access, Reach, each};
use crate::kvstore::agents_options;
use crate::output::text;
use crate::paint::Paint;
use crate::remote;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The agent's own etcd
    Kvstore,
    /// Those of other clusters
    Clustermesh {
        /// Only these clusters
        clusters: Vec<String>,
    },
}

/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Each step with how it went.
#[derive(Debug, Default)]
struct Report {
    text: String,
    failures: usize,
}

impl Report {
    fn step(&mut self, what: &str, outcome: Result<String, String>) {
        let paint = Paint::of_output();
        let (mark, said) = match outcome {
            Ok(said) => (paint.good("ok"), said),
            Err(why) => {
                self.failures += 1;
                (paint.bad("failed"), why)
            }
        };
        let said = if said.is_empty() { said } else { format!(": {said}") };
        // Writing to a text can't fail.
        let _ = writeln!(self.text, "  {mark}  {what}{said}");
    }
}

pub(crate) async fn run(access: &Access, command: &Command) -> anyhow::Result<ExitCode> {
    let reach = access.reach().await?;
    let Reach::Here(agent) = &reach else {
        // Connections and certificates are those of the agents.
        let (agents, one) = (access.agents(&reach).await?, access.node.is_some());
        let words = words(command);
        return each(&agents, one, None, ExitCode::FAILURE, async |agent, _| {
            remote::run(agent, &words).await
        })
        .await;
    };
    let mut report = Report::default();
    match command {
        Command::Kvstore => {
            let options = agents_options(agent).await?;
            let options = Options::parse(&options)?;
            report.text += "kvstore:\n";
            examine(&mut report, options, None).await;
        }
        Command::Clustermesh { clusters } => {
            let config = agent.get("/v1/config").await?;
            let settings = &config["status"]["daemonConfigurationMap"];
            let folder = PathBuf::from(text(&settings["clustermesh-config"]));
            let own = text(&settings["cluster-name"]);
            if folder.as_os_str().is_empty() {
                bail!("the agent reads no other clusters: clustermesh-config names no folder");
            }
            let known = files(&folder, &own)
                .with_context(|| format!("clustermesh-config: list {}", folder.display()))?;
            if let Some(odd) = clusters.iter().find(|name| !known.contains_key(*name)) {
                let known: Vec<&str> = known.keys().map(String::as_str).collect();
                bail!(
                    "{} has no file for cluster {odd}; it has: {}",
                    folder.display(),
                    known.join(", ")
                );
            }
            if known.is_empty() {
                println!("{} has no file of another cluster", folder.display());
            }
            let wanted =
                known.iter().filter(|(name, _)| clusters.is_empty() || clusters.contains(name));
            for (cluster, file) in wanted {
                let _ = writeln!(report.text, "cluster {cluster} ({}):", file.display());
                examine(&mut report, Options::of_file(file, 20.0), Some(cluster)).await;
            }
        }
    }
    print!("{}", report.text);
    Ok(if report.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The command as it is typed.
fn words(command: &Command) -> Vec<String> {
    let (name, clusters) = match command {
        Command::Kvstore => ("kvstore", &[][..]),
        Command::Clustermesh { clusters } => ("clustermesh", clusters.as_slice()),
    };
    let words = ["troubleshoot", name, "--"].into_iter().map(str::to_owned);
    words.chain(clusters.iter().cloned()).collect()
}

/// The files of other clusters: those that name endpoints.
fn files(folder: &Path, own: &str) -> std::io::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names_endpoints =
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains("endpoints:"));
        if !name.starts_with('.') && name != own && names_endpoints {
            found.insert(name, path);
        }
    }
    Ok(found)
}

async fn examine(report: &mut Report, options: Options, cluster: Option<&String>) {
    let endpoints = match Endpoints::read(&options.source) {
        Ok(endpoints) => endpoints,
        Err(error) => return report.step("read the configuration", Err(error.to_string())),
    };
    report.step("read the configuration", Ok(format!("{} endpoints", endpoints.endpoints.len())));
    for endpoint in &endpoints.endpoints {
        report.step(&format!("connect to {endpoint}"), connect(endpoint).await);
    }
    let certificates = [
        ("trusted-ca-file", &endpoints.trusted_ca_file),
        ("cert-file", &endpoints.cert_file),
        ("key-file", &endpoints.key_file),
    ];
    for (name, file) in certificates {
        if let Some(file) = file {
            let read = std::fs::read(file).map(|bytes| format!("{} bytes", bytes.len()));
            report
                .step(&format!("read {name} {}", file.display()), read.map_err(|e| e.to_string()));
        }
    }
    let client = match Client::new(&Settings::new(options), None) {
        Ok(client) => client,
        Err(error) => return report.step("prepare to talk to etcd", Err(error.to_string())),
    };
    let heartbeat = value(&client, keys::HEARTBEAT).await;
    let reached = heartbeat.is_ok();
    report.step(
        "read the heartbeat",
        heartbeat.map(|beat| beat.unwrap_or_else(|| "none yet".into())),
    );
    if reached {
        report.step("know etcd", Ok(format!("cluster id {:x}", client.cluster_id())));
    }
    if let (true, Some(cluster)) = (reached, cluster) {
        let key = format!("{}/{cluster}", keys::CLUSTER_CONFIG);
        let said = value(&client, &key).await;
        let there = said.and_then(|said| {
            said.ok_or_else(|| format!("{key} is not there: is it the etcd of cluster {cluster}?"))
        });
        report.step("read who the cluster is", there);
    }
}

async fn value(client: &Client, key: &str) -> Result<Option<String>, String> {
    let found = tokio::time::timeout(PATIENCE, client.get(key)).await;
    let found = found.map_err(|_| format!("etcd did not answer within {PATIENCE:?}"))?;
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
}

/// Resolves an endpoint's name, and connects to one of its addresses.
async fn connect(endpoint: &str) -> Result<String, String> {
    let (_, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let place = rest.split('/').next().unwrap_or(rest);
    let with_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let place = if with_port { place.to_owned() } else { format!("{place}:2379") };
    let work = async {
        let addresses: Vec<_> = lookup_host(&place)
            .await
            .map_err(|error| format!("{place} can't be resolved: {error}"))?
            .collect();
        let mut why = format!("{place} has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(_) => return Ok(address.to_string()),
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(why)
    };
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| Err(format!("{place} did not answer within {PATIENCE:?}")))
}

#[cfg(test)]
mod tests {
    use cilia_kvstore::Options;
    use cilia_kvstore::testing::Etcd;

    use super::{Report, examine, files};

    #[tokio::test]
    async fn each_step_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let etcd = Etcd::start().await;
        let client = etcd.client();
        client.put("cilium/cluster-config/east", b"{\"id\":2}", false).await.expect("written");
        std::fs::write(
            path("east"),
            format!("endpoints:\n- {}\n", format_args!("http://127.0.0.1:{}", etcd.port(0))),
        )
        .expect("a file");
        std::fs::write(path("west"), "endpoints:\n- http://127.0.0.1:1\n").expect("a file");
        std::fs::write(path("tls.crt"), "x").expect("a file");
        let known = files(folder.path(), "own").expect("files");
        assert_eq!(known.keys().collect::<Vec<_>>(), ["east", "west"]);

        let mut report = Report::default();
        let east = "east".to_owned();
        examine(&mut report, Options::of_file(&path("east"), 20.0), Some(&east)).await;
        assert_eq!(report.failures, 0, "{}", report.text);
        assert!(report.text.contains("read who the cluster is: {\"id\":2}"), "{}", report.text);

        let mut report = Report::default();
        let other = "other".to_owned();
        examine(&mut report, Options::of_file(&path("east"), 20.0), Some(&other)).await;
        assert!(report.text.contains("is it the etcd of cluster other?"), "{}", report.text);
        let mut report = Report::default();
        examine(&mut report, Options::of_file(&path("none"), 20.0), None).await;
        assert_eq!(report.failures, 1, "{}", report.text);
    }
}
