//! What the programs may do: privileges of containers, rights at the API server.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{containers, find, pods, render};

#[test]
fn nothing_is_privileged() {
    let allowed: BTreeSet<&str> = ["NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"].into();
    let documents = render(&[]);
    for (workload, pod) in pods(&documents) {
        for container in containers(pod) {
            let name = format!("{workload}/{}", container["name"]);
            let context = &container["securityContext"];
            assert_ne!(context["privileged"], true, "{name}");
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]), "{name}");
            for added in context["capabilities"]["add"].as_array().into_iter().flatten() {
                let added = added.as_str().expect("a capability is a string");
                assert!(allowed.contains(added), "{name} adds {added}");
            }
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                assert_ne!(mount["mountPropagation"], "Bidirectional", "{name} {}", mount["name"]);
            }
        }
    }
}

#[test]
fn operator_has_no_capability_and_no_host_path() {
    let documents = render(&[]);
    let operator = find(&documents, "Deployment", "cilium-operator").expect("operator");
    let pod = &operator.value["spec"]["template"]["spec"];
    assert!(
        containers(pod)
            .all(|container| container["securityContext"]["capabilities"]["add"].is_null())
    );
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        assert!(volume["hostPath"].is_null(), "{volume}");
    }
}

#[test]
fn rights_name_what_they_are_for() {
    let documents = render(&["--set=ciliumEndpointSlice.enabled=true,prometheus.enabled=true"]);
    for role in
        documents.iter().filter(|document| ["Role", "ClusterRole"].contains(&document.kind()))
    {
        for rule in role.value["rules"].as_array().into_iter().flatten() {
            let text = rule.to_string();
            assert!(!text.contains('*'), "{}: wildcard in {text}", role.name());
            assert!(!text.contains("secrets"), "{}: secrets in {text}", role.name());
            let verbs: BTreeSet<&str> =
                rule["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let known =
                ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
            assert!(verbs.iter().all(|verb| known.contains(verb)), "{}: {verbs:?}", role.name());
        }
    }
    let operator = find(&documents, "ClusterRole", "cilium-operator").expect("role").text.clone();
    assert!(!operator.contains("leases"), "leases belong to the namespace's Role");
}

#[test]
fn the_operator_may_do_what_it_does() {
    let may = |set: &str, verb: &str, resource: &str| {
        let documents = render(&["--set", set]);
        let role = find(&documents, "ClusterRole", "cilium-operator").expect("role");
        let has = |rule: &Value, list: &str, word: &str| {
            rule[list].as_array().into_iter().flatten().any(|entry| entry == word)
        };
        let rules = role.value["rules"].as_array().expect("rules");
        rules.iter().any(|rule| has(rule, "resources", resource) && has(rule, "verbs", verb))
    };
    let set = "operator.unmanagedPodWatcher.restart=true";
    // Slices are removed at once when they are switched off.
    assert!(may(set, "deletecollection", "ciliumendpointslices"));
    assert!(
        may(set, "delete", "pods")
            && may(set, "get", "ciliumendpoints")
            && may(set, "list", "events")
    );
    assert!(!may(set, "create", "ciliumidentities"));
    for mode in ["operator", "both"] {
        let set = format!("identityManagementMode={mode}");
        assert!(may(&set, "create", "ciliumidentities") && may(&set, "get", "ciliumidentities"));
    }
    for off in ["restart=false", "intervalSeconds=0"] {
        let set = format!("operator.unmanagedPodWatcher.{off}");
        assert!(!may(&set, "delete", "pods"), "{off}");
    }
}
