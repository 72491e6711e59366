//! Policies, identities and slices on a real API server, and what the kernel's maps hold then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cilia_crds::{CiliumEndpointSlice, CiliumIdentity, CiliumNode, NumericIdentity};
use cilia_loader::testing::BpfFs;
use cilia_loader::{EndpointOptions, PolicyKey};
use cilia_policy::Mode;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::GATE;
use super::test_agent::{Agent, TCP, WEB, create, identity, ip, policy, slice, web};
use crate::device::testing::in_private_node;
use crate::endpoint::LocalEndpoint;

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
        let mut left = agent.enforcer.view();
        left.wait_for(|view| view.policies.len() == 2).await.unwrap();
        agent.holds(&[HOST, client, (PolicyKey::all(local, true), false)]).await;

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
            "cilium_policy_change_total{outcome=\"failure\"} 1",
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
        // What a slice said that is deleted would be held for a while.
        let emptied = Patch::Merge(json!({"endpoints": []}));
        slices.patch("named", &PatchParams::default(), &emptied).await.unwrap();
        agent.holds(&OPEN).await;
        agent.is_behind("10.0.1.5", None).await;

        // Slices: an address moves without a gap, and goes when the last slice is without it.
        create(&slices, slice("a", &[("10.0.1.5", 5000)])).await;
        agent.is_behind("10.0.1.5", Some((5000, Some("192.0.2.2")))).await;
        create(&slices, slice("b", &[("10.0.1.5", 5001)])).await;
        agent.is_behind("10.0.1.5", Some((5001, Some("192.0.2.2")))).await;
        slices.delete("a", &DeleteParams::default()).await.unwrap();
        create(&slices, slice("c", &[("10.0.1.6", 5000)])).await;
        agent.is_behind("10.0.1.6", Some((5000, Some("192.0.2.2")))).await;
        agent.is_behind("10.0.1.5", Some((5001, Some("192.0.2.2")))).await;
        slices.patch("b", &PatchParams::default(), &emptied).await.unwrap();
        agent.is_behind("10.0.1.5", None).await;

        // More than the map holds is said with fewer entries, if it can be: ports one after the other.
        let ports = |from: u16| {
            let blocks = (0..8).map(|block| (0..40).map(move |port| from + 40 * block + port));
            let port = |port: u16| json!({"port": port.to_string(), "protocol": "TCP"});
            let blocks: Vec<Value> =
                blocks.map(|block| json!({"ports": block.map(port).collect::<Vec<_>>()})).collect();
            json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"toPorts": blocks}]})
        };
        let said = |last: u16| {
            let blocks = cilia_policy::l4::blocks(TCP, 1000, last).into_iter();
            let key = |l4: cilia_policy::l4::L4| {
                let (port, port_prefix) = (l4.port, l4.prefix);
                (PolicyKey { identity: 0, egress: false, proto: TCP, port, port_prefix }, false)
            };
            blocks.map(key).chain([OPEN[1], HOST]).collect::<Vec<_>>()
        };
        create(&agent.policies(), policy("merged", &ports(1000))).await;
        agent.holds(&said(1319)).await;
        let (mut view, needed) = (agent.enforcer.view(), said(1319).len());
        let told = view.wait_for(|view| view.endpoints[0].needed == needed).await.unwrap().clone();
        assert_eq!(told.endpoints[0].error, None);
        create(&agent.policies(), policy("more", &ports(1320))).await;
        agent.holds(&said(1639)).await;
        for name in ["merged", "more"] {
            agent.policies().delete(name, &DeleteParams::default()).await.unwrap();
        }
        agent.holds(&OPEN).await;

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
        let told = view.wait_for(full).await.unwrap().clone();
        assert_eq!((told.endpoints[0].needed, told.endpoints[0].most), (322, 256));
        // What fits is there, and not more than the policy says.
        agent.fills(256).await;
        assert!(agent.map().keys().all(|key| key.egress || key.identity == 1 || key.port > 1000));
        let pressure = "cilium_bpf_map_pressure{map_name=\"cilium_policy_v2_*\"} 1.2578125";
        assert!(agent.metrics().lines().any(|line| line == pressure), "{}", agent.metrics());
        agent.policies().delete("many", &DeleteParams::default()).await.unwrap();
        agent.holds(&OPEN).await;

        // Audit mode of one endpoint, as Cilium's API sets it.
        let path = "/v1/endpoint/7/config";
        assert_eq!(
            agent.patches(path, json!({"options": {"PolicyAuditMode": "Enabled"}})).await,
            404
        );
        agent.parts.endpoints.put_for_test(web());
        for (options, status) in [
            (json!({"PolicyAuditMode": "Enabled"}), 200),
            (json!({"PolicyAuditMode": "Perhaps"}), 400),
            (json!({"Debug": "Enabled"}), 400),
        ] {
            assert_eq!(agent.patches(path, json!({"options": options})).await, status, "{options}");
        }
        assert_eq!(agent.shows(path).await["realized"]["options"]["PolicyAuditMode"], "Enabled");
        let options = || agent.datapath.options().entries().unwrap();
        assert_eq!(options(), [(WEB, EndpointOptions { policy_audit: true })]);
        assert_eq!(agent.shows("/v1/flows").await, json!([]));
        // Of all endpoints: what one had for itself is gone, and it may have another one again.
        let shown = async |path| {
            let shown = agent.shows(path).await;
            let realized = shown.pointer("/status/realized").or(shown.get("realized"));
            realized.unwrap()["options"]["PolicyAuditMode"].clone()
        };
        let set = |mode: &str| json!({"options": {"PolicyAuditMode": mode}});
        assert_eq!(agent.patches("/v1/config", set("maybe")).await, 400);
        assert_eq!(agent.patches("/v1/config", json!({"options": {"Debug": "on"}})).await, 400);
        assert_eq!(shown("/v1/config").await, "Disabled");
        assert_eq!(agent.patches("/v1/config", set("Enabled")).await, 200);
        assert_eq!((shown("/v1/config").await, options()), (json!("Enabled"), vec![]));
        assert_eq!(shown(path).await, "Enabled");
        assert_eq!(agent.patches(path, set("Disabled")).await, 200);
        assert_eq!(shown(path).await, "Disabled");
        assert_eq!(options(), [(WEB, EndpointOptions { policy_audit: false })]);

        // Whose traffic is restricted at all: nobody's, everybody's, and that of those again whom a rule selects.
        let strictly = |mode: &str| json!({"policy-enforcement": mode});
        assert_eq!(agent.patches("/v1/config", strictly("sometimes")).await, 422);
        for (mode, enabled) in
            [("always", "both"), ("never", "none"), ("always", "both"), ("default", "none")]
        {
            assert_eq!(agent.patches("/v1/config", strictly(mode)).await, 200, "{mode}");
            assert_eq!(agent.shows("/v1/config").await["spec"]["policy-enforcement"], mode);
            eventually(|| async {
                let shown = agent.shows("/v1/endpoint/7").await;
                let now = shown["status"]["policy"]["realized"]["policy-enabled"].clone();
                if now == enabled { Ok(()) } else { Err((mode, shown)) }
            })
            .await;
        }
        // Who asks may be gone before it is done: what is shown is what holds.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        tokio::select! {
            biased;
            _ = agent.enforcer.ask(move |_| wait.recv()) => unreachable!("it waits"),
            _ = agent.enforcer.set_mode(Mode::Never) => unreachable!("the other one is before it"),
            () = std::future::ready(()) => {}
        }
        go.send(()).unwrap();
        let never = async || match agent.enforcer.mode() {
            Mode::Never => Ok(()),
            mode => Err(mode),
        };
        eventually(never).await;
        assert_eq!(agent.patches("/v1/config", strictly("default")).await, 200);
        agent.holds(&OPEN).await;

        agent.enforcer.remove(WEB).await;
        // No identity of the cluster's: with the endpoint nobody has it any more.
        let known = agent.enforcer.ask(|rules| rules.labels(NumericIdentity(1234)).is_some());
        assert_eq!(known.await, Some(false));
        assert_eq!(options(), []);
        assert_eq!(agent.datapath.policies().unwrap(), Vec::<u16>::new());
        agent.token.cancel();
    });
}

