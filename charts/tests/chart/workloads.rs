//! The pods of agents and operators: volumes, probes, surroundings, and when they are replaced.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{containers, find, pods, render};

#[test]
fn every_mount_has_its_volume_and_every_volume_a_mount() {
    for set in [
        "debug.enabled=true",
        "cni.install=false",
        "sysctlfix.enabled=false,bpf.autoMount.enabled=false",
    ] {
        let documents = render(&["--set", set]);
        for (workload, pod) in pods(&documents) {
            let volumes: BTreeSet<&str> = pod["volumes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|volume| volume["name"].as_str())
                .collect();
            let mounts: BTreeSet<&str> = containers(pod)
                .filter_map(|container| container["volumeMounts"].as_array())
                .flatten()
                .filter_map(|mount| mount["name"].as_str())
                .collect();
            assert_eq!(volumes, mounts, "{workload} with {set}");
        }
    }
}

#[test]
fn probes_ask_on_loopback_of_the_family_there_is() {
    for (set, host) in
        [("ipv4.enabled=true", "127.0.0.1"), ("ipv4.enabled=false,ipv6.enabled=true", "::1")]
    {
        let documents = render(&["--set", set]);
        for (workload, pod) in pods(&documents) {
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                let probe = &pod["containers"][0][probe];
                assert!(
                    probe.is_null() || probe["httpGet"]["host"] == host,
                    "{workload} with {set}: {probe}"
                );
            }
        }
    }
}

#[test]
fn pods_are_told_where_the_api_server_is() {
    let documents = render(&["--set", "k8sServiceHost=10.0.0.1,k8sServicePort=6443"]);
    for (workload, pod) in pods(&documents) {
        let env = pod["containers"][0]["env"].as_array().expect("env");
        let value = |name: &str| env.iter().find(|variable| variable["name"] == name);
        let host = value("KUBERNETES_SERVICE_HOST").map(|variable| &variable["value"]);
        let port = value("KUBERNETES_SERVICE_PORT").map(|variable| &variable["value"]);
        assert_eq!(host, Some(&Value::from("10.0.0.1")), "{workload}");
        assert_eq!(port, Some(&Value::from("6443")), "{workload}");
    }
}

#[test]
fn a_changed_config_restarts_pods_if_asked_to() {
    let checksum = |set: &str| {
        let documents = render(&["--set", set]);
        let agent = find(&documents, "DaemonSet", "cilium").expect("agent");
        agent.value["spec"]["template"]["metadata"]["annotations"]["cilium.io/cilium-configmap-checksum"].clone()
    };
    assert!(checksum("debug.enabled=true").is_null());
    let (quiet, debug) =
        (checksum("rollOutCiliumPods=true"), checksum("rollOutCiliumPods=true,debug.enabled=true"));
    assert!(quiet.is_string());
    assert_ne!(quiet, debug);
}
