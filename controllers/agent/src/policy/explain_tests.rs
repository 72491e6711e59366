//! Verdicts as the API explains them: what decides, what a change would cut, which rules an event is of.

use axum::body::Body;
use cilia_crds::{CiliumEndpointSlice, CiliumIdentity};
use cilia_loader::event::{Matched, Packet, VerdictEvent};
use cilia_loader::testing::BpfFs;
use cilia_loader::{Direction, Event, PolicyKey};
use futures::StreamExt as _;
use kube::Api;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::Settings;
use super::test_agent::{Agent, TCP, WEB, create, identity, policy, slice, web};
use crate::api;
use crate::device::testing::in_private_node;
use crate::endpoint::NamedPort;

impl Agent {
    /// Why a question has no answer.
    async fn refuses(&self, path: &str) -> String {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let answer = api::router(self.parts.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 400, "{path}");
        let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// What the API answers to a change of policies.
    async fn would_cut(&self, policies: &Value) -> Value {
        let request = http::Request::post("/v1/policy/diff");
        let request = request.header("content-type", "application/json");
        let request = request.body(Body::from(policies.to_string())).unwrap();
        let answer = api::router(self.parts.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = axum::body::to_bytes(answer.into_body(), 1 << 24).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }
}

/// A packet from a peer to the endpoint, let through by what has this cookie.
fn passed(peer: u32, port: u16, cookie: u32) -> Event {
    Event::Verdict(VerdictEvent {
        packet: Packet { endpoint: WEB, hash: 1, length: 60, ipv6: false, bytes: vec![] },
        remote_identity: peer,
        denied: None,
        direction: Direction::Ingress,
        port,
        proto: TCP,
        matched: Matched::IdentityAndPort,
        audited: false,
        cookie,
    })
}

#[test]
fn verdicts_are_explained() {
    in_private_node(|| async {
        let bpf = BpfFs::mount();
        let agent = Agent::with(&bpf, Settings { host: true, lockdown: false }).await;
        let mut local = web();
        local.identity = local.identity.or(Some(cilia_crds::NumericIdentity(1234)));
        local.named_ports =
            vec![NamedPort { name: "http".into(), port: 80, protocol: "TCP".into() }];
        agent.parts.endpoints.put_for_test(local.clone());
        agent.enforcer.restore_host().unwrap();
        agent.enforcer.restored();
        agent.enforcer.realize(&local).await.unwrap();
        agent.enforcer.realize_host().await.unwrap();
        let client = || agent.server.client();
        create::<CiliumIdentity>(&Api::all(client()), identity(5000, "client")).await;
        let pods = slice("a", &[("10.0.1.5", 5000)]);
        create::<CiliumEndpointSlice>(&Api::all(client()), pods).await;
        agent.is_behind("10.0.1.5", Some((5000, Some("192.0.2.2")))).await;
        let app = json!({"matchLabels": {"app": "web"}});
        let spec = json!({"endpointSelector": app, "log": {"value": "shop"},
            "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}],
                "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]}],
            "egress": [{"toCIDR": ["198.51.100.0/24"]}]});
        create(&agent.policies(), policy("allow", &spec)).await;
        let allowed = PolicyKey::port(5000, false, TCP, 80);
        let cookie = cilia_runtime::testing::eventually(|| {
            let entries = agent.datapath.policy(WEB).unwrap().entries().unwrap();
            let found =
                entries.iter().find(|(key, _)| *key == allowed).map(|(_, entry)| entry.cookie);
            std::future::ready(found.ok_or(entries))
        })
        .await;

        // Sides are identities, addresses, entities and pods; ports have names.
        for (from, port, allowed, says) in [
            ("5000", "80", true, "CiliumNetworkPolicy default/allow"),
            ("5000", "http", true, "CiliumNetworkPolicy default/allow"),
            ("10.0.1.5", "80", true, "spec.ingress[0]"),
            ("5000", "81", false, "none allows it"),
            ("203.0.113.9", "80", false, "It is dropped."),
            ("2001:db8::9", "HTTP", false, "It is dropped."),
            ("reserved:remote-node", "80", false, "fromEntities"),
            ("world", "80", false, "It is dropped."),
            ("host", "80", true, "by default"),
            ("default%2Fweb", "80", false, "none allows it"),
        ] {
            let path =
                format!("/v1/policy/explain?from={from}&to=default%2Fweb&proto=6&port={port}");
            let told = agent.shows(&path).await;
            assert_eq!(told["explanation"]["allowed"], allowed, "{from} {port}: {told}");
            assert!(told["text"].as_str().unwrap().contains(says), "{from} {port}: {told}");
        }
        for (from, port, why) in [
            ("999", "80", "there is no identity 999"),
            ("moon", "80", "\"moon\" is no pod (NAMESPACE/NAME), no address"),
            ("default%2Fnobody", "80", "there is no endpoint default/nobody"),
            (
                "5000",
                "https",
                "the receiver has no TCP port of the name \"https\": it names http (80)",
            ),
            ("5000", "70000", "port 70000 is not between 0 and 65535"),
        ] {
            let path =
                format!("/v1/policy/explain?from={from}&to=default%2Fweb&proto=6&port={port}");
            let fault = agent.refuses(&path).await;
            assert!(fault.contains(why), "{from} {port}: {fault}");
        }

        // What rules have decided: nothing yet, with one entry each.
        let shown = agent.shows("/v1/policy").await;
        let counted = |field: &str| {
            json!({"policy": "CiliumNetworkPolicy default/allow", "field": field, "log": "shop",
                "endpoints": 1, "entries": 1, "packets": 0, "bytes": 0})
        };
        assert_eq!(shown["rules"], json!([counted("spec.egress[0]"), counted("spec.ingress[0]")]));

        // Whom rules select, and of whom they are.
        let selectors = agent.shows("/v1/policy/selectors").await;
        let selects = |one: &&Value| one["identities"] == json!([5000]);
        let client_selector = selectors.as_array().unwrap().iter().find(selects);
        assert_eq!(
            client_selector.expect("the clients' selector")["policies"],
            json!(["CiliumNetworkPolicy default/allow"])
        );

        // An event says which rules it is of.
        let request = http::Request::get("/v1/monitor").body(Body::empty()).unwrap();
        let heard = api::router(agent.parts.clone()).oneshot(request).await.unwrap();
        let mut lines = heard.into_body().into_data_stream();
        lines.next().await.unwrap().unwrap();
        agent.parts.bus.take(passed(5000, 80, cookie));
        let line: Value = serde_json::from_slice(&lines.next().await.unwrap().unwrap()).unwrap();
        let rule = json!({"policy": "CiliumNetworkPolicy default/allow", "field": "spec.ingress[0]", "log": "shop"});
        assert_eq!((&line["action"], &line["rules"]), (&json!("allow"), &json!([rule])), "{line}");
        let said = line["line"].as_str().unwrap();
        let end = "; CiliumNetworkPolicy default/allow spec.ingress[0] log \"shop\"";
        assert!(said.starts_with("Policy verdict log: ") && said.ends_with(end), "{said}");

        // What a change would cut, of what passed; policies are not changed by asking.
        let same = json!([{"kind": "CiliumNetworkPolicy", "apiVersion": "cilium.io/v2",
            "metadata": {"name": "allow", "namespace": "default"}, "spec": spec}]);
        assert_eq!(agent.would_cut(&same).await, json!({"flows": 1, "cut": []}));
        let mut other = same.clone();
        other[0]["spec"]["ingress"][0]["toPorts"][0]["ports"][0]["port"] = json!("8080");
        let cut = agent.would_cut(&other).await;
        assert_eq!(cut["cut"][0]["flow"]["peer"]["identity"], 5000, "{cut}");
        assert!(agent.map().contains_key(&allowed));

        // The node is an endpoint where it has policy; prefixes have labels.
        let endpoints = agent.shows("/v1/endpoint").await;
        let host = endpoints.as_array().unwrap().iter().find(|one| one["id"] == 65535).unwrap();
        assert_eq!(host["status"]["identity"]["id"], 1, "{host}");
        assert_eq!(agent.shows("/v1/endpoint/65535").await["status"]["state"], "ready");
        let prefix = agent.shows(&format!("/v1/identity/{}", cilia_policy::CIDR_SCOPE + 1)).await;
        let labels = prefix["labels"].as_array().unwrap();
        assert!(labels.contains(&json!("cidr:198.51.100.0/24")), "{prefix}");
        agent.token.cancel();
    });
}
