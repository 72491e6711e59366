//! How long the labels of a namespace take to arrive at all of its endpoints' objects.
//!
//! Each agent has a node of its own: network namespace, devices, datapath, and its share of the pods, in network
//! namespaces without containers. Client, API server, policy and the wait for other nodes are those of the program.
//!
//! `hack/bench-namespace`, or with a debug build
//! `CILIA_NAMESPACE_PODS=1000 CILIA_NAMESPACE_AGENTS=5 cargo test -p cilia-agent -- --ignored --nocapture a_namespace_changes`

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_identity::Space;
use cilia_loader::testing::BpfFs;
use cilia_runtime::client;
use cilia_runtime::config::{Config, Flags};
use cilia_runtime::testing::{ApiServer, Process, eventually_for, free_ports};
use cilia_runtime::watch::{Event, Key, watch};
use futures::{StreamExt, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::test_agent::{Agent, ask};
use super::testing::api_server;
use crate::device::testing::{PodNetns, in_private_node};
use crate::identity::{Identities, Management, Settings};

const SETS: usize = 10;
const TURNS: usize = 3;
const LIMIT: Duration = Duration::from_mins(5);
const PARALLEL: usize = 16;
/// Between changes: agents may write as much at once again.
const REST: Duration = Duration::from_secs(20);
/// The default of `identity-change-grace-period`.
const GRACE: Duration = Duration::from_secs(5);

/// What is measured, by environment variables.
#[derive(Clone)]
struct Load {
    pods: usize,
    agents: usize,
    /// The operator that makes identities; agents do without one.
    operator: Option<PathBuf>,
    /// The file for the figures as JSON.
    json: Option<PathBuf>,
}

impl Load {
    fn asked() -> Self {
        let number = |name: &str, default| {
            let value = std::env::var(name).ok();
            value.map_or(default, |value| {
                value.parse().unwrap_or_else(|_| panic!("{name} is no number"))
            })
        };
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Self {
            pods: number("CILIA_NAMESPACE_PODS", 100),
            agents: number("CILIA_NAMESPACE_AGENTS", 1),
            operator: path("CILIA_NAMESPACE_OPERATOR"),
            json: path("CILIA_NAMESPACE_JSON"),
        }
    }

    fn management(&self) -> Management {
        if self.operator.is_some() { Management::Operator } else { Management::Agent }
    }
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(number: usize) -> String {
    format!("n{}", number + 1)
}

async fn cluster(server: &ApiServer, load: &Load) {
    let post = PostParams::default();
    for number in 0..load.agents {
        let name = node(number);
        let nodes: Api<Node> = Api::all(server.client());
        nodes.create(&post, &object(json!({"metadata": {"name": name}}))).await.unwrap();
        let address = json!({"type": "InternalIP", "address": format!("192.0.2.{}", number + 1)});
        let status = Patch::Merge(json!({"status": {"addresses": [address]}}));
        nodes.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
        let nodes: Api<CiliumNode> = Api::all(server.client());
        let ranges = json!([format!("10.0.{}.0/20", 16 * number), format!("fd00:{number}::/112")]);
        let node = json!({"metadata": {"name": name}, "spec": {"ipam": {"podCIDRs": ranges}}});
        nodes.create(&post, &object(node)).await.unwrap();
    }
    let api: Api<Pod> = Api::namespaced(server.client(), "default");
    let create = async |number: usize| {
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "labels": {"app": format!("app-{}", number % SETS)}},
            "spec": {"nodeName": node(number % load.agents), "containers": [{"name": "c", "image": "none"}]},
        });
        api.create(&post, &object(pod)).await.map(drop)
    };
    stream::iter(0..load.pods)
        .map(create)
        .buffer_unordered(PARALLEL)
        .try_collect::<()>()
        .await
        .unwrap();
}

/// Passes connections on from a node's network namespace, whose listener it is given, to the one that it runs in.
async fn pass_on(listener: TcpListener, server: SocketAddr) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((mut inbound, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut outbound = tokio::net::TcpStream::connect(server).await?;
            tokio::io::copy_bidirectional(&mut inbound, &mut outbound).await
        });
    }
}

/// Runs a node with its share of the pods until `stop`; says when all of them are connected.
fn run_node(
    load: &Load,
    number: usize,
    server: &ApiServer,
    outside: &Handle,
    ready: &mpsc::Sender<()>,
    stop: &CancellationToken,
) {
    in_private_node(|| async move {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        outside.spawn(pass_on(listener, server.address()));
        let kubeconfig = server.kubeconfig_via(address).display().to_string();
        let flags = ["--k8s-kubeconfig-path".to_owned(), kubeconfig];
        let flags = Config::load(Flags::agent(), flags, []).unwrap();
        let own = client::Settings::new(&flags, &format!("agent-{number}")).for_pods(&flags);
        let client = client::client(&flags, &own).await.unwrap();
        let (state, bpf) = (tempfile::tempdir().unwrap(), BpfFs::mount());
        let settings = Settings {
            space: Space::new(0, 255).unwrap(),
            management: load.management(),
            well_known: Vec::new(),
            timeout: LIMIT,
            grace: GRACE,
        };
        let identities = Identities::with_settings(client.clone(), settings);
        let agent =
            Agent::start_with(client, &node(number), state.path(), bpf.path(), identities).await;
        let pods = (number..load.pods).step_by(load.agents);
        let places: Vec<(usize, PodNetns)> = pods.map(|pod| (pod, PodNetns::new())).collect();
        let add = async |(pod, place): &(usize, PodNetns)| {
            let body = json!({
                "container_id": format!("c{pod}"),
                "netns": place.path,
                "ifname": "eth0",
                "args": {"K8S_POD_NAME": format!("p{pod}"), "K8S_POD_NAMESPACE": "default"},
                "config": {"cniVersion": "1.1.0", "name": "cilium"},
            });
            let (status, result) = ask(&agent.server, "add", &body).await;
            assert_eq!(status, 200, "{result}");
        };
        stream::iter(&places).map(add).buffer_unordered(PARALLEL).collect::<()>().await;
        ready.send(()).await.unwrap();
        stop.cancelled().await;
        agent.token.cancel();
    });
}

