//! What the chart renders: keys, rights, privileges, switches.

use std::collections::{BTreeMap, BTreeSet};

use cilia_chart::helm::{self, Document};
use cilia_chart::values;
use serde_json::Value;

/// Keys that differ from Cilium's chart, with the reason.
const DEVIATIONS: &[(&str, &str)] = &[];

fn render(arguments: &[&str]) -> Vec<Document> {
    helm::template(arguments).unwrap_or_else(|error| panic!("helm template {arguments:?}: {error}"))
}

fn find<'a>(documents: &'a [Document], kind: &str, name: &str) -> Option<&'a Document> {
    documents.iter().find(|document| document.kind() == kind && document.name() == name)
}

fn config(arguments: &[&str]) -> BTreeMap<String, Value> {
    let documents = render(arguments);
    let map = find(&documents, "ConfigMap", "cilium-config").expect("ConfigMap cilium-config");
    serde_json::from_value(map.value["data"].clone()).expect("data of cilium-config")
}

/// Pods of the workloads, with the name of their workload.
fn pods(documents: &[Document]) -> Vec<(&str, &Value)> {
    documents
        .iter()
        .filter(|document| ["DaemonSet", "Deployment"].contains(&document.kind()))
        .map(|document| (document.name(), &document.value["spec"]["template"]["spec"]))
        .collect()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten()
}

#[test]
fn renders_the_objects_of_a_default_installation() {
    let documents = render(&[]);
    let found: BTreeSet<String> = documents
        .iter()
        .map(|document| format!("{} {}", document.kind(), document.name()))
        .collect();
    let wanted = [
        "ClusterRole cilium",
        "ClusterRole cilium-operator",
        "ClusterRoleBinding cilium",
        "ClusterRoleBinding cilium-operator",
        "ConfigMap cilium-config",
        "DaemonSet cilium",
        "Deployment cilium-operator",
        "Role cilium-config-agent",
        "Role cilium-operator-leader",
        "RoleBinding cilium-config-agent",
        "RoleBinding cilium-operator-leader",
        "ServiceAccount cilium",
        "ServiceAccount cilium-operator",
    ];
    assert_eq!(found, wanted.iter().map(ToString::to_string).collect());
    for document in &documents {
        assert_eq!(
            document.value["metadata"]["labels"]["app.kubernetes.io/part-of"],
            "cilium",
            "{}",
            document.name()
        );
    }
}

#[test]
fn config_keys_are_those_of_cilium() {
    let table = values::config_keys();
    for (key, value) in config(&[]) {
        let lines: Vec<_> = table.iter().filter(|line| line.key == key).collect();
        assert!(!lines.is_empty(), "{key} is no key of Cilium's ConfigMap");
        if DEVIATIONS.iter().any(|(deviating, _)| *deviating == key) {
            continue;
        }
        let defaults: Vec<_> = lines.iter().map(|line| line.default.as_deref()).collect();
        assert!(defaults.contains(&value.as_str()), "{key}: {value}, with Cilium {defaults:?}");
    }
}

#[test]
fn every_config_value_is_a_string() {
    let set = "--set=bpf.ctTcpMax=1000000,tunnelPort=8473,ciliumEndpointSlice.enabled=true";
    let config = config(&[set, "--set-json=k8sClientRateLimit.qps=7.5"]);
    for (key, value) in &config {
        assert!(value.is_string(), "{key}: {value}");
    }
    assert_eq!(config["bpf-ct-global-tcp-max"], "1000000");
    assert_eq!(config["k8s-client-qps"], "7.5");
    assert_eq!(config["tunnel-port"], "8473");
    assert_eq!(
        config["ces-rate-limits"],
        r#"[{"burst":20,"limit":10,"nodes":0},{"burst":100,"limit":50,"nodes":100}]"#
    );
}

#[test]
fn extra_config_wins_over_the_charts_keys() {
    let config = config(&["--set=extraConfig.mtu=1400,extraConfig.enable-ipv4=false,MTU=1500"]);
    assert_eq!(config["mtu"], "1400");
    assert_eq!(config["enable-ipv4"], "false");
}

