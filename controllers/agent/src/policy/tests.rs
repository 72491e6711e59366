//! Policies, identities and slices on a real API server, and what the kernel's maps hold then.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use cilia_crds::{
    CiliumEndpointSlice, CiliumIdentity, CiliumNetworkPolicy, CiliumNode, NumericIdentity,
};
use cilia_identity::Space;
use cilia_loader::{Datapath, MapSizes, NodeConfig, PolicyKey, RemoteEndpoint};
use cilia_runtime::config::{Config, Flags};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, eventually};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Enforcer, GATE, Kinds, Sources};
use crate::api;
use crate::device::testing::{BpfFs, in_private_node};
use crate::endpoint::testing::{api_server, endpoint};
use crate::endpoint::{Endpoints, LocalEndpoint};
use crate::events::Bus;
use crate::identity::{Identities, Management};
use crate::ipam::Ipam;
use crate::ipcache;
use crate::node::{IpamMode, Keeper, Nodes, testing::config};
use crate::readiness::Readiness;
use crate::service::Services;

const WEB: u16 = 7;
const TCP: u8 = 6;

/// What users and operators write arrives in the maps well within this.
const SOON: Duration = Duration::from_secs(1);

struct Agent {
    server: ApiServer,
    datapath: Arc<Datapath>,
    enforcer: Enforcer,
    readiness: Readiness,
    parts: api::Parts,
    token: CancellationToken,
}

impl Agent {
    async fn start(bpf: &BpfFs) -> Self {
        let server = api_server().await;
        make_nodes(&server).await;
        Self::on(server, bpf)
    }

    /// Another agent in its place, which has been told of no endpoint yet.
    fn replaced(self, bpf: &BpfFs) -> Self {
        self.token.cancel();
        let Self { server, .. } = self;
        Self::on(server, bpf)
    }

    fn on(server: ApiServer, bpf: &BpfFs) -> Self {
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

        let sizes = MapSizes {
            policy: 256,
            ipcache: 1024,
            conntrack_tcp: 4096,
            conntrack_any: 4096,
            ..MapSizes::default()
        };
        let node = NodeConfig::default();
        let datapath =
            cilia_loader::Config { bpf_root: bpf.path(), ipv4: true, ipv6: true, sizes, node };
        let datapath = Arc::new(Datapath::load(&datapath).unwrap());
        // What a former agent left and nobody wants any more.
        let stale = RemoteEndpoint { identity: 999, ..RemoteEndpoint::default() };
        datapath.ipcache().upsert(&(ip("10.9.9.9"), 32), &stale).unwrap();

        let cache = ipcache::Cache::default();
        let policy = cilia_policy::Config { dual_stack: true, ..cilia_policy::Config::default() };
        let parts = api::Parts {
            config: Arc::new(Config::load(Flags::agent(), [], []).unwrap()),
            readiness: readiness.clone(),
            client: client.clone(),
            endpoints: endpoints.clone(),
            identities: identities.clone(),
            nodes: nodes.clone(),
            ipcache: cache.clone(),
            enforcer: Enforcer::new(policy),
            services: Services::default(),
            bus: Bus::default(),
            datapath: Arc::clone(&datapath),
            metrics: Metrics::new("cilium"),
        };
        let enforcer = parts.enforcer.clone();
        let sources = ipcache::Sources { client: client.clone(), slices: true, nodes, endpoints };
        let filling =
            cache.clone().run(sources, datapath.clone(), readiness.clone(), token.clone());
        tokio::spawn(filling);
        let kinds = Kinds { cilium: true, clusterwide: true, kubernetes: true };
        let sources = Sources { client, kinds, identities, ipcache: cache };
        let enforcing =
            enforcer.clone().run(sources, datapath.clone(), readiness.clone(), token.clone());
        tokio::spawn(enforcing);
        Self { server, datapath, enforcer, readiness, parts, token }
    }

    /// Waits until only these gates are closed.
    async fn closed(&self, gates: &[&str]) {
        eventually(|| {
            let closed = self.readiness.closed();
            let right = closed.iter().map(|(gate, _)| *gate).eq(gates.iter().copied());
            std::future::ready(if right { Ok(()) } else { Err(closed) })
        })
        .await;
    }

