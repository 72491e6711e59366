//! The benchmark of the kvstore: how soon another cluster is known, and identities are had.
//!
//! A real etcd of one member on loopback, without a rate, and the ipcache's BPF map, pinned in a file
//! system of the benchmark's own: that needs root. In order:
//!
//! 1. load: a cluster with so many addresses is connected, until all of them are in the map;
//! 2. update: an address changes, until the map has it, again and again;
//! 3. identities: agents share the making of so many, each under its lock; only etcd's part of it.
//!
//! What whole agents take for identities, in each mode, is measured before, by `hack/bench-kvstore`: see `--modes`.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cilia_crds::Labels;
use cilia_identity::Space;
use cilia_kvstore::allocator::NoMaker;
use cilia_kvstore::mesh::{Change, GRACE, Mesh, Settings};
use cilia_kvstore::testing::Etcd;
use cilia_kvstore::value::{Capabilities, ClusterConfig, IpIdentityPair, encode, now};
use cilia_kvstore::{Allocator, keys};
use cilia_loader::testing::{BpfFs, small_maps};
use cilia_loader::{IpCache, MapSizes, RemoteEndpoint, Table};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const ID: u32 = 2;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Addresses of the other cluster
    #[arg(long, default_value_t = 20_000)]
    ips: u32,
    /// How often one of them changes
    #[arg(long, default_value_t = 1_000)]
    updates: u32,
    /// Identities that are made
    #[arg(long, default_value_t = 5_000)]
    identities: u32,
    /// Agents that make them
    #[arg(long, default_value_t = 10)]
    agents: u32,
    /// What agents took for identities in each mode, as JSON
    #[arg(long, value_name = "FILE")]
    modes: Option<PathBuf>,
    /// Write the figures to this file, too, as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What agents took for identities, by mode.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Modes {
    sets: u32,
    agents: u32,
    seconds: BTreeMap<String, f64>,
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
struct Report {
    ips: u32,
    load_seconds: f64,
    update_p50_ms: f64,
    update_p99_ms: f64,
    identities: u32,
    agents: u32,
    identities_seconds: f64,
    modes: Modes,
}

