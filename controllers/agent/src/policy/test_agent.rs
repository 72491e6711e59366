//! The parts of an agent that make policy, on a real API server and the kernel's maps.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use cilia_crds::{CiliumNetworkPolicy, CiliumNode};
use cilia_identity::Space;
use cilia_loader::testing::{BpfFs, small_maps};
use cilia_loader::{Datapath, MapSizes, PolicyKey, RemoteEndpoint};
use cilia_runtime::config::{Config, Flags};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, eventually};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Enforcer, GATE, Kinds, Settings, Sources};
use crate::api;
use crate::endpoint::testing::{api_server, endpoint};
use crate::endpoint::{Endpoints, LocalEndpoint};
use crate::events::Bus;
use crate::identity::{Identities, Management};
use crate::ipam::Ipam;
use crate::ipcache;
use crate::node::{IpamMode, Keeper, Nodes, testing::config};
use crate::readiness::Readiness;
use crate::service::Services;

pub(super) const WEB: u16 = 7;
pub(super) const TCP: u8 = 6;

/// The parts of an agent that make policy, with all that they are fed from.
pub(super) struct Agent {
    pub(super) server: ApiServer,
    pub(super) datapath: Arc<Datapath>,
    pub(super) enforcer: Enforcer,
    pub(super) readiness: Readiness,
    pub(super) parts: api::Parts,
    pub(super) token: CancellationToken,
    /// Policies tell nodes apart (`enable-node-selector-labels`).
    nodes_apart: bool,
}

impl Agent {
    pub(super) async fn start(bpf: &BpfFs) -> Self {
        Self::with(bpf, Settings::default()).await
    }

    /// With other settings than the usual.
    pub(super) async fn with(bpf: &BpfFs, settings: Settings) -> Self {
        let server = api_server().await;
        make_nodes(&server).await;
        Self::on(server, bpf, settings, false)
    }

    /// Whose policies tell nodes apart.
    pub(super) async fn with_nodes_apart(bpf: &BpfFs) -> Self {
        let server = api_server().await;
        make_nodes(&server).await;
        Self::on(server, bpf, Settings::default(), true)
    }

    /// Another agent in its place, which has been told of no endpoint yet.
    pub(super) fn replaced(self, bpf: &BpfFs) -> Self {
        self.token.cancel();
        let Self { server, nodes_apart, .. } = self;
        Self::on(server, bpf, Settings::default(), nodes_apart)
    }

    fn on(server: ApiServer, bpf: &BpfFs, policy_settings: Settings, nodes_apart: bool) -> Self {
        let (client, token) = (server.client(), CancellationToken::new());
        let workqueues = Workqueues::register(&Metrics::new("cilium"));
        let readiness = Readiness::new(&["node", GATE, ipcache::GATE]);
        let (nodes, endpoints) = (Nodes::default(), Endpoints::default());
        let mut settings = config(IpamMode::ClusterPool);
        settings.mtu = 1500;
        let ipam = Ipam::default();
        let keeper = Keeper::new(
            settings,
            client.clone(),
            nodes.clone(),
            ipam,
            readiness.clone(),
            &workqueues,
        );
        let stop = token.clone();
        tokio::spawn(async move { keeper.run(stop).await });
        let identities =
            Identities::new(client.clone(), Space::new(0, 255).unwrap(), Management::Agent);
        let (running, stop) = (identities.clone(), token.clone());
        tokio::spawn(async move { running.run(stop).await });

        let datapath = Arc::new(bpf.load_sized(MapSizes { policy: 256, ..small_maps() }));
        // What a former agent left and nobody wants any more.
        let stale = RemoteEndpoint { identity: 999, ..RemoteEndpoint::default() };
        datapath.ipcache().upsert(&(ip("10.9.9.9"), 32), &stale).unwrap();

        let cache = ipcache::Cache::default();
        let policy = cilia_policy::Config {
            dual_stack: true,
            host_firewall: policy_settings.host,
            node_selectors: nodes_apart,
            ..cilia_policy::Config::default()
        };
        let metrics = Metrics::new("cilium");
        let parts = api::Parts {
            config: Arc::new(Config::load(Flags::agent(), [], []).unwrap()),
            readiness: readiness.clone(),
            client: client.clone(),
            endpoints: endpoints.clone(),
            identities: identities.clone(),
            nodes: nodes.clone(),
            ipcache: cache.clone(),
            enforcer: Enforcer::new(policy, policy_settings),
            services: Services::default(),
            bus: Bus::default(),
            datapath: Arc::clone(&datapath),
            loans: api::Loans::new(Ipam::default(), &Workqueues::register(&metrics)),
            counters: api::Counters::register(&metrics),
            plugin: crate::cni::Server::new(readiness.clone()),
            metrics,
            kvstore: None,
            clusters: None,
        };
        let enforcer = parts.enforcer.clone();
        let sources = ipcache::Sources {
            client: client.clone(),
            slices: true,
            nodes: nodes.clone(),
            endpoints,
            kubernetes: true,
            fed: None,
        };
        let filling =
            cache.clone().run(sources, datapath.clone(), readiness.clone(), token.clone());
        tokio::spawn(filling);
        let kinds = Kinds { cilium: true, clusterwide: true, kubernetes: true };
        let sources = Sources { client, kinds, identities, nodes, ipcache: cache };
        let enforcing =
            enforcer.clone().run(sources, datapath.clone(), readiness.clone(), token.clone());
        tokio::spawn(enforcing);
        Self { server, datapath, enforcer, readiness, parts, token, nodes_apart }
    }

