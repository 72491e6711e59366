//! `cilia sysdump`: collects what it takes to find a fault into one file, and no secrets.

mod agents;
mod archive;
mod mask;
mod objects;

use std::future::Future;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;

use crate::access::{Access, Reach, duration};
use crate::output::complain;
use archive::Archive;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The file's name without its ending [default: cilium-sysdump-TIME]
    #[arg(long, value_name = "NAME")]
    output_filename: Option<PathBuf>,
    /// Leave logs and large maps out
    #[arg(long)]
    quick: bool,
    /// Only agents of these nodes
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    node_list: Vec<String>,
    /// The end of each log, at most so many bytes
    #[arg(long, default_value_t = 16 << 20, value_name = "BYTES")]
    logs_limit_bytes: i64,
    /// How far back logs go
    #[arg(long, default_value = "24h", value_parser = duration)]
    logs_since: Duration,
    /// What is collected at the same time
    #[arg(long, default_value_t = 8, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    worker_count: u16,
}

/// The longest that one item may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// The largest that one item may be, and all of them, uncompressed.
const LARGEST: usize = 64 << 20;
const LARGEST_ALL: usize = 2 << 30;

/// A file of the dump, and how to get what is in it.
struct Item {
    path: String,
    content: Content,
}

type Content = Pin<Box<dyn Future<Output = anyhow::Result<Vec<u8>>>>>;

impl Item {
    fn new(
        path: impl Into<String>,
        content: impl Future<Output = anyhow::Result<Vec<u8>>> + 'static,
    ) -> Self {
        Self { path: path.into(), content: Box::pin(content) }
    }
}

pub(crate) async fn run(access: &Access, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let started = Timestamp::try_from(SystemTime::now()).context("tell the time")?;
    let name = arguments
        .output_filename
        .clone()
        .unwrap_or_else(|| format!("cilium-sysdump-{}", started.strftime("%Y%m%d-%H%M%S")).into());
    let (items, about) = match access.reach().await? {
        Reach::Here(agent) => (agents::state(&agent, "agent", arguments.quick), agent.name()),
        Reach::There(cluster) => {
            let mut items = objects::all(&cluster).await?;
            let wanted: Vec<String> =
                arguments.node_list.iter().cloned().chain(access.node.clone()).collect();
            items.extend(agents::of_cluster(&cluster, arguments, &wanted).await?);
            (items, cluster.name.clone())
        }
    };
    let file = PathBuf::from(format!("{}.tar.gz", name.display()));
    let folder = name.file_name().context("--output-filename names no file")?;
    let mut archive = Archive::create(&file, &folder.to_string_lossy(), started.as_second())?;
    let failures = collect(items, &mut archive, arguments.worker_count).await?;
    let summary = format!(
        "{about}\ncollected by cilia {} at {started}\n\n{}",
        env!("CARGO_PKG_VERSION"),
        failures.iter().fold(String::new(), |all, one| all + "not collected: " + one + "\n")
    );
    archive.add("sysdump-summary.txt", summary.as_bytes())?;
    let collected = archive.finish()?;
    if collected == 1 {
        bail!("nothing could be collected: {}", failures.first().map_or("", String::as_str));
    }
    if !failures.is_empty() {
        eprintln!(
            "{} items could not be collected: they are named in sysdump-summary.txt",
            failures.len()
        );
    }
    println!("{}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Gets every item, a few at a time; returns what failed.
async fn collect(
    items: Vec<Item>,
    archive: &mut Archive,
    at_once: u16,
) -> anyhow::Result<Vec<String>> {
    let total = items.len();
    let terminal = std::io::stderr().is_terminal();
    let get = |item: Item| async move {
        let content = tokio::time::timeout(PATIENCE, item.content).await;
        let content = content.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {PATIENCE:?}")));
        (item.path, content)
    };
    let mut ready = stream::iter(items).map(get).buffer_unordered(at_once.into());
    let (mut failures, mut done, mut size) = (Vec::new(), 0, 0);
    while let Some((path, content)) = ready.next().await {
        done += 1;
        if terminal {
            complain(&format!("\r\x1b[K[{done}/{total}] {path}"));
        } else if done % 20 == 0 || done == total {
            eprintln!("[{done}/{total}] collected");
        }
        match content {
            Ok(mut content) => {
                if size + content.len() > LARGEST_ALL {
                    failures.push(format!("{path}: the dump is large enough"));
                    continue;
                }
                if content.len() > LARGEST {
                    failures.push(format!("{path}: only its first {LARGEST} bytes"));
                    content.truncate(LARGEST);
                }
                size += content.len();
                archive.add(&path, &content)?;
            }
            Err(error) => failures.push(format!("{path}: {error:#}")),
        }
    }
    if terminal {
        eprintln!();
    }
    failures.sort();
    Ok(failures)
}

#[cfg(test)]
pub(crate) use archive::tests::read as read_archive;

#[cfg(test)]
mod tests {
    use super::archive::{Archive, tests::read};
    use super::{Item, collect};

    #[tokio::test]
    async fn what_fails_is_named_and_the_rest_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.tar.gz");
        let mut archive = Archive::create(&path, "x", 0).expect("an archive");
        let items = vec![
            Item::new("a.json", async { Ok(b"{}".to_vec()) }),
            Item::new("b.json", async { Err(anyhow::anyhow!("forbidden")) }),
            Item::new("c/d.json", async { Ok(vec![b'x'; 70 << 20]) }),
        ];
        let failures = collect(items, &mut archive, 2).await.expect("written");
        assert_eq!(failures, ["b.json: forbidden", "c/d.json: only its first 67108864 bytes"]);
        assert_eq!(archive.finish().expect("closed"), 2);
        let files = read(&path);
        assert_eq!(files["x/a.json"], b"{}");
        assert_eq!(files["x/c/d.json"].len(), 64 << 20);
    }
}