#[test]
fn values_reach_their_keys() {
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("ipv6.enabled=true", "cluster-pool-ipv6-cidr", Some("fd00::/104")),
        ("ipv6.enabled=true", "cluster-pool-ipv6-mask-size", Some("120")),
        ("ipv6.enabled=false", "cluster-pool-ipv6-cidr", None),
        (
            "ipam.operator.clusterPoolIPv4PodCIDRList={10.1.0.0/16,10.2.0.0/16}",
            "cluster-pool-ipv4-cidr",
            Some("10.1.0.0/16 10.2.0.0/16"),
        ),
        ("ipam.mode=multi-pool", "cluster-pool-ipv4-cidr", None),
        (
            "ipam.mode=multi-pool,ipam.multiPoolPreAllocation=red=4",
            "ipam-multi-pool-pre-allocation",
            Some("red=4"),
        ),
        (
            "ipam.mode=multi-pool,ipam.operator.autoCreateCiliumPodIPPools.a.ipv4.cidrs={10.1.0.0/16,10.2.0.0/16},ipam.operator.autoCreateCiliumPodIPPools.a.ipv4.maskSize=24,ipam.operator.autoCreateCiliumPodIPPools.b.ipv6.cidrs={fd00::/104},ipam.operator.autoCreateCiliumPodIPPools.b.ipv6.maskSize=120",
            "auto-create-cilium-pod-ip-pools",
            Some(
                "a=ipv4-cidrs:10.1.0.0/16,10.2.0.0/16;ipv4-mask-size:24,b=ipv6-cidrs:fd00::/104;ipv6-mask-size:120",
            ),
        ),
        ("ipv4.enabled=false,ipv6.enabled=true", "operator-api-serve-addr", Some("[::1]:9234")),
        ("healthPort=9999", "agent-health-port", Some("9999")),
        ("healthPort=9879", "agent-health-port", None),
        ("prometheus.enabled=true,prometheus.port=9000", "prometheus-serve-addr", Some(":9000")),
        ("operator.prometheus.enabled=false", "operator-prometheus-serve-addr", None),
        ("operator.unmanagedPodWatcher.restart=true", "unmanaged-pod-watcher-interval", Some("15")),
        ("operator.unmanagedPodWatcher.restart=true", "pod-restart-selector", None),
        ("operator.unmanagedPodWatcher.restart=false", "unmanaged-pod-watcher-interval", Some("0")),
        ("operator.unmanagedPodWatcher.selector=app=dns", "pod-restart-selector", Some("app=dns")),
        ("clustermesh.maxConnectedClusters=511", "max-connected-clusters", Some("511")),
        ("operator.setNodeTaints=false", "set-cilium-node-taints", None),
        ("operator.removeNodeTaints=false", "set-cilium-node-taints", None),
        ("ciliumEndpointSlice.enabled=true", "enable-cilium-endpoint-slice", Some("true")),
        ("ciliumEndpointSlice.enabled=true", "ces-adaptive-rate", Some("true")),
        ("ciliumEndpointSlice.enabled=false", "ces-adaptive-rate", None),
        (
            "ciliumEndpointSlice.enabled=true,ciliumEndpointSlice.adaptiveRate=false",
            "ces-adaptive-rate",
            Some("false"),
        ),
        ("cni.install=false", "write-cni-conf-when-ready", None),
        ("cni.customConf=true", "write-cni-conf-when-ready", None),
        ("policyEnforcementMode=always", "enable-policy", Some("always")),
        ("policyAuditMode=true", "policy-audit-mode", Some("true")),
        ("enableIPv4Masquerade=false", "enable-ipv4-masquerade", Some("false")),
        ("debug.enabled=true", "debug", Some("true")),
    ];
    for (set, key, wanted) in cases {
        let config = config(&["--set", set]);
        assert_eq!(config.get(*key).and_then(Value::as_str), *wanted, "{key} with {set}");
    }
}

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
fn parts_can_be_left_out() {
    /// Kind, name, and whether it is there.
    type Object = (&'static str, &'static str, bool);
    let cases: &[(&str, &[Object])] = &[
        (
            "agent=false",
            &[
                ("DaemonSet", "cilium", false),
                ("ClusterRole", "cilium", false),
                ("ConfigMap", "cilium-config", true),
            ],
        ),
        (
            "operator.enabled=false",
            &[("Deployment", "cilium-operator", false), ("ClusterRole", "cilium-operator", false)],
        ),
        ("agent=false,operator.enabled=false", &[("ConfigMap", "cilium-config", false)]),
        (
            "rbac.create=false",
            &[("ClusterRole", "cilium", false), ("ClusterRoleBinding", "cilium-operator", false)],
        ),
        ("serviceAccounts.cilium.create=false", &[("ServiceAccount", "cilium", false)]),
        ("operator.prometheus.rules.enabled=true", &[("PrometheusRule", "cilium-operator", true)]),
        (
            "operator.podDisruptionBudget.enabled=true",
            &[("PodDisruptionBudget", "cilium-operator", true)],
        ),
        ("prometheus.enabled=true", &[("Service", "cilium-agent", false)]),
        (
            "prometheus.enabled=true,prometheus.metricsService=true",
            &[("Service", "cilium-agent", true)],
        ),
        (
            "prometheus.enabled=true,prometheus.serviceMonitor.enabled=true,prometheus.serviceMonitor.trustCRDsExist=true",
            &[("Service", "cilium-agent", true), ("ServiceMonitor", "cilium-agent", true)],
        ),
        ("dashboards.enabled=true", &[("ConfigMap", "cilium-dashboard", true)]),
        ("operator.dashboards.enabled=true", &[("ConfigMap", "cilium-operator-dashboard", true)]),
        ("operator.prometheus.metricsService=true", &[("Service", "cilium-operator", true)]),
    ];
    for (set, objects) in cases {
        let documents = render(&["--set", set]);
        for (kind, name, there) in *objects {
            assert_eq!(find(&documents, kind, name).is_some(), *there, "{kind} {name} with {set}");
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
fn the_operators_metrics_are_served_over_tls_if_asked_to() {
    let tls = "operator.prometheus.tls.enabled=true";
    let secret = "operator.prometheus.tls.server.existingSecret=metrics-tls";
    let mutual = "operator.prometheus.tls.server.mtls.enabled=true";
    let folder = "/var/lib/cilium/tls/prometheus";
    let key = |set: &str, key: &str| config(&["--set", set]).get(key).cloned();
    let authorities = "operator-prometheus-tls-client-ca-files";
    assert_eq!(key("debug.enabled=true", "operator-prometheus-enable-tls"), None);
    let set = format!("{tls},{secret}");
    assert_eq!(key(&set, "operator-prometheus-enable-tls"), Some("true".into()));
    let certificate = format!("{folder}/server.crt");
    assert_eq!(key(&set, "operator-prometheus-tls-cert-file"), Some(certificate.into()));
    assert_eq!(key(&set, authorities), None);
    let both = format!("{set},{mutual}");
    assert_eq!(key(&both, authorities), Some(format!("{folder}/client-ca.crt").into()));

    let documents = render(&["--set", &both]);
    let operator = find(&documents, "Deployment", "cilium-operator").expect("operator");
    let pod = &operator.value["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"]["prometheus.io/scheme"], "https");
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "prometheus-tls").expect("volume");
    let secret = &volume["projected"]["sources"][0]["secret"];
    assert_eq!(secret["name"], "metrics-tls");
    let files: Vec<_> = secret["items"].as_array().expect("items").iter().collect();
    let files: Vec<_> = files.iter().map(|file| file["path"].as_str()).collect();
    assert_eq!(files, [Some("server.crt"), Some("server.key"), Some("client-ca.crt")]);

    let error = helm::template(&["--set", tls]).expect_err("a Secret is needed").to_string();
    assert!(error.contains("operator.prometheus.tls.server.existingSecret"), "{error}");
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

#[test]
fn other_clusters_are_told_to_agents() {
    let cluster =
        |number: usize, rest: &str| format!("clustermesh.config.clusters[{number}].{rest}");
    let sets = [
        "clustermesh.config.enabled=true".to_owned(),
        cluster(0, "name=east"),
        cluster(0, "ips={10.1.0.1,fd00::1}"),
        cluster(0, "port=32379"),
        cluster(1, "name=west"),
        cluster(1, "address=west.example.org"),
        cluster(1, "tls.cert=Yw=="),
        cluster(1, "tls.key=aw=="),
        cluster(1, "tls.caCert=YQ=="),
    ]
    .join(",");
    let documents = render(&["--set", &sets]);
    let secret = find(&documents, "Secret", "cilium-clustermesh").expect("a Secret");
    let data = secret.value["data"].as_object().expect("data");
    let files: Vec<&str> = data.keys().map(String::as_str).collect();
    assert_eq!(
        files,
        ["east", "west", "west.etcd-client-ca.crt", "west.etcd-client.crt", "west.etcd-client.key"]
    );
    assert_eq!(data["west.etcd-client.key"], "aw==");
    let east = "endpoints:\n- https://east.mesh.cilium.io:32379\ntrusted-ca-file: /var/lib/cilium/clustermesh/common-etcd-client-ca.crt\n";
    let west = "endpoints:\n- https://west.example.org:2379\ntrusted-ca-file: /var/lib/cilium/clustermesh/west.etcd-client-ca.crt\n";
    for (name, want) in [("east", east), ("west", west)] {
        let text = decode(data[name].as_str().expect("a string"));
        assert!(text.starts_with(want), "{name}: {text}");
    }
    let (_, agent) =
        pods(&documents).into_iter().find(|(name, _)| *name == "cilium").expect("agents");
    let aliases = agent["hostAliases"].as_array().expect("aliases");
    assert_eq!(aliases.len(), 2);
    assert_eq!(aliases[0]["hostnames"][0], "east.mesh.cilium.io");
    assert!(find(&render(&[]), "Secret", "cilium-clustermesh").is_none());
}

/// Base64, of which the standard library knows nothing.
fn decode(text: &str) -> String {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.trim_end_matches('=').chars().map(|c| digits.find(c).expect("base64"));
    let (mut bytes, mut held, mut count) = (Vec::new(), 0, 0);
    for six in bits {
        (held, count) = (held << 6 | six, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(held >> count & 0xff).expect("a byte"));
        }
    }
    String::from_utf8(bytes).expect("text")
}