impl Report {
    /// What was measured, and what is aimed at: the name, the figure, the most that is good, their unit.
    fn rows(&self) -> Vec<(String, f64, Option<f64>, &'static str)> {
        let row = |name: &str, figure, target, unit| (name.to_owned(), figure, target, unit);
        let mut rows = vec![
            row(
                &format!("{} addresses to the BPF map", self.ips),
                self.load_seconds,
                Some(2.0),
                "s",
            ),
            row("update of one, median", self.update_p50_ms, None, "ms"),
            row("update of one, 99th percentile", self.update_p99_ms, Some(20.0), "ms"),
        ];
        let made = |by: &str, sets, agents| format!("{sets} identities by {agents} {by}");
        let name = made("allocators, etcd", self.identities, self.agents);
        rows.push(row(&name, self.identities_seconds, Some(60.0), "s"));
        for (mode, seconds) in &self.modes.seconds {
            let name = made(&format!("agents, {mode}"), self.modes.sets, self.modes.agents);
            rows.push(row(&name, *seconds, Some(60.0), "s"));
        }
        rows
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let mut report = Report {
        ips: arguments.ips,
        identities: arguments.identities,
        agents: arguments.agents,
        ..Report::default()
    };
    if let Some(path) = &arguments.modes {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        report.modes = serde_json::from_slice(&text).context("read --modes")?;
    }
    addresses(arguments, &mut report).await?;
    report.identities_seconds = identities(arguments).await?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(path) = &arguments.output {
        std::fs::write(path, &json).with_context(|| format!("write {}", path.display()))?;
    }
    if arguments.json {
        println!("{json}");
        return Ok(());
    }
    println!("{:<55}{:>13}{:>11}", "", "measured", "at most");
    for (name, figure, target, unit) in report.rows() {
        let target = target.map(|target| format!("{target:.0} {unit}")).unwrap_or_default();
        println!("{name:<55}{:>13}{target:>11}", format!("{figure:.2} {unit}"));
    }
    Ok(())
}

async fn addresses(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let etcd = Etcd::start().await;
    let client = etcd.client();
    let pair = |n: u32, id: u32| {
        let address = std::net::Ipv4Addr::from(0x0a02_0000 + n);
        let net = ipnet::IpNet::from(std::net::IpAddr::V4(address));
        (net, IpIdentityPair::new(net, (ID << 16) + id, "172.18.0.9".parse().ok()))
    };
    let mut writes = JoinSet::new();
    for worker in 0..50 {
        let (client, ips) = (client.clone(), arguments.ips);
        writes.spawn(async move {
            for n in (worker..ips).step_by(50) {
                let (net, pair) = pair(n, n % 500);
                client.put(&keys::ip(net), &encode(&pair), false).await?;
            }
            Ok::<_, cilia_kvstore::Error>(())
        });
    }
    writes.join_all().await.into_iter().collect::<Result<Vec<()>, _>>()?;
    let capabilities = Capabilities { max_connected_clusters: 255, ..Capabilities::default() };
    let config = ClusterConfig { id: ID, capabilities };
    client.put(&keys::cluster_config("west"), &encode(&config), false).await?;
    client.put(keys::HEARTBEAT, &now(), false).await?;
    let directory = etcd.folder().join("mesh");
    std::fs::create_dir(&directory)?;
    std::fs::copy(etcd.config("root"), directory.join("west"))?;

    // The map that the agent's programs read, in its full size; all others small.
    let bpf = BpfFs::mount();
    let ipcache = MapSizes::default().ipcache;
    let map = bpf.load_sized(MapSizes { ipcache, ..small_maps() }).ipcache();
    let stop = CancellationToken::new();
    let start = Instant::now();
    let (mesh, mut news) = Mesh::new(Settings {
        directory,
        cluster: "east".into(),
        cluster_id: 1,
        max_connected: 255,
        cache_ttl: Duration::ZERO,
        network: true,
        qps: 20.0,
        grace: GRACE,
    });
    tokio::spawn({
        let stop = stop.clone();
        async move { mesh.run(stop).await }
    });
    let (mut told, all) = (HashSet::new(), arguments.ips as usize);
    while told.len() < all {
        let (_, changes) = news.recv().await.context("the mesh has ended")?;
        told.extend(write(&map, changes)?);
    }
    ensure!(map.entries()?.len() == all, "the map has other entries");
    report.load_seconds = start.elapsed().as_secs_f64();
    let mut times = Vec::new();
    for n in 0..arguments.updates {
        let (net, pair) = pair(n % arguments.ips, 1000 + n % 2);
        let want = pair.id;
        let start = Instant::now();
        client.put(&keys::ip(net), &encode(&pair), false).await?;
        loop {
            let (_, changes) = news.recv().await.context("the mesh has ended")?;
            write(&map, changes)?;
            let key = (net.network(), net.prefix_len());
            if map.get(&key)?.is_some_and(|entry| entry.identity == want) {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    (report.update_p50_ms, report.update_p99_ms) = (at(50), at(99));
    stop.cancel();
    Ok(())
}

/// Writes addresses as the agent does: those of a batch in order, the last word of each. Which they were.
fn write(map: &Table<IpCache>, changes: Vec<Change>) -> Result<Vec<(IpAddr, u8)>> {
    let mut pending: BTreeMap<(IpAddr, u8), RemoteEndpoint> = BTreeMap::new();
    for change in changes {
        if let Change::Ip(prefix, pair) = change {
            let entry = RemoteEndpoint { identity: pair.id, tunnel: pair.tunnel(), key: pair.key };
            pending.insert((prefix.network(), prefix.prefix_len()), entry);
        }
    }
    for (prefix, entry) in &pending {
        map.upsert(prefix, entry)?;
    }
    Ok(pending.into_keys().collect())
}

async fn identities(arguments: &Arguments) -> Result<f64> {
    let etcd = Etcd::start().await;
    let stop = CancellationToken::new();
    let workqueues = Workqueues::register(&Metrics::new("bench"));
    let space = Space::new(0, 255)?;
    let mut agents = Vec::new();
    for number in 0..arguments.agents {
        let address = format!("10.0.0.{number}");
        let allocator = Allocator::new(etcd.client(), space, address, &workqueues);
        tokio::spawn({
            let (allocator, stop) = (allocator.clone(), stop.clone());
            async move { allocator.run(stop, |_| {}).await }
        });
        agents.push(allocator);
    }
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (first, agent) in (0..).zip(agents) {
        let (all, every) = (arguments.identities, arguments.agents as usize);
        tasks.spawn(async move {
            for set in (first..all).step_by(every) {
                let mut labels = Labels::new();
                labels.insert("k8s", "app", &format!("app-{set}"));
                agent.allocate(&labels, None, &NoMaker).await?;
            }
            Ok::<_, cilia_kvstore::Error>(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<()>, _>>()?;
    let seconds = start.elapsed().as_secs_f64();
    stop.cancel();
    Ok(seconds)
}
