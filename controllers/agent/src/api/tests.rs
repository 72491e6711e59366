//! The API as its clients meet it: over its socket, with the kernel's maps behind it.

mod bodies;
mod shapes;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cilia_identity::Space;
use cilia_loader::event::{DropEvent, Packet};
use cilia_loader::testing::{BpfFs, small_maps};
use cilia_loader::{Event, MapSizes, RemoteEndpoint};
use cilia_runtime::config::{Config, Flags};
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{client_of, eventually};
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Counters, Loans, Parts, router, serve, shaped};
use crate::endpoint::testing::{endpoint, registry};
use crate::endpoint::{EndpointState, LocalEndpoint};
use crate::events::Bus;
use crate::identity::{Identities, Management};
use crate::ipam::Ipam;
use crate::ipcache::Cache;
use crate::node::Nodes;
use crate::policy::{Enforcer, Settings};
use crate::readiness::Readiness;
use crate::service::Services;

/// An agent's parts without anybody behind them: the API server is away.
fn parts(bpf: &BpfFs, flags: &[&str], endpoints: Vec<LocalEndpoint>) -> Parts {
    let client = client_of(([127, 0, 0, 1], 1).into(), "test");
    let space = Space::new(0, 255).unwrap();
    let (metrics, ipam) = (Metrics::new("cilium"), Ipam::default());
    let ranges = ["10.0.1.0/24", "fd01::/120"].map(|range| range.parse().unwrap());
    ipam.set_ranges(&ranges, &["10.0.1.1".parse().unwrap()]).unwrap();
    Parts {
        config: Arc::new(
            Config::load(Flags::agent(), flags.iter().map(ToString::to_string), []).unwrap(),
        ),
        readiness: Readiness::new(&["ipcache"]),
        client: client.clone(),
        endpoints: registry(endpoints),
        identities: Identities::new(client, space, Management::Agent),
        nodes: Nodes::default(),
        ipcache: Cache::default(),
        enforcer: Enforcer::new(cilia_policy::Config::default(), Settings::default()),
        services: Services::default(),
        bus: Bus::default(),
        datapath: Arc::new(bpf.load_sized(MapSizes { ipcache: 64, ..small_maps() })),
        loans: Loans::new(ipam, &Workqueues::register(&metrics)),
        counters: Counters::register(&metrics),
        plugin: crate::cni::Server::new(Readiness::new(&["endpoints"])),
        metrics,
        kvstore: None,
        clusters: None,
    }
}