    /// What the API answers.
    async fn shows(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let answer = api::router(self.parts.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let body = axum::body::to_bytes(answer.into_body(), 1 << 24).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The metrics that the agent collects when it is asked.
    fn metrics(&self) -> String {
        let parts = self.parts.clone();
        parts.metrics.register_collector(Box::new(api::Collector {
            datapath: parts.datapath,
            endpoints: parts.endpoints,
            identities: parts.identities,
            enforcer: parts.enforcer,
            ipcache: parts.ipcache,
            bus: parts.bus,
        }));
        parts.metrics.render()
    }

    fn policies(&self) -> Api<CiliumNetworkPolicy> {
        Api::namespaced(self.server.client(), "default")
    }

    /// The endpoint's map: keys with whether they deny.
    fn map(&self) -> BTreeMap<PolicyKey, bool> {
        let entries = self.datapath.policy(WEB).unwrap().entries().unwrap();
        entries.into_iter().map(|(key, entry)| (key, entry.deny)).collect()
    }

    /// Waits until the endpoint's map holds exactly this.
    async fn holds(&self, want: &[(PolicyKey, bool)]) {
        let want: BTreeMap<PolicyKey, bool> = want.iter().copied().collect();
        let started = Instant::now();
        eventually(|| {
            std::future::ready(if self.map() == want { Ok(()) } else { Err(self.map()) })
        })
        .await;
        assert!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
    }

    fn address(&self, address: &str) -> Option<RemoteEndpoint> {
        self.datapath
            .ipcache()
            .get(&(ip(address), if address.contains(':') { 128 } else { 32 }))
            .unwrap()
    }

    /// Waits until an address has this identity and tunnel.
    async fn is_behind(&self, address: &str, want: Option<(u32, Option<&str>)>) {
        let want = want.map(|(identity, tunnel)| (identity, tunnel.map(ip)));
        let started = Instant::now();
        eventually(|| {
            let got = self.address(address).map(|entry| (entry.identity, entry.tunnel));
            std::future::ready(if got == want { Ok(()) } else { Err(got) })
        })
        .await;
        assert!(started.elapsed() < SOON, "{address}: it took {:?}", started.elapsed());
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

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn identity(number: u32, app: &str) -> Value {
    json!({"metadata": {"name": number.to_string()}, "security-labels": {
        "k8s:app": app, "k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}})
}

fn slice(name: &str, endpoints: &[(&str, u32)]) -> Value {
    let endpoint = |(address, identity): &(&str, u32)| {
        json!({"name": format!("pod-{address}"), "id": identity,
            "networking": {"addressing": [{"ipv4": address}], "node": "192.0.2.2"}})
    };
    json!({"metadata": {"name": name}, "namespace": "default",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()})
}

/// The endpoint `web`, in the namespace `default`.
fn web() -> LocalEndpoint {
    let mut web = endpoint(WEB, "c1", "web");
    web.labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
    web
}

const fn everything(identity: u32, egress: bool) -> (PolicyKey, bool) {
    (PolicyKey { identity, egress, proto: 0, port: 0, port_prefix: 0 }, false)
}

const OPEN: [(PolicyKey, bool); 2] = [everything(0, false), everything(0, true)];
const HOST: (PolicyKey, bool) = everything(1, false);

#[test]
fn maps_follow_policies_identities_and_slices() {
    in_private_node(|| async {
        let bpf = BpfFs::mount();
        let agent = Agent::start(&bpf).await;
        let started = Instant::now();
        agent.enforcer.restored();
        agent.enforcer.realize(&web()).await.unwrap();
        agent.closed(&[]).await;
        eprintln!("ready after {:?}", started.elapsed());
        agent.holds(&OPEN).await;
        assert_eq!(
            agent.address("10.9.9.9"),
            None,
            "what nobody wants is removed once all is listed"
        );
        agent.is_behind("192.0.2.1", Some((1, None))).await;
        agent.is_behind("192.0.2.2", Some((6, None))).await;
        agent.is_behind("10.0.1.1", Some((6, Some("192.0.2.2")))).await;

        // A rule, and then an identity that it selects.
        let port = json!([{"ports": [{"port": "80", "protocol": "TCP"}]}]);
        let allow = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [
            {"fromEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": port}]});
        create(&agent.policies(), policy("allow", &allow)).await;
        agent.holds(&[OPEN[1], HOST]).await;
        let identities: Api<CiliumIdentity> = Api::all(agent.server.client());
        create(&identities, identity(5000, "client")).await;
        let client = (PolicyKey::port(5000, false, TCP, 80), false);
        agent.holds(&[OPEN[1], HOST, client]).await;

        // A policy that no rule allows is named, and nothing else changes.
        let bad = json!({"endpointSelector": {}, "egress": [{"toEntities": ["world"], "toCIDR": ["10.0.0.0/8"]}]});
        create(&agent.policies(), policy("bad", &bad)).await;
        let mut view = agent.enforcer.view();
        let view = view.wait_for(|view| !view.faults.is_empty()).await.unwrap().clone();
        assert!(view.faults[0].1.starts_with("spec.egress[0].toEntities"), "{:?}", view.faults);
        agent.holds(&[OPEN[1], HOST, client]).await;

        // A prefix gets an identity of this node, in both maps.
        let prefix = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [{"toCIDR": ["198.51.100.0/24"]}]});
        create(&agent.policies(), policy("prefix", &prefix)).await;
        let local = cilia_policy::CIDR_SCOPE + 1;
        agent.holds(&[HOST, client, (PolicyKey::all(local, true), false)]).await;
        agent.is_behind("198.51.100.7", Some((local, None))).await;

        // Kubernetes' own kind counts too; a burst is one thing.
        let network: Api<NetworkPolicy> = Api::namespaced(agent.server.client(), "default");
        for number in 0..30 {
            let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [
                {"ports": [{"port": 8000 + number, "protocol": "TCP"}]}]});
            create(&network, policy(&format!("n{number}"), &spec)).await;
        }
        let ports = (8000..8030).map(|port| (PolicyKey::port(0, false, TCP, port), false));
        let all: Vec<_> =
            ports.chain([HOST, client, (PolicyKey::all(local, true), false)]).collect();
        agent.holds(&all).await;
        network
            .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())
            .await
            .unwrap();

        // The same, as the command line and Prometheus see it.
        let map = agent.shows("/v1/map/cilium_policy_v2_00007").await;
        assert!(map["entries"].as_array().unwrap().iter().any(|entry| entry["identity"] == 5000));
        let policies = agent.shows("/v1/policy").await;
        assert_eq!(policies["faults"][0]["policy"], "CiliumNetworkPolicy default/bad");
        assert!(policies["policy"].as_str().unwrap().contains("\"name\": \"allow\""));
        let addresses = agent.shows("/v1/ip").await;
        let node = addresses.as_array().unwrap().iter().find(|one| one["cidr"] == "192.0.2.2/32");
        assert_eq!(node.unwrap()["identity"], 6);
        let status = agent.shows("/v1/healthz").await;
        assert_eq!(
            (&status["cilium"]["state"], &status["kubernetes"]["state"]),
            (&json!("Ok"), &json!("Ok"))
        );
        for path in [
            "/v1/config",
            "/v1/endpoint",
            "/v1/identity",
            "/v1/cluster/nodes",
            "/v1/service",
            "/v1/metrics",
        ] {
            agent.shows(path).await;
        }
        let metrics = agent.metrics();
        for line in [
            "cilium_policy_endpoint_enforcement_status{enforcement=\"both\"} 1",
            "cilium_policy 2",
            "cilium_endpoint 0",
        ] {
            assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
        }

        // What goes takes its entries along.
        identities.delete("5000", &DeleteParams::default()).await.unwrap();
        agent.holds(&[HOST, (PolicyKey::all(local, true), false)]).await;
        for name in ["allow", "bad", "prefix"] {
            agent.policies().delete(name, &DeleteParams::default()).await.unwrap();
        }
        agent.holds(&OPEN).await;
        agent.is_behind("198.51.100.7", None).await;

        // A port's name means what the pods that are reached say, though others say something else.
        let slices: Api<CiliumEndpointSlice> = Api::all(agent.server.client());
        create(&identities, identity(5000, "client")).await;
        create(&identities, identity(5001, "client")).await;
        let mut pods = slice("named", &[("10.0.1.5", 5000), ("10.0.1.6", 5001)]);
        for (pod, port) in [80, 8080].into_iter().enumerate() {
            pods["endpoints"][pod]["named-ports"] =
                json!([{"name": "http", "port": port, "protocol": "TCP"}]);
        }
        create(&slices, pods).await;
        let named = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [
            {"toEndpoints": [{"matchLabels": {"app": "client"}}], "toPorts": [{"ports": [{"port": "http"}]}]}]});
        create(&agent.policies(), policy("named", &named)).await;
        let to = |identity, port| (PolicyKey::port(identity, true, TCP, port), false);
        agent.holds(&[OPEN[0], to(5000, 80), to(5001, 8080)]).await;
        agent.policies().delete("named", &DeleteParams::default()).await.unwrap();
        slices.delete("named", &DeleteParams::default()).await.unwrap();
        agent.holds(&OPEN).await;
        agent.is_behind("10.0.1.5", None).await;

