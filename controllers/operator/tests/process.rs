//! The operator as a process against a real API server.

use std::path::Path;
use std::time::Duration;

use cilia_runtime::testing::proxy::{Mode, Proxy};
use cilia_runtime::testing::{ApiServer, Process, Signal, eventually, free_ports};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What takes a moment; more than any machine needs, as what it takes is for benchmarks to say.
const AT_ONCE: Duration = Duration::from_secs(30);
const LOCK: &str = "cilium-operator-resource-lock";

struct Operator {
    process: Process,
    api_port: u16,
    metrics_port: u16,
    _folder: tempfile::TempDir,
}

fn start(kubeconfig: Option<&Path>, arguments: &[&str]) -> Operator {
    let [api_port, metrics_port] = free_ports();
    let folder = tempfile::tempdir().unwrap();
    let mut all = vec![
        "--ipam=kubernetes".into(),
        format!("--operator-api-serve-addr=127.0.0.1:{api_port}"),
        "--enable-metrics".into(),
        format!("--operator-prometheus-serve-addr=127.0.0.1:{metrics_port}"),
    ];
    all.extend(kubeconfig.map(|path| format!("--k8s-kubeconfig-path={}", path.display())));
    all.extend(arguments.iter().map(ToString::to_string));
    let program = Path::new(env!("CARGO_BIN_EXE_cilia-operator"));
    let process = Process::start(program, &all, &folder.path().join("log"));
    Operator { process, api_port, metrics_port, _folder: folder }
}

async fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn holder(server: &ApiServer) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(server.client(), "default");
    leases.get_opt(LOCK).await.unwrap()?.spec?.holder_identity
}

async fn until_leading(operator: &mut Operator) {
    eventually(async || {
        if operator.process.output().contains("all CRDs are there") {
            Ok(())
        } else {
            Err(operator.process.output())
        }
    })
    .await;
}

#[tokio::test]
async fn from_start_to_clean_stop_and_back() {
    let server = ApiServer::start().await;
    let crds: Api<CustomResourceDefinition> = Api::all(server.client());
    let arguments = ["--enable-cilium-endpoint-slice"];
    let mut first = start(Some(&server.kubeconfig()), &arguments);
    until_leading(&mut first).await;

    let list = crds.list(&ListParams::default()).await.unwrap();
    let established = |crd: &&CustomResourceDefinition| {
        let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .is_some_and(|all| all.iter().any(|c| c.type_ == "Established" && c.status == "True"))
    };
    assert_eq!(list.items.iter().filter(established).count(), cilia_crds::all().len());
    assert!(get(first.api_port, "/healthz").await.unwrap().ends_with("ok"));
    let metrics = get(first.metrics_port, "/metrics").await.unwrap();
    assert!(
        metrics.contains("cilium_operator_version{")
            && metrics.contains("cilium_operator_process_"),
        "{metrics}"
    );
    assert!(
        get(first.api_port, "/v1/metrics/")
            .await
            .unwrap()
            .contains("\"name\":\"cilium_operator_version\"")
    );

    // An old definition of a former release is brought up to date, a newer one is left alone.
    let label = |version: &str| {
        Patch::Merge(
            serde_json::json!({"metadata": {"labels": {"io.cilium.k8s.crd.schema.version": version}}}),
        )
    };
    crds.patch("ciliumnodes.cilium.io", &PatchParams::default(), &label("1.0.0")).await.unwrap();
    crds.patch("ciliumidentities.cilium.io", &PatchParams::default(), &label("99.0.0"))
        .await
        .unwrap();

    // Clean stop: released, and the standby takes over.
    let mut second = start(Some(&server.kubeconfig()), &arguments);
    eventually(async || get(second.api_port, "/healthz").await).await;
    first.process.signal(Signal::SIGTERM);
    let status = first.process.end_within(AT_ONCE).await;
    assert!(status.success(), "{status}: {}", first.process.output());
    until_leading(&mut second).await;
    let version = async |name: &str| {
        let labels = crds.get(name).await.unwrap().metadata.labels.unwrap();
        labels["io.cilium.k8s.crd.schema.version"].clone()
    };
    assert_eq!(version("ciliumnodes.cilium.io").await, "1.32.3");
    assert_eq!(version("ciliumidentities.cilium.io").await, "99.0.0");
    second.process.signal(Signal::SIGTERM);
    assert!(second.process.end_within(AT_ONCE).await.success());
    assert_eq!(holder(&server).await.as_deref(), Some(""));

    // At rest, a restart writes nothing but its lease.
    let before = server.writes().await.len();
    let mut third = start(Some(&server.kubeconfig()), &arguments);
    until_leading(&mut third).await;
    third.process.signal(Signal::SIGTERM);
    assert!(third.process.end_within(AT_ONCE).await.success());
    let writes = server.writes().await.split_off(before);
    let others: Vec<_> = writes.iter().filter(|write| write.resource != "leases").collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(writes.iter().all(|write| write.agent.starts_with("cilium-operator")), "{writes:?}");
}

