//! Pods come and go while the labels of their namespaces change; nothing is left of them, and nobody
//! who may talk is cut off.
//!
//! By default a few pods on the two nodes. `make churn` makes it 2,000 pods on five nodes: on the first two
//! the kubelets start them, on the others kubelet is stopped and the plugin is called directly, which costs
//! the machine a tenth.

mod census;
mod labels;
mod plugin;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cilia_e2e::scenario::live::Datagrams;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::serve;
use cilia_e2e::scenario::{Stage, agent, chart};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use census::Census;

/// How many pods come and go; unset for a few.
const PODS: &str = "CILIA_CHURN";
/// One pod in so many is started by a kubelet if there are nodes without one.
const BY_KUBELET: usize = 10;
/// The nodes on which kubelet works.
const KUBELETS: [&str; 2] = ["n1", "n2"];
/// Pods that a kubelet starts at once.
const WAVE: usize = 10;
const PORT: u16 = 7100;
/// Between two looks at all there is.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the last trace may take to go.
const LIMIT: Duration = Duration::from_mins(3);

/// How much there is to do.
#[derive(Debug, Clone, Copy)]
struct Size {
    pods: usize,
    namespaces: usize,
}

impl Size {
    fn asked_for() -> Result<Self> {
        let Ok(pods) = std::env::var(PODS) else { return Ok(Self { pods: 20, namespaces: 6 }) };
        let pods = pods.parse().with_context(|| format!("{PODS}={pods}: not a number"))?;
        Ok(Self { pods, namespaces: 50 })
    }
}

pub(crate) async fn nothing_is_left_and_nothing_lost(stage: &Stage) -> Result<()> {
    let size = Size::asked_for()?;
    let client = stage.client().await?;
    labels::make(stage, &client, size.namespaces).await?;
    let [from, to] = [labels::namespace(0), labels::namespace(1)];
    stage
        .apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
            policy(&from), policy(&to),
        ]}))
        .await?;
    let clients = pods::run(stage, &KUBELETS.map(|node| Plan::idle(&from, node).on(node))).await?;
    let servers = pods::run(stage, &KUBELETS.map(|node| Plan::idle(&to, node).on(node))).await?;
    for server in &servers {
        serve(server, PORT).await?;
    }
    let before = settled(stage, None).await?;
    println!("  before: {before}");

    let streams = streams(&clients, &servers).await?;
    let start = Instant::now();
    let stop = CancellationToken::new();
    let changes = tokio::spawn(labels::change(client.clone(), size.namespaces, stop.clone()));
    let quiet: Vec<_> = stage.cluster.nodes().into_iter().skip(KUBELETS.len()).collect();
    let by_kubelet = if quiet.is_empty() { size.pods } else { size.pods / BY_KUBELET };
    let (started, called) = tokio::join!(
        by_kubelets(stage, by_kubelet, size.namespaces),
        plugin::churn(stage, &client, &quiet, size.pods - by_kubelet, size.namespaces),
    );
    let (started, called) = (started?, called?);
    stop.cancel();
    let flips = changes.await??;
    println!(
        "  {started} pods by kubelet and {called} by the plugin came and went, {flips} changes of labels, in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    labels::reset(&client, size.namespaces).await?;
    // The census asks the agents by way of them.
    plugin::back(stage, &quiet)?;

    let after = settled(stage, Some(&before)).await?;
    println!("  after: {after}, {:.1} s after the start", start.elapsed().as_secs_f64());
    let (mut sent, mut gap) = (0, Duration::ZERO);
    for (name, stream) in streams {
        let tally = stream.finish().await?;
        if tally.sent <= 100 || tally.answered != tally.sent {
            bail!("{name}: {tally:?}; {}", dropped(stage).await?);
        }
        sent += tally.sent;
        gap = gap.max(tally.longest_gap);
    }
    println!("  {sent} datagrams sent and answered, none lost; longest wait {gap:?}");
    for number in 0..size.namespaces {
        pods::leave(stage, &labels::namespace(number)).await?;
    }
    Ok(())
}

/// Lets in and out whoever is of a namespace with one of the values that its label takes.
fn policy(namespace: &str) -> serde_json::Value {
    let peers = json!([{"namespaceSelector": {"matchExpressions": [
        {"key": labels::KEY, "operator": "In", "values": labels::VALUES},
    ]}}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "either-value", "namespace": namespace},
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers}], "egress": [{"to": peers}],
        },
    })
}

/// Datagrams from each client to each server, by both families.
async fn streams(clients: &[Pod], servers: &[Pod]) -> Result<Vec<(String, Datagrams)>> {
    let mut streams = Vec::new();
    for client in clients {
        for server in servers {
            for ip in server.addresses() {
                let to = SocketAddr::new(ip, PORT);
                let name = format!("{} to {} at {ip}", client.name, server.name);
                streams.push((name, Datagrams::start(client, to).await?));
            }
        }
    }
    Ok(streams)
}

/// Pods that kubelets start and stop; how many.
async fn by_kubelets(stage: &Stage, count: usize, namespaces: usize) -> Result<usize> {
    let mut done = 0;
    for wave in 0.. {
        let now = WAVE.min(count - done);
        if now == 0 {
            break;
        }
        // Two waves in each namespace: the second has the names of the first.
        let namespace = labels::namespace(2 + (wave / 2) % (namespaces - 2));
        let plans: Vec<_> = (0..now)
            .map(|number| {
                let app = format!("app-{}", number % 3);
                let node = KUBELETS[number % KUBELETS.len()];
                Plan::idle(&namespace, &format!("pod-{number}")).on(node).label("app", &app)
            })
            .collect();
        let found = pods::run(stage, &plans).await?;
        pods::delete(stage, &found).await?;
        done += now;
    }
    Ok(done)
}

/// Waits until all is as it was, or for the first time: until nothing moves.
async fn settled(stage: &Stage, before: Option<&Census>) -> Result<Census> {
    if before.is_none() {
        chart::ready(stage).await?;
    }
    let mut last: Option<Census> = None;
    let mut look = async || -> Result<Option<Census>> {
        let now = Census::take(stage).await?;
        let settled = before.or(last.as_ref()) == Some(&now);
        last = Some(now.clone());
        Ok(settled.then_some(now))
    };
    let what = if before.is_some() { "everything as it was" } else { "a moment of rest" };
    let start = Instant::now();
    loop {
        // Kubelets that have just started do not answer yet.
        let failed = match look().await {
            Ok(Some(census)) => return Ok(census),
            Ok(None) => String::new(),
            Err(error) => error.to_string(),
        };
        if start.elapsed() > LIMIT {
            let now = Census::take(stage).await?;
            let difference = before.map(|before| before.differs_from(&now)).unwrap_or_default();
            bail!("{what}: not after {LIMIT:?}: {failed}{now}; {difference}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the agents say of packets dropped on the nodes of those who talk all the time.
async fn dropped(stage: &Stage) -> Result<String> {
    let mut text = String::new();
    for node in KUBELETS {
        let metrics = agent::run(stage, node, &["metrics", "list"]).await?;
        for line in metrics.lines().filter(|line| line.contains("drop_count_total")) {
            let words: Vec<_> = line.split_whitespace().collect();
            text.extend([node, ": ", &words.join(" "), "; "]);
        }
    }
    Ok(text)
}