/// The labels that each endpoint's object says, and when it was first seen with them.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<Key, Since>>>);

/// Labels, and when they were first seen.
type Since = (Vec<String>, Instant);

impl Seen {
    async fn follow(self, api: Api<CiliumEndpoint>) {
        let mut events = std::pin::pin!(watch(api));
        while let Some(event) = events.next().await {
            let Event::Applied(endpoint) = event else { continue };
            let identity = endpoint.status.as_ref().and_then(|status| status.identity.as_ref());
            let labels = identity.map(|identity| identity.labels.clone()).unwrap_or_default();
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = seen.entry(Key::of(&endpoint)).or_insert((Vec::new(), Instant::now()));
            if known.0 != labels {
                *known = (labels, Instant::now());
            }
        }
    }

    /// When each of so many objects got labels with this, as soon as the last one has.
    async fn all(&self, count: usize, label: &str) -> Vec<Instant> {
        eventually_for(LIMIT, || {
            let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let with =
                seen.values().filter(|(labels, _)| labels.iter().any(|own| own.contains(label)));
            let mut at: Vec<Instant> = with.map(|(_, at)| *at).collect();
            at.sort_unstable();
            std::future::ready(if at.len() == count { Ok(at) } else { Err(at.len()) })
        })
        .await
    }
}

fn operator(program: &Path, server: &ApiServer, log: &Path) -> Process {
    let [api] = free_ports();
    let arguments = [
        format!("--k8s-kubeconfig-path={}", server.kubeconfig().display()),
        "--ipam=kubernetes".to_owned(),
        "--identity-allocation-mode=crd".to_owned(),
        "--identity-management-mode=operator".to_owned(),
        format!("--operator-api-serve-addr=127.0.0.1:{api}"),
    ];
    Process::start(program, &arguments, log)
}

async fn measure(load: &Load, server: &ApiServer, seen: &Seen) -> Value {
    seen.all(load.pods, "app=").await;
    let namespaces: Api<Namespace> = Api::all(server.client());
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        tokio::time::sleep(REST).await;
        let value = format!("turn-{turn}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {"team": value}}}));
        let start = Instant::now();
        namespaces.patch("default", &PatchParams::default(), &patch).await.unwrap();
        let at = seen.all(load.pods, &value).await;
        let [median, last] =
            [at[at.len() / 2], at[at.len() - 1]].map(|at| (at - start).as_secs_f64());
        turns.push(json!({"median": median, "last": last}));
        println!("{:<44}{median:>10.2}{last:>10.2}", format!("turn {}", turn + 1));
    }
    let makes = if load.operator.is_some() { "operator" } else { "agents" };
    json!({"pods": load.pods, "agents": load.agents, "identities_by": makes, "seconds": turns})
}

#[test]
#[ignore = "a benchmark"]
fn a_namespace_changes() {
    let load = Load::asked();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _context = runtime.enter();
    let server = runtime.block_on(api_server());
    runtime.block_on(cluster(&server, &load));
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("operator.log");
    let _operator = load.operator.as_ref().map(|program| operator(program, &server, &log));
    let (ready, mut readied) = mpsc::channel(load.agents);
    let (stop, seen) = (CancellationToken::new(), Seen::default());
    runtime.spawn(seen.clone().follow(Api::namespaced(server.client(), "default")));
    std::thread::scope(|scope| {
        // Whatever happens, the nodes end.
        let _end = stop.clone().drop_guard();
        for number in 0..load.agents {
            let (load, ready, stop) = (&load, ready.clone(), &stop);
            let (server, outside) = (&server, runtime.handle());
            scope.spawn(move || run_node(load, number, server, outside, &ready, stop));
        }
        let report = runtime.block_on(async {
            for _ in 0..load.agents {
                let one = tokio::time::timeout(LIMIT, readied.recv()).await;
                one.expect("every node's pods are connected");
            }
            let makes = if load.operator.is_some() { "the operator" } else { "agents" };
            let head = format!("{} pods, {} agents, identities by {makes}", load.pods, load.agents);
            println!("{head:<44}{:>10}{:>10}", "median s", "last s");
            measure(&load, &server, &seen).await
        });
        if let Some(file) = &load.json {
            std::fs::write(file, serde_json::to_string_pretty(&report).unwrap()).unwrap();
        }
    });
}
