//! Connects the agent's parts, in the order in which each has what it needs.
//!
//! 1. What needs nothing but the API server: identities, pods, this node's `CiliumNode`.
//! 2. Once the node has ranges: devices, and the datapath on them.
//! 3. What fills the maps: ipcache, policy, services.
//! 4. Former endpoints are taken over, kept deletions carried out, and pods connected.
//! 5. Once every gate is open: the container runtime is told, and readiness is true.
//!
//! Nothing on the way touches the traffic of pods that a former agent connected.

mod ground;
mod maps;
mod steps;

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use cilia_kvstore::SyncMetrics;
use cilia_runtime::client;
use cilia_runtime::config::Config as Flags;
use cilia_runtime::http;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clustermesh::Clustermesh;
use crate::config::Settings;
use crate::endpoint::{self, Endpoints, Lifecycle, Pods, StateFiles};
use crate::events::{self, Bus};
use crate::identity::Identities;
use crate::ipam::Ipam;
use crate::ipcache::{self, Cache};
use crate::kvstore::{self, Kvstore};
use crate::node::{Keeper, Nodes};
use crate::policy;
use crate::readiness::Readiness;
use crate::service::{self, Services};
use crate::{api, clustermesh, cni, conntrack};
use ground::Ground;
use maps::Maps;
use steps::{announce, retried};

/// The gate that opens once former endpoints have been taken over.
const ENDPOINTS: &str = "endpoints";
/// The gate that opens once the datapath is loaded.
const DATAPATH: &str = "datapath";
/// The gate that opens once the container runtime knows the plugin.
const CNI: &str = "cni";
const GATES: &[&str] =
    &["node", DATAPATH, ipcache::GATE, policy::GATE, service::GATE, ENDPOINTS, CNI];

/// Runs until `stop` or a failure that a restart has to cure.
pub async fn run(
    flags: Flags,
    settings: Settings,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<()> {
    let mut agent = Agent { tasks: JoinSet::new(), stop: stop.clone() };
    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(()),
        outcome = agent.start(Arc::new(flags), settings, metrics) => outcome,
    };
    let outcome = match outcome {
        Ok(()) => agent.watch().await,
        failed => failed,
    };
    stop.cancel();
    agent.tasks.join_all().await;
    outcome
}