#[test]
fn a_restart_never_cuts_what_policies_let_through() {
    in_private_node(|| async {
        let bpf = BpfFs::mount();
        let agent = Agent::with_nodes_apart(&bpf).await;
        agent.enforcer.restored();
        agent.enforcer.realize(&web()).await.unwrap();
        let mut pods = slice("a", &[("10.0.1.5", 5000)]);
        pods["endpoints"][0]["named-ports"] =
            json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        create::<CiliumEndpointSlice>(&Api::all(agent.server.client()), pods).await;
        let rules = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [
            {"toCIDR": ["198.51.100.0/24"]}, {"toPorts": [{"ports": [{"port": "http"}]}]}]});
        create(&agent.policies(), policy("prefix", &rules)).await;
        // A node that comes last now, and first when the next agent lists them.
        let rules = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "egress": [{"toNodes": [{}]}]});
        create(&agent.policies(), policy("nodes", &rules)).await;
        let node = cilia_policy::nodes::SCOPE;
        agent.is_behind("192.0.2.2", Some((node + 2, None))).await;
        let first = json!({"metadata": {"name": "a3"}, "spec": {"addresses": [
            {"type": "InternalIP", "ip": "192.0.2.3"}]}});
        create::<CiliumNode>(&Api::all(agent.server.client()), first).await;
        agent.is_behind("192.0.2.3", Some((node + 3, None))).await;
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
            everything(node + 1, true),
            everything(node + 2, true),
            everything(node + 3, true),
        ];
        agent.holds(&want).await;
        agent.is_behind("198.51.100.7", Some((local, None))).await;

        let (datapath, over) = (Arc::clone(&agent.datapath), CancellationToken::new());
        let looking = over.clone();
        let watched = std::thread::spawn(move || {
            while !looking.is_cancelled() {
                let prefix = datapath.ipcache().get(&(ip("198.51.100.0"), 24)).unwrap();
                assert_eq!(prefix.map(|entry| entry.identity), Some(local));
                let last = datapath.ipcache().get(&(ip("192.0.2.3"), 32)).unwrap();
                assert_eq!(last.map(|entry| entry.identity), Some(node + 3));
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
        for name in ["prefix", "edited", "nodes"] {
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
