use regex::Regex;
use serde_json::json;

use super::{hive, is_asked_for, mesh, metrics, tree, write_reference};

fn program() -> clap::Command {
    tree(&crate::config::program())
}

#[test]
fn commands_are_told_from_flags() {
    let asked =
        |args: &[&str]| is_asked_for(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
    for command in ["completion", "hive", "metrics", "status", "troubleshoot", "shell", "help"] {
        assert!(asked(&[command]), "{command}");
    }
    for args in [&[][..], &["--debug"], &["run"], &["--config-dir", "metrics"]] {
        assert!(!asked(args), "{args:?}");
    }
    program().debug_assert();
}

#[test]
fn every_command_of_cilium_is_there() {
    let cases: &[&[&str]] = &[
        &["completion", "zsh"],
        &["hive"],
        &["hive", "dot-graph"],
        &["metrics", "list", "-p", "ces_.*", "-s", "localhost:1", "-o", "json"],
        &[
            "metrics",
            "list",
            "--match-pattern=x",
            "--server-address=x:1",
            "-o=jsonpath={.[0].name}",
        ],
        &["status", "clustermesh", "-s", "localhost:1", "--verbose", "-o", "yaml"],
        &["troubleshoot", "kvstore", "--etcd-config=/x", "--timeout=1s"],
        &["troubleshoot", "clustermesh", "west", "east"],
        &["shell", "kvstore/list", "cilium/", "-o", "json", "--keys-only"],
    ];
    for args in cases {
        let all = std::iter::once(&"cilia-operator").chain(*args);
        program().try_get_matches_from(all).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    }
    for args in [&["metrics", "list", "-p", "["][..], &["completion", "tcsh"], &["status"]] {
        let all = std::iter::once(&"cilia-operator").chain(args);
        assert!(program().try_get_matches_from(all).is_err(), "{args:?}");
    }
}

#[test]
fn metrics_are_a_table() {
    let all = json!([
        {"name": "cilium_operator_ces_sync_total", "labels": {"outcome": "success", "failure_type": ""}, "value": 3.0},
        {"name": "cilium_operator_unmanaged_pods", "labels": {}, "value": 0.5},
    ]);
    let pattern = Regex::new("ces_.*_total$").unwrap();
    assert_eq!(
        metrics::table(&metrics::select(&all, Some(&pattern))),
        "Metric                           Labels                              Value\n\
         cilium_operator_ces_sync_total   outcome=\"success\" failure_type=\"\"   3.000000\n"
    );
    assert_eq!(metrics::select(&all, None).len(), 2);
}

#[test]
fn remote_clusters_are_shown_like_the_agent_does() {
    let ready = json!({
        "name": "east", "ready": true, "status": "etcd: 1/1 connected", "num-nodes": 2,
        "num-failures": 1, "last-failure": "2026-01-02T03:04:05.000Z",
        "config": {"required": true, "retrieved": true, "cluster-id": 2, "kvstoremesh": false,
                   "sync-canaries": true, "service-exports-enabled": true},
        "synced": {"nodes": true, "endpoints": true, "identities": true, "services": false},
    });
    let lost = json!({"name": "west", "ready": false, "status": "Waiting for initial connection to be established",
        "config": {"required": true, "retrieved": false}, "synced": {"nodes": false}});
    let shown = mesh::show(&[ready, lost.clone()], true);
    assert_eq!(
        shown,
        "1/2 remote clusters ready\n   \
           east: ready, 2 nodes, 0 endpoints, 0 identities, 0 services, 0 MCS-API service exports, \
           1 reconnections (last: 2026-01-02T03:04:05.000Z)\n   \
           └  etcd: 1/1 connected\n   \
           └  remote configuration: expected=true, retrieved=true, cluster-id=2, kvstoremesh=false, \
           sync-canaries=true, service-exports=enabled\n   \
           └  synchronization status: nodes=true, endpoints=true, identities=true, services=false\n   \
           west: not-ready, 0 nodes, 0 endpoints, 0 identities, 0 services, 0 MCS-API service exports, \
           0 reconnections (last: never)\n   \
           └  Waiting for initial connection to be established\n   \
           └  remote configuration: expected=true, retrieved=false\n   \
           └  synchronization status: nodes=false\n"
    );
    assert_eq!(mesh::show(&[], false), "0/0 remote clusters ready\n");
    assert!(!mesh::show(&[json!({"name": "east", "ready": true}), lost], false).contains("east"));
}

#[test]
fn the_parts_are_a_list_and_a_graph() {
    let list = hive::show(None);
    assert!(list.find("crd_registration") < list.find("endpoint_gc"), "{list}");
    let graph = hive::show(Some(&hive::Command::DotGraph));
    assert!(graph.starts_with("digraph G {\n") && graph.ends_with("}\n"), "{graph}");
    assert!(graph.contains("\"crd_registration\" -> \"endpoint_gc\";"), "{graph}");
}

#[test]
fn the_reference_has_a_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    write_reference(folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    assert!(read("cilia-operator.md").contains("--ces-max-ciliumendpoints-per-ces"));
    assert!(!read("cilia-operator.md").contains("--cmdref"));
    assert!(read("cilia-operator_metrics.md").contains("(cilia-operator_metrics_list.md)"));
    assert!(read("cilia-operator_metrics_list.md").contains("--match-pattern"));
}