/// The agent's tasks; each runs until `stop`.
struct Agent {
    tasks: JoinSet<(&'static str, Result<()>)>,
    stop: CancellationToken,
}

impl Agent {
    fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            (name, Ok(()))
        });
    }

    /// Waits for `stop`; a task that ends before it is a failure.
    async fn watch(&mut self) -> Result<()> {
        tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            Some(ended) = self.tasks.join_next() => match ended {
                _ if self.stop.is_cancelled() => Ok(()),
                Ok((name, Ok(()))) => Err(anyhow!("{name} ended by itself")),
                Ok((name, Err(error))) => Err(error.context(name)),
                Err(panic) => Err(anyhow!("a task panicked: {panic}")),
            },
        }
    }

    async fn start(
        &mut self,
        flags: Arc<Flags>,
        settings: Settings,
        metrics: Metrics,
    ) -> Result<()> {
        let stop = self.stop.clone();
        let readiness = Readiness::new(GATES);
        serve_probes(&settings, &flags, &metrics, &readiness, &stop).await?;
        let workqueues = Workqueues::register(&metrics);
        let own = client::Settings::new(&flags, "cilium-agent");
        let client = client::client(&flags, &own).await?;
        let of_pods = client::client(&flags, &own.for_pods(&flags)).await?;

        let (nodes, endpoints) = (Nodes::default(), Endpoints::default());
        let ipam = Ipam::new(&settings.node, &settings.state_dir);
        metrics.register_collector(Box::new(crate::ipam::Collector(ipam.clone())));
        let identities = Identities::with_settings(of_pods.clone(), settings.identities.clone());
        let (pods, pod_changes) = Pods::new(client.clone());
        let keeper = Keeper::new(
            settings.node.clone(),
            client.clone(),
            nodes.clone(),
            ipam.clone(),
            readiness.clone(),
            &workqueues,
        );
        self.spawn("the node's own object", {
            let stop = stop.clone();
            async move { keeper.run(stop).await }
        });
        self.spawn("pods", {
            let (pods, name, stop) = (pods.clone(), settings.node.name.clone(), stop.clone());
            async move { pods.run(&name, stop).await }
        });

        if settings.kvstore.mode == kvstore::Mode::Kubernetes {
            self.follow_identities(&identities);
        }
        let local = nodes.wait_local().await;
        let space = settings.identities.space;
        settings.kvstore.wait_for_file().await;
        let kvstore = Kvstore::new(&settings.kvstore, space, &local, &workqueues, &metrics)?;
        let counters = api::Counters::register(&metrics);
        if let Some(kvstore) = &kvstore {
            kvstore.tell_of_limits(counters.of_etcd());
        }
        if let Some(backend) = kvstore.as_ref().and_then(Kvstore::backend) {
            identities.use_backend(backend);
            self.follow_identities(&identities);
        }
        let Ground { netlink, sysctl, mtu, datapath, map, base } =
            self.prepare_node(&settings, &nodes, &local, &readiness, &workqueues).await?;

        let (cache, bus, services) =
            (Cache::default(), Bus::new(settings.events.backlog), Services::default());
        let enforcer = self.enforce(&settings, &endpoints, base, &workqueues)?;
        let health = kvstore.as_ref().map(Kvstore::health);
        if let Some(kvstore) = kvstore.as_ref().filter(|_| Kvstore::feeds(&settings.kvstore)) {
            kvstore.remember(datapath.ipcache().entries().context("read the ipcache map")?);
        }
        let (fed, clusters) = self.feed(
            &settings,
            kvstore,
            &endpoints,
            clustermesh::Readers {
                identities: identities.clone(),
                nodes: nodes.clone(),
                services: services.clone(),
            },
            &metrics,
            &counters,
        );
        self.fill_maps(Maps {
            settings: &settings,
            client: &client,
            nodes: &nodes,
            endpoints: &endpoints,
            identities: &identities,
            cache: &cache,
            enforcer: &enforcer,
            services: &services,
            datapath: &datapath,
            readiness: &readiness,
            fed,
        });
        self.spawn(
            "conntrack",
            conntrack::collect(settings.conntrack, datapath.clone(), metrics.clone(), stop.clone()),
        );
        self.tasks.spawn({
            let events = bus.clone().run(datapath.clone(), stop.clone());
            async move { ("events", events.await.map_err(Into::into)) }
        });
        if settings.events.socket {
            let path = settings.socket.with_file_name(events::SOCKET);
            let (bus, stop) = (bus.clone(), stop.clone());
            self.tasks.spawn(async move {
                let served = events::serve(&path, bus, stop).await;
                ("the monitor's socket", served.map_err(Into::into))
            });
        }

        let loans = api::Loans::new(ipam.clone(), &workqueues);
        self.spawn("addresses lent on request", loans.clone().run(stop.clone()));
        let lifecycle = Lifecycle::new(endpoint::Parts {
            config: endpoint::Config {
                ipv4: settings.node.ipv4,
                ipv6: settings.node.ipv6,
                cluster: flags.string("cluster-name").to_owned(),
                filter: settings.filter.clone(),
                mtu,
            },
            endpoints: endpoints.clone(),
            pods,
            identities: identities.clone(),
            ipam,
            nodes: nodes.clone(),
            ipcache: cache.clone(),
            enforcer: enforcer.clone(),
            datapath: datapath.clone(),
            map,
            netlink,
            sysctl,
            files: StateFiles::new(&settings.state_dir),
            client: of_pods,
            workqueues: workqueues.clone(),
        });
        metrics.register_collector(Box::new(api::Collector {
            datapath: datapath.clone(),
            endpoints: endpoints.clone(),
            identities: identities.clone(),
            enforcer: enforcer.clone(),
            ipcache: cache.clone(),
            bus: bus.clone(),
            clusters: clusters.clone(),
        }));
        let plugin = cni::Server::new(readiness.clone());
        let disconnecting =
            api::disconnect::router(&flags, endpoints.clone(), plugin.clone(), &counters);
        let connecting = api::connect::router(
            &flags,
            endpoints.clone(),
            plugin.clone(),
            loans.clone(),
            &counters,
        );
        let parts = api::Parts {
            config: flags,
            readiness: readiness.clone(),
            client,
            endpoints,
            identities,
            nodes,
            ipcache: cache,
            enforcer,
            services,
            bus,
            datapath,
            metrics,
            kvstore: health,
            clusters,
            loans,
            counters,
            plugin: plugin.clone(),
        };
        let operations = api::router(parts).merge(disconnecting).merge(connecting);
        let router = api::shaped(operations).merge(plugin.router());
        let (socket, served) = (settings.socket.clone(), stop.clone());
        self.tasks.spawn(async move {
            let served = api::serve(&socket, router, served).await;
            ("the API's socket", served.map_err(Into::into))
        });

        lifecycle.restore().await.context("take over the endpoints of a former agent")?;
        self.spawn("endpoints", {
            let (lifecycle, stop) = (lifecycle.clone(), stop.clone());
            async move { lifecycle.run(pod_changes, stop).await }
        });
        let run_dir = settings.socket.parent().unwrap_or(&settings.state_dir);
        plugin.open(lifecycle.clone(), run_dir).await.context("kept deletions")?;
        retried("endpoints-settle", || lifecycle.settle(), &readiness, ENDPOINTS, &workqueues)
            .await;
        readiness.open(ENDPOINTS);
        self.spawn("CNI configuration", announce(settings.conflist, readiness, workqueues, stop));
        Ok(())
    }

    fn follow_identities(&mut self, identities: &Identities) {
        let (identities, stop) = (identities.clone(), self.stop.clone());
        self.spawn("identities", async move { identities.run(stop).await });
    }

    /// Starts what reads and writes outside of Kubernetes. What it says of addresses, if anything, and
    /// how other clusters are.
    fn feed(
        &mut self,
        settings: &Settings,
        kvstore: Option<Kvstore>,
        endpoints: &Endpoints,
        readers: clustermesh::Readers,
        metrics: &Metrics,
        counters: &api::Counters,
    ) -> (Option<mpsc::Receiver<Vec<ipcache::Fed>>>, Option<clustermesh::Remotes>) {
        let stop = self.stop.clone();
        let (feed, news) = mpsc::channel(kvstore::BATCHES);
        let feeds = Kvstore::feeds(&settings.kvstore) || settings.clustermesh.is_some();
        let (nodes, identities) = (readers.nodes.clone(), readers.identities.clone());
        let mesh = settings.clustermesh.as_ref().map(|settings| {
            let (mesh, news) = Clustermesh::new(settings);
            // Registered once, by the own kvstore if there is one.
            mesh.count_in(
                kvstore
                    .as_ref()
                    .map_or_else(|| SyncMetrics::register(metrics), Kvstore::sync_metrics),
            );
            mesh.tell_of_limits(counters.of_clusters());
            self.spawn(
                "other clusters",
                mesh.clone().run(readers, feed.clone(), news, stop.clone()),
            );
            mesh
        });
        let remotes = mesh.as_ref().map(Clustermesh::remotes);
        if let Some(kvstore) = kvstore.clone() {
            let (endpoints, feed) = (endpoints.clone(), Some(feed.clone()));
            self.spawn("kvstore", kvstore.run(identities, endpoints, nodes, feed, stop.clone()));
        }
        if feeds {
            self.spawn("the end of lists", async move {
                let listed = async {
                    if let Some(kvstore) = &kvstore {
                        kvstore.wait_listed().await;
                    }
                    if let Some(mesh) = &mesh {
                        mesh.wait_ready().await;
                    }
                    // Without an ipcache nobody waits.
                    let _ = feed.send(vec![ipcache::Fed::Listed]).await;
                };
                stop.run_until_cancelled(listed).await;
                stop.cancelled().await;
            });
        }
        (feeds.then_some(news), remotes)
    }
}

/// Answers the kubelet's probes from the first moment on, and scrapes if they are asked for.
async fn serve_probes(
    settings: &Settings,
    flags: &Flags,
    metrics: &Metrics,
    readiness: &Readiness,
    stop: &CancellationToken,
) -> Result<()> {
    http::serve(&settings.health, api::probe(readiness.clone()), stop)
        .await
        .context("agent-health-port")?;
    let address = flags.string("prometheus-serve-addr");
    if !address.is_empty() {
        http::serve(address, http::metrics_router(metrics), stop)
            .await
            .context("prometheus-serve-addr")?;
    }
    Ok(())
}