#[tokio::test]
async fn a_leader_cut_off_from_the_api_server_ends() {
    let server = ApiServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let kubeconfig = server.kubeconfig_via(proxy.address());
    let short = [
        "--leader-election-lease-duration=5s",
        "--leader-election-renew-deadline=4s",
        "--leader-election-retry-period=500ms",
    ];
    let mut operator = start(Some(&kubeconfig), &short);
    until_leading(&mut operator).await;
    proxy.set(Mode::Stall);
    let status = operator.process.end_within(AT_ONCE).await;
    assert!(!status.success());
    let output = operator.process.output();
    assert!(
        output.contains("Leader election lost: lease default/cilium-operator-resource-lock"),
        "{output}"
    );
}

#[tokio::test]
async fn a_frozen_leader_ends_when_it_thaws_and_writes_nothing_more() {
    let server = ApiServer::start().await;
    let short = [
        "--leader-election-lease-duration=5s",
        "--leader-election-renew-deadline=4s",
        "--leader-election-retry-period=500ms",
    ];
    let mut frozen = start(Some(&server.kubeconfig()), &short);
    until_leading(&mut frozen).await;
    let first = holder(&server).await;
    frozen.process.signal(Signal::SIGSTOP);
    let mut next = start(Some(&server.kubeconfig()), &short);
    until_leading(&mut next).await;
    assert_ne!(holder(&server).await, first);
    let taken = server.writes().await.len();
    frozen.process.signal(Signal::SIGCONT);
    let status = frozen.process.end_within(AT_ONCE).await;
    assert!(!status.success());
    assert!(
        frozen.process.output().contains("Leader election lost"),
        "{}",
        frozen.process.output()
    );
    let writes = server.writes().await.split_off(taken);
    // The other one's renewals go on; of the thawed one there is at most a renewal that came too late.
    let effective: Vec<_> = writes.iter().filter(|write| write.code < 300).collect();
    assert!(effective.iter().all(|write| write.resource == "leases"), "{effective:?}");
    assert_ne!(holder(&server).await, first);
}

#[tokio::test]
async fn waits_for_an_api_server_that_comes_late() {
    let [port] = free_ports();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
         users: [{{name: a, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let mut operator = start(Some(&kubeconfig), &[]);
    eventually(async || {
        get(operator.api_port, "/healthz").await.map(|a| assert!(a.starts_with("HTTP/1.1 500")))
    })
    .await;
    eventually(async || {
        operator.process.output().contains("does not answer").then_some(()).ok_or("no warning")
    })
    .await;
    operator.process.signal(Signal::SIGTERM);
    assert!(operator.process.end_within(AT_ONCE).await.success());
}

#[tokio::test]
async fn settings_are_refused_before_anything_else() {
    let cases: &[(&[&str], &str)] = &[
        (&["--enabel-ipv4"], "unknown flag --enabel-ipv4: did you mean --enable-ipv4?"),
        (
            &["--cluster-id=x"],
            "cluster-id: \"x\", set by the command line, is not allowed: an integer",
        ),
        (&["--ipam=eni"], "for this mode use cilium-operator-aws"),
        (&[], "nor is k8s-kubeconfig-path set"),
        (&["--k8s-kubeconfig-path=/no/such/file"], "k8s-kubeconfig-path /no/such/file: "),
    ];
    for (arguments, want) in cases {
        let mut operator = start(None, arguments);
        let status = operator.process.end_within(AT_ONCE).await;
        let output = operator.process.output();
        assert!(!status.success() && output.contains(want), "{arguments:?}: {output}");
    }
}

#[tokio::test]
async fn without_kubernetes_there_is_only_the_api() {
    let mut operator = start(None, &["--enable-k8s=false", "--log-opt=format=json"]);
    let health = eventually(async || get(operator.api_port, "/healthz").await).await;
    assert!(health.starts_with("HTTP/1.1 501"), "{health}");
    operator.process.signal(Signal::SIGTERM);
    assert!(operator.process.end_within(AT_ONCE).await.success());
    for line in operator.process.output().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
