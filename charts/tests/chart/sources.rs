//! Where the agent's settings come from: put together by an init container, or one `ConfigMap`.

use serde_json::{Value, json};

use super::{containers, find, render};

/// The agent's container `config`, its volume of settings, and the `ConfigMaps` that it may read.
fn agent(set: &str) -> (Option<Value>, Option<Value>, Value, bool) {
    let documents = render(&["--set", set]);
    let agent = find(&documents, "DaemonSet", "cilium").expect("agent");
    let pod = &agent.value["spec"]["template"]["spec"];
    let config = containers(pod).find(|container| container["name"] == "config").cloned();
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let mounted = volumes.clone().find(|volume| volume["name"] == "cilium-config-path");
    let role = find(&documents, "Role", "cilium-config-agent").expect("role");
    let rules = role.value["rules"].as_array().expect("rules");
    let maps = rules.iter().find(|rule| rule["resources"] == json!(["configmaps"]));
    let nodes = rules.iter().any(|rule| rule["resources"] == json!(["ciliumnodeconfigs"]));
    (config, mounted.cloned(), maps.expect("maps")["resourceNames"].clone(), nodes)
}

#[test]
fn settings_of_single_nodes_are_put_over_those_of_all() {
    let (config, mounted, maps, nodes) = agent("debug.enabled=true");
    let config = config.expect("the container config");
    assert_eq!(config["command"], json!(["/usr/bin/cilia", "build-config"]));
    assert_eq!((mounted, maps, nodes), (None, json!(["cilium-config"]), true));

    let set = "daemon.configSources=config-map:more\\,cilium-node-config:kube-system,daemon.blockedConfigOverrides=debug";
    let (config, mounted, maps, _) = agent(set);
    let words = config.expect("the container config")["command"].clone();
    let sources = "--source=config-map:more,cilium-node-config:kube-system";
    assert_eq!(
        words.as_array().expect("words")[2..4],
        [json!(sources), json!("--deny-config-keys=debug")]
    );
    assert_eq!((mounted, maps), (None, json!(["cilium-config", "more"])));
}

#[test]
fn a_single_config_map_is_mounted() {
    let (config, mounted, maps, nodes) = agent("daemon.configSources=config-map:more");
    assert_eq!(config, None);
    assert_eq!(mounted.expect("a volume")["configMap"], json!({"name": "more"}));
    assert_eq!((maps, nodes), (json!(["cilium-config", "more"]), false));
}

#[test]
fn what_is_no_source_is_refused() {
    let refused = cilia_chart::helm::template(&["--set", "daemon.configSources=secret:x"]);
    let error = refused.map(|documents| documents.len()).expect_err("a secret").to_string();
    assert!(error.contains("daemon.configSources") && error.contains("config-map:"), "{error}");
}
