//! An agent for tests: everything that pods' lives need, put together as the program does it.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use cilia_identity::{Filter, Space};
use cilia_loader::{Datapath, MapSizes, NodeConfig};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::ApiServer;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Config, EndpointMap, Endpoints, Lifecycle, Parts, Pods, StateFiles};
use crate::cni::Server;
use crate::device::{Netlink, Sysctl};
use crate::identity::{Identities, Management};
use crate::ipam::Ipam;
use crate::node::{IpamMode, Keeper, Nodes, Plumbing, testing::config};
use crate::policy::Enforcer;
use crate::readiness::Readiness;
use crate::{ipcache, policy};

/// Whether pods get IPv4 addresses, and IPv6 addresses.
pub(crate) type Families = (bool, bool);

/// An agent, put together as the program does it.
pub(crate) struct Agent {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) server: Server,
    pub(crate) token: CancellationToken,
}

impl Agent {
    pub(crate) async fn start(
        server: &ApiServer,
        name: &str,
        state: &std::path::Path,
        bpf_root: PathBuf,
    ) -> Self {
        Self::start_for(server, name, state, bpf_root, (true, true)).await
    }

    /// One of whose pods have addresses of these families.
    pub(crate) async fn start_for(
        server: &ApiServer,
        name: &str,
        state: &std::path::Path,
        bpf_root: PathBuf,
        families: Families,
    ) -> Self {
        let space = Space::new(0, 255).unwrap();
        let client = server.client_as(name);
        let identities = Identities::new(client.clone(), space, Management::Agent);
        Self::put_together(client, "n1", state, bpf_root, identities, families).await
    }

    /// The agent of this node.
    pub(crate) async fn start_with(
        client: kube::Client,
        node: &str,
        state: &std::path::Path,
        bpf_root: PathBuf,
        identities: Identities,
    ) -> Self {
        Self::put_together(client, node, state, bpf_root, identities, (true, true)).await
    }

    async fn put_together(
        client: kube::Client,
        node: &str,
        state: &std::path::Path,
        bpf_root: PathBuf,
        identities: Identities,
        (ipv4, ipv6): Families,
    ) -> Self {
        let token = CancellationToken::new();
        let workqueues = Workqueues::register(&Metrics::new("cilium"));
        let readiness = Readiness::new(&["node", "policy", "ipcache"]);
        let (nodes, ipam, endpoints) = (Nodes::default(), Ipam::default(), Endpoints::default());
        let mut config = config(IpamMode::ClusterPool);
        (config.ipv4, config.ipv6, config.mtu) = (ipv4, ipv6, 1500);
        config.name = node.to_owned();
        let keeper = Keeper::new(
            config.clone(),
            client.clone(),
            nodes.clone(),
            ipam.clone(),
            readiness.clone(),
            &workqueues,
        );
        let stop = token.clone();
        tokio::spawn(async move { keeper.run(stop).await });
        let (running, stop) = (identities.clone(), token.clone());
        tokio::spawn(async move { running.run(stop).await });
        let (pods, changes) = Pods::new(client.clone());
        let (running, name, stop) = (pods.clone(), node.to_owned(), token.clone());
        tokio::spawn(async move { running.run(&name, stop).await });

        let local = nodes.wait_local().await;
        let (netlink, sysctl) = (Netlink::connect().unwrap(), Sysctl::new("/proc"));
        let plumbing =
            Plumbing::new(config, nodes.clone(), netlink.clone(), sysctl.clone(), &workqueues);
        let devices = plumbing.ensure().await.unwrap();
        let node = Plumbing::node_config(&devices, &local, &NodeConfig::default());
        let sizes = MapSizes {
            ipcache: 16384,
            conntrack_tcp: 4096,
            conntrack_any: 4096,
            services: 256,
            ..MapSizes::default()
        };
        let datapath = cilia_loader::Config { bpf_root, ipv4, ipv6, sizes, node };
        let datapath = Arc::new(Datapath::load(&datapath).unwrap());
        let map = EndpointMap::new(datapath.endpoints());
        plumbing.ensure_hosts(&map, &devices).await.unwrap();

        let enforcer =
            Enforcer::new(cilia_policy::Config::default(), crate::policy::Settings::default());
        let cache = ipcache::Cache::default();
        let sources = ipcache::Sources {
            client: client.clone(),
            slices: false,
            nodes: nodes.clone(),
            endpoints: endpoints.clone(),
            kubernetes: true,
            fed: None,
        };
        tokio::spawn(cache.clone().run(
            sources,
            Arc::clone(&datapath),
            readiness.clone(),
            token.clone(),
        ));
        let kinds = policy::Kinds { cilium: true, clusterwide: true, kubernetes: true };
        let sources = policy::Sources {
            client: client.clone(),
            kinds,
            identities: identities.clone(),
            nodes: nodes.clone(),
            ipcache: cache.clone(),
        };
        tokio::spawn(enforcer.clone().run(
            sources,
            Arc::clone(&datapath),
            readiness.clone(),
            token.clone(),
        ));

        let lifecycle = Lifecycle::new(Parts {
            config: Config {
                ipv4,
                ipv6,
                cluster: "default".into(),
                filter: Arc::new(Filter::new::<&str>(&[], None).unwrap()),
                mtu: plumbing.mtu(&local).await.unwrap(),
            },
            endpoints,
            pods,
            identities,
            ipam,
            nodes,
            ipcache: cache,
            enforcer,
            datapath,
            map,
            netlink,
            sysctl,
            files: StateFiles::new(state),
            client,
            workqueues,
        });
        lifecycle.restore().await.unwrap();
        let (running, stop) = (lifecycle.clone(), token.clone());
        tokio::spawn(async move { running.run(changes, stop).await });
        lifecycle.settle().await.unwrap();
        let cni = Server::new(readiness);
        cni.open(lifecycle.clone(), state).await.unwrap();
        Self { lifecycle, server: cni, token }
    }

    pub(crate) async fn cni(&self, verb: &str, body: &Value) -> (u16, Value) {
        ask(&self.server, verb, body).await
    }
}

pub(crate) async fn ask(server: &Server, verb: &str, body: &Value) -> (u16, Value) {
    let request =
        http::Request::post(format!("/v1/cni/{verb}")).body(Body::from(body.to_string())).unwrap();
    let response = server.router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}