async fn ask(router: &Router, method: Method, path: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 24).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn answers_have_cilium_s_codes_and_shapes() {
    let bpf = BpfFs::mount();
    let web = endpoint(7, "c1", "web");
    let parts = parts(
        &bpf,
        &[],
        vec![LocalEndpoint { state: EndpointState::Regenerating, ..web.clone() }, web],
    );
    let remote = RemoteEndpoint { identity: 9, ..RemoteEndpoint::default() };
    parts.datapath.ipcache().upsert(&("10.0.0.9".parse().unwrap(), 32), &remote).unwrap();
    let router = shaped(router(parts.clone()));
    let cases = [
        (Method::GET, "/v1/healthz?brief=maybe", 200, r#""kubernetes":"#),
        (Method::HEAD, "/v1/healthz", 405, ""),
        (Method::GET, "/v1/healthz?require-k8s-connectivity=false", 200, r#""state":"Ok""#),
        (Method::GET, "/v1/healthz?brief=true", 200, r#""msg":"ipcache: starting""#),
        (Method::GET, "/v1/config", 200, "daemonConfigurationMap"),
        (Method::GET, "/v1/config", 200, r#""policy-enforcement":"default""#),
        (Method::GET, "/v1/config", 200, r#""addressing":{"ipv4":{"#),
        (Method::PATCH, "/v1/config", 422, "configuration in body is required"),
        (Method::GET, "/v1/endpoint?labels=app=web", 200, r#""id":7"#),
        (Method::GET, "/v1/endpoint?labels=k8s:app=db", 404, ""),
        (Method::GET, "/v1/endpoint?colour=red", 200, r#""id":7"#),
        (Method::GET, "/v1/endpoint/7", 200, r#""state":"ready""#),
        (Method::GET, "/v1/endpoint/pod-name:default%2Fweb", 200, r#""id":7"#),
        (Method::GET, "/v1/endpoint/8", 404, ""),
        (Method::GET, "/v1/endpoint/70000", 400, "endpoint id too large: 70000"),
        (Method::GET, "/v1/endpoint/moon:7", 400, r#"unknown endpoint ID prefix \"moon\""#),
        (Method::GET, "/v1/endpoint/pod-name:web", 404, ""),
        (Method::GET, "//v1/endpoint/0x7/", 200, r#""id":7"#),
        (
            Method::PATCH,
            "/v1/endpoint/7/labels",
            422,
            r#"{"code":602,"message":"configuration in body is required"}"#,
        ),
        (Method::GET, "/v1/endpoint/7/log", 200, r#""state":"regenerating""#),
        (Method::GET, "/v1/endpoint/8/log", 404, ""),
        (Method::GET, "/v1/endpoint/7/healthz", 200, r#""connected":true"#),
        (Method::POST, "/v1/ipam?family=ipv4&owner=me", 201, r#""host-addressing":{"#),
        (Method::POST, "/v1/ipam?family=ipx", 422, "family in query should be one of [ipv4 ipv6]"),
        (Method::POST, "/v1/ipam?pool=red", 502, "no pools"),
        (Method::POST, "/v1/ipam/10.0.1.77", 200, ""),
        (Method::POST, "/v1/ipam/10.0.1.77", 409, "not-specified"),
        (Method::POST, "/v1/ipam/10.9.0.1", 500, "10.9.0.1"),
        (Method::POST, "/v1/ipam/ten", 400, "Invalid IP address: ten"),
        (Method::DELETE, "/v1/ipam/10.0.1.77", 200, ""),
        (Method::DELETE, "/v1/ipam/10.0.1.77", 404, ""),
        (Method::DELETE, "/v1/ipam/10.0.1.1", 500, "in use by router"),
        (Method::PUT, "/v1/policy", 405, "PUT is not allowed, but [GET] are"),
        (Method::GET, "/v1/prefilter", 500, r#""prefilter is not enabled in daemon""#),
        (Method::PATCH, "/v1/prefilter", 422, "prefilter-spec in body is required"),
        (Method::GET, "/v1/debuginfo", 200, r#""kernel-version":""#),
        (Method::DELETE, "/v1/map/cilium_ct4_global", 200, r#"{"removed":0}"#),
        (Method::DELETE, "/v1/map/cilium_ct4_global?address=ten", 400, "address=ADDRESS"),
        (Method::DELETE, "/v1/map/cilium_ipcache_v2", 403, "no map of connections"),
        (
            Method::GET,
            "/v1/map/cilium_node_config",
            200,
            r#""setting":"TunnelPort","value":"8472""#,
        ),
        (Method::GET, "/v1/map/cilium_ipv4_frag_datagrams", 200, r#""entries":[]"#),
        (Method::DELETE, "/v1/fqdn/cache", 200, ""),
        (Method::GET, "/v1/endpoint/7", 200, r#""health":{"#),
        (Method::GET, "/v1/endpoint/7/labels", 200, r#""security-relevant":["k8s:app=web"]"#),
        (Method::GET, "/v1/endpoint/x/labels", 400, "invalid numeric cilium id"),
        (Method::GET, "/v1/identity", 200, "reserved:host"),
        (Method::GET, "/v1/identity?labels=reserved:world", 200, r#""id":2,"#),
        (Method::GET, "/v1/identity?labels=k8s:none", 404, ""),
        (Method::GET, "/v1/identity/1", 200, r#""labelsSHA256":""#),
        (Method::GET, "/v1/identity/4711", 404, ""),
        (Method::GET, "/v1/identity/web", 400, ""),
        (Method::GET, "/v1/identity/0x1", 200, "reserved:host"),
        (Method::GET, "/v1/identity/endpoints", 200, r#""refCount":1"#),
        (Method::GET, "/v1/ip", 404, ""),
        (Method::GET, "/v1/ip?cidr=10.0.0.0/8", 404, ""),
        (Method::GET, "/v1/ip?cidr=ten", 400, "invalid CIDR address: ten"),
        (Method::GET, "/v1/ip?labels=app=none", 404, ""),
        (Method::GET, "/v1/cluster/nodes", 200, r#""client-id":0"#),
        (Method::GET, "/v1/cluster/nodes?client-id=x", 422, r#"must be of type int64: \"x\""#),
        (Method::GET, "/v1/node/ids", 200, "[]"),
        (Method::GET, "/v1/policy", 200, r#""revision":0"#),
        (Method::GET, "/v1/service", 200, "[]"),
        (Method::GET, "/v1/map", 200, r#""name":"cilium_ipcache_v2""#),
        (Method::GET, "/v1/map/cilium_ipcache_v2", 200, r#""key":"10.0.0.9/32""#),
        (Method::GET, "/v1/map/cilium_none", 404, ""),
        (Method::GET, "/v1/map/cilium_none/events", 404, ""),
        (Method::GET, "/v1/map/cilium_lxc/events?follow=false", 200, ""),
        (Method::GET, "/v1/map/..%2F..%2Fetc", 404, ""),
        (Method::GET, "/v1/monitor?type=moon", 400, "moon"),
        (Method::GET, "/v1/monitor?port=99999", 400, "99999"),
        (Method::GET, "/v1/fqdn/cache", 404, ""),
        (Method::GET, "/v1/fqdn/cache?cidr=ten", 400, "ten"),
        (Method::GET, "/v1/fqdn/cache/7", 404, ""),
        (Method::GET, "/v1/fqdn/cache/8", 404, "unable to find target endpoint ID: 8"),
        (Method::GET, "/v1/fqdn/cache/x", 400, "invalid numeric cilium id"),
        (Method::GET, "/v1/bgp/peers", 501, "BGP control plane is disabled"),
        (Method::GET, "/v1/bgp/routes", 422, "afi in query is required"),
        (
            Method::GET,
            "/v1/bgp/routes?afi=ipv4&safi=unicast&table_type=x",
            422,
            "[loc-rib adj-rib-in adj-rib-out]",
        ),
        (Method::GET, "/v1/bgp/routes?afi=ipv4&safi=unicast&table_type=loc-rib", 501, "disabled"),
        (
            Method::GET,
            "/v1/bgp/route-policies?router_asn=x",
            422,
            "router_asn in query must be of type int64",
        ),
        (Method::GET, "/v1/nothing", 404, "path /v1/nothing was not found"),
        (Method::GET, "/v2/healthz", 404, "was not found"),
        (Method::DELETE, "/v1/healthz", 405, "DELETE is not allowed, but [GET] are"),
    ];
    for (method, path, status, text) in cases {
        let got = ask(&router, method.clone(), path).await;
        assert_eq!(got.0, status, "{method} {path}: {}", got.1);
        assert!(got.1.contains(text), "{method} {path} lacks {text}: {}", got.1);
        let silent = method != Method::HEAD && status >= 400 && text.is_empty();
        assert_eq!(silent, status >= 400 && got.1.is_empty(), "{method} {path}: {}", got.1);
    }
    let log = json_of(&ask(&router, Method::GET, "/v1/endpoint/7/log").await.1);
    assert_eq!((&log[0]["state"], &log[1]["state"]), (&json!("ready"), &json!("regenerating")));
    let status = json_of(&ask(&router, Method::GET, "/v1/healthz").await.1);
    assert_eq!(status["kubernetes"]["state"], "Failure", "{status}");
    assert_eq!(status["ipam"]["allocations"]["10.0.0.2"], "default/web");
    let lent = status["ipam"]["allocations"].as_object().unwrap().values();
    assert_eq!(lent.filter(|owner| *owner == "me").count(), 1, "{}", status["ipam"]);
    assert_eq!(status["bpf-maps"]["maps"][0]["name"], "cilium_lxc", "{}", status["bpf-maps"]);
    let endless = format!("/v1/endpoint/{}", "1".repeat(8000));
    assert_eq!(ask(&router, Method::GET, &endless).await.0, 400);
}

#[tokio::test]
async fn only_what_is_named_is_allowed() {
    let bpf = BpfFs::mount();
    let flags = ["--enable-cilium-api-server-access=GetHealthz,GetEndpointID*"];
    let router = router(parts(&bpf, &flags, Vec::new()));
    let cases = [
        ("/v1/healthz?brief=true", 200),
        ("/v1/endpoint/7", 404),
        ("/v1/endpoint/7/log", 404),
        ("/v1/endpoint", 403),
        ("/v1/identity", 403),
        ("/v1/monitor", 403),
    ];
    for (path, status) in cases {
        let got = ask(&router, Method::GET, path).await;
        assert_eq!(got.0, status, "{path}: {}", got.1);
        assert_eq!(status == 403, got.1.contains("administratively disabled"), "{path}: {}", got.1);
    }
}

#[tokio::test]
async fn who_asks_too_often_is_refused() {
    let bpf = BpfFs::mount();
    let limit = "endpoint-get=rate-limit:1/h,rate-burst:2,skip-initial:0,auto-adjust:false,max-wait-duration:10ms";
    let parts = parts(&bpf, &["--api-rate-limit", limit], vec![endpoint(7, "c1", "web")]);
    let router = router(parts.clone());
    // The gate is one for everything below an endpoint.
    let cases = [
        ("/v1/endpoint/7", 200),
        ("/v1/endpoint/7/log", 200),
        ("/v1/endpoint/7", 429),
        ("/v1/endpoint/7/healthz", 429),
        ("/v1/endpoint", 200),
        ("/v1/identity", 200),
    ];
    for (path, status) in cases {
        let got = ask(&router, Method::GET, path).await;
        assert_eq!(got.0, status, "{path}: {}", got.1);
        assert_eq!(status == 429, got.1.contains("would have to wait"), "{path}: {}", got.1);
    }
    let told = parts.metrics.render();
    for line in [
        r#"cilium_api_limiter_processed_requests_total{api_call="endpoint-get",outcome="success",return_code="200"} 2"#,
        r#"cilium_api_limiter_processed_requests_total{api_call="endpoint-get",outcome="fail-limit-wait",return_code="429"} 2"#,
        r#"cilium_api_limiter_processed_requests_total{api_call="endpoint-list",outcome="success",return_code="200"} 1"#,
        r#"cilium_api_limiter_rate_limit{api_call="endpoint-get",value="burst"} 2.0"#,
        r#"cilium_api_limiter_requests_in_flight{api_call="endpoint-get",value="in-flight"} 0.0"#,
        r#"cilium_api_limiter_adjustment_factor{api_call="endpoint-get"} 1.0"#,
        r#"cilium_api_limiter_wait_duration_seconds{api_call="endpoint-get",value="max"} 0.01"#,
        r#"cilium_api_limiter_processing_duration_seconds{api_call="endpoint-get",value="estimated"} 0.2"#,
    ] {
        assert!(told.lines().any(|told| told == line), "{line}\n--\n{told}");
    }
    assert!(!told.contains("wait_history"), "it is off by default");
}

fn dropped(endpoint: u16) -> Event {
    Event::Drop(DropEvent {
        packet: Packet { endpoint, hash: 1, length: 60, ipv6: false, bytes: vec![0; 64] },
        reason: 133,
        ext_error: 0,
        source_identity: 2,
        destination_identity: 4711,
        destination_endpoint: 0,
        ifindex: 3,
    })
}

async fn connect(path: &std::path::Path, query: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let request = format!("GET /v1/monitor{query} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until the text is there.
async fn read_until(stream: &mut UnixStream, text: &str) -> String {
    let mut heard = Vec::new();
    let read = async {
        let mut buffer = vec![0; 1 << 16];
        while !String::from_utf8_lossy(&heard).contains(text) {
            let read = stream.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "the agent ended: {}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&buffer[..read]);
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), read).await;
    let heard = String::from_utf8_lossy(&heard).into_owned();
    assert!(done.is_ok(), "{text} did not come: {}", &heard[..heard.len().min(2000)]);
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_listener_holds_up_nobody() {
    let bpf = BpfFs::mount();
    let parts = parts(&bpf, &[], Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let (path, stop) = (folder.path().join("cilium.sock"), CancellationToken::new());
    let serving = tokio::spawn({
        let (path, router, stop) = (path.clone(), router(parts.clone()), stop.clone());
        async move { serve(&path, router, stop).await }
    });
    eventually(|| std::future::ready(if path.exists() { Ok(()) } else { Err("no socket yet") }))
        .await;
    eventually(|| {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        std::future::ready(if mode == 0o660 { Ok(()) } else { Err(mode) })
    })
    .await;

    let mut slow = connect(&path, "").await;
    let mut quick = connect(&path, "?from=7").await;
    let start = read_until(&mut slow, "\"start\"").await;
    assert!(start.contains("Listening for events on"), "{start}");
    read_until(&mut quick, "\"start\"").await;
    // Nobody reads `slow`: the events go on all the same.
    for _ in 0..30_000 {
        parts.bus.take(dropped(1));
    }
    parts.bus.take(dropped(7));
    let heard = read_until(&mut quick, "Policy denied").await;
    assert!(heard.contains("identity world->4711"), "{heard}");
    // When it reads again, it is told what it missed.
    read_until(&mut slow, "\"lost\"").await;

    let mut more = Vec::new();
    for _ in 0..14 {
        let mut stream = connect(&path, "?type=trace").await;
        read_until(&mut stream, "\"start\"").await;
        more.push(stream);
    }
    let mut last = connect(&path, "").await;
    read_until(&mut last, "429").await;
    // Who goes makes room.
    drop((more, slow));
    for _ in 0..2 {
        parts.bus.take(dropped(1));
    }
    let answer = async || {
        let mut stream = connect(&path, "").await;
        let heard = read_until(&mut stream, "\r\n\r\n").await;
        if heard.contains(" 200 ") { Ok(()) } else { Err(heard) }
    };
    eventually(answer).await;
    stop.cancel();
    drop((quick, last));
    parts.bus.take(dropped(1));
    let ended = tokio::time::timeout(Duration::from_secs(5), serving).await;
    assert!(ended.is_ok(), "listeners keep the agent from ending");
}