    /// Waits until only these gates are closed.
    pub(super) async fn closed(&self, gates: &[&str]) {
        eventually(|| {
            let closed = self.readiness.closed();
            let right = closed.iter().map(|(gate, _)| *gate).eq(gates.iter().copied());
            std::future::ready(if right { Ok(()) } else { Err(closed) })
        })
        .await;
    }

    /// What the API answers.
    pub(super) async fn shows(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let answer = api::router(self.parts.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let body = axum::body::to_bytes(answer.into_body(), 1 << 24).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The status with which the API answers a change.
    pub(super) async fn patches(&self, path: &str, body: Value) -> u16 {
        let request = http::Request::patch(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        api::router(self.parts.clone()).oneshot(request).await.unwrap().status().as_u16()
    }

    /// Waits until the endpoint's map has this many entries.
    pub(super) async fn fills(&self, entries: usize) {
        eventually(|| {
            let now = self.map().len();
            std::future::ready(if now == entries { Ok(()) } else { Err(now) })
        })
        .await;
    }

    /// The metrics that the agent collects when it is asked.
    pub(super) fn metrics(&self) -> String {
        let parts = self.parts.clone();
        parts.metrics.register_collector(Box::new(api::Collector {
            datapath: parts.datapath,
            endpoints: parts.endpoints,
            identities: parts.identities,
            enforcer: parts.enforcer,
            ipcache: parts.ipcache,
            bus: parts.bus,
            clusters: None,
        }));
        parts.metrics.render()
    }

    pub(super) fn policies(&self) -> Api<CiliumNetworkPolicy> {
        Api::namespaced(self.server.client(), "default")
    }

    /// The endpoint's map: keys with whether they deny.
    pub(super) fn map(&self) -> BTreeMap<PolicyKey, bool> {
        let entries = self.datapath.policy(WEB).unwrap().entries().unwrap();
        entries.into_iter().map(|(key, entry)| (key, entry.deny)).collect()
    }

    /// Waits until the endpoint's map holds exactly this.
    pub(super) async fn holds(&self, want: &[(PolicyKey, bool)]) {
        let want: BTreeMap<PolicyKey, bool> = want.iter().copied().collect();
        eventually(|| {
            std::future::ready(if self.map() == want { Ok(()) } else { Err(self.map()) })
        })
        .await;
    }

    pub(super) fn address(&self, address: &str) -> Option<RemoteEndpoint> {
        self.datapath
            .ipcache()
            .get(&(ip(address), if address.contains(':') { 128 } else { 32 }))
            .unwrap()
    }

    /// Waits until an address has this identity and tunnel.
    pub(super) async fn is_behind(&self, address: &str, want: Option<(u32, Option<&str>)>) {
        let want = want.map(|(identity, tunnel)| (identity, tunnel.map(ip)));
        eventually(|| {
            let got = self.address(address).map(|entry| (entry.identity, entry.tunnel));
            std::future::ready(if got == want { Ok(()) } else { Err(got) })
        })
        .await;
    }
}

async fn make_nodes(server: &ApiServer) {
    create::<Node>(&Api::all(server.client()), json!({"metadata": {"name": "n1"}})).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let nodes: Api<Node> = Api::all(server.client());
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let own = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ["10.0.0.0/24", "fd00::/116"]}}});
    let other = json!({"metadata": {"name": "n2"}, "spec": {"addresses": [
        {"type": "InternalIP", "ip": "192.0.2.2"}, {"type": "CiliumInternalIP", "ip": "10.0.1.1"}]}});
    for node in [own, other] {
        create::<CiliumNode>(&Api::all(server.client()), node).await;
    }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

pub(super) fn policy(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

pub(super) fn identity(number: u32, app: &str) -> Value {
    json!({"metadata": {"name": number.to_string()}, "security-labels": {
        "k8s:app": app, "k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}})
}

pub(super) fn slice(name: &str, endpoints: &[(&str, u32)]) -> Value {
    let endpoint = |(address, identity): &(&str, u32)| {
        json!({"name": format!("pod-{address}"), "id": identity,
            "networking": {"addressing": [{"ipv4": address}], "node": "192.0.2.2"}})
    };
    json!({"metadata": {"name": name}, "namespace": "default",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()})
}

/// The endpoint `web`, in the namespace `default`.
pub(super) fn web() -> LocalEndpoint {
    let mut web = endpoint(WEB, "c1", "web");
    web.labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
    web
}