        // Slices: an address moves without a gap, and goes with its last slice.
        create(&slices, slice("a", &[("10.0.1.5", 5000)])).await;
        agent.is_behind("10.0.1.5", Some((5000, Some("192.0.2.2")))).await;
        create(&slices, slice("b", &[("10.0.1.5", 5001)])).await;
        agent.is_behind("10.0.1.5", Some((5001, Some("192.0.2.2")))).await;
        slices.delete("a", &DeleteParams::default()).await.unwrap();
        create(&slices, slice("c", &[("10.0.1.6", 5000)])).await;
        agent.is_behind("10.0.1.6", Some((5000, Some("192.0.2.2")))).await;
        agent.is_behind("10.0.1.5", Some((5001, Some("192.0.2.2")))).await;
        slices.delete("b", &DeleteParams::default()).await.unwrap();
        agent.is_behind("10.0.1.5", None).await;

        // More than the map holds is refused and said; the endpoint keeps what it had.
        let many: Vec<Value> = (0..8).map(|block| {
            let ports: Vec<Value> =
                (0..40).map(|port| json!({"port": (2 * (40 * block + port) + 1001).to_string(), "protocol": "TCP"})).collect();
            json!({"ports": ports})
        }).collect();
        let many = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"toPorts": many}]});
        create(&agent.policies(), policy("many", &many)).await;
        let mut view = agent.enforcer.view();
        let full = |view: &Arc<super::View>| {
            view.endpoints[0].error.as_ref().is_some_and(|text| text.contains("bpf-policy-map-max"))
        };
        view.wait_for(full).await.unwrap();
        agent.policies().delete("many", &DeleteParams::default()).await.unwrap();
        agent.holds(&OPEN).await;

        agent.enforcer.remove(WEB).await;
        assert_eq!(agent.datapath.policies().unwrap(), Vec::<u16>::new());
        agent.token.cancel();
    });
}

#[test]
fn a_restart_never_cuts_what_policies_let_through() {
    in_private_node(|| async {
        let bpf = BpfFs::mount();
        let agent = Agent::start(&bpf).await;
        agent.enforcer.restored();
        agent.enforcer.realize(&web()).await.unwrap();
        let mut pods = slice("a", &[("10.0.1.5", 5000)]);
        pods["endpoints"][0]["named-ports"] =
            json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        create::<CiliumEndpointSlice>(&Api::all(agent.server.client()), pods).await;
        let rules = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [
            {"toCIDR": ["198.51.100.0/24"]}, {"toPorts": [{"ports": [{"port": "http"}]}]}]});
        create(&agent.policies(), policy("prefix", &rules)).await;
        // A policy closes what it is about, and a mistake in an edit of it doesn't open that.
        let rules = json!({"endpointSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}]});
        create(&agent.policies(), policy("edited", &rules)).await;
        let mistake =
            json!({"spec": {"ingress": [{"fromEntities": ["world"], "fromCIDR": ["10.0.0.0/8"]}]}});
        let (policies, merge) = (agent.policies(), PatchParams::default());
        policies.patch("edited", &merge, &Patch::Merge(mistake)).await.unwrap();
        let mut view = agent.enforcer.view();
        view.wait_for(|view| !view.faults.is_empty()).await.unwrap();
        let local = cilia_policy::CIDR_SCOPE + 1;
        let want = [
            HOST,
            (PolicyKey::all(local, true), false),
            (PolicyKey::port(0, true, TCP, 80), false),
        ];
        agent.holds(&want).await;
        agent.is_behind("198.51.100.7", Some((local, None))).await;

        let (datapath, over) = (Arc::clone(&agent.datapath), CancellationToken::new());
        let looking = over.clone();
        let watched = std::thread::spawn(move || {
            while !looking.is_cancelled() {
                let prefix = datapath.ipcache().get(&(ip("198.51.100.0"), 24)).unwrap();
                assert_eq!(prefix.map(|entry| entry.identity), Some(local));
                let map = datapath.policy(WEB).unwrap().entries().unwrap();
                let map: BTreeMap<_, _> = map.into_iter().map(|(k, e)| (k, e.deny)).collect();
                assert_eq!(map, want.iter().copied().collect());
            }
        });
        let agent = agent.replaced(&bpf);
        // The endpoint comes last, when all else has been listed.
        agent.closed(&[GATE]).await;
        agent.enforcer.restore(&web()).unwrap();
        agent.enforcer.restored();
        agent.closed(&[]).await;
        over.cancel();
        watched.join().unwrap();

        // Now that it is known what is needed, what is not needed goes.
        for name in ["prefix", "edited"] {
            agent.policies().delete(name, &DeleteParams::default()).await.unwrap();
        }
        agent.holds(&OPEN).await;
        agent.is_behind("198.51.100.7", None).await;
        agent.token.cancel();
    });
}

#[test]
fn orders_need_an_identity() {
    let nobody = LocalEndpoint { identity: None, ..web() };
    assert!(super::Subject::of(&nobody).is_err());
    assert_eq!(super::Subject::of(&web()).unwrap().identity, NumericIdentity(1234));
}
