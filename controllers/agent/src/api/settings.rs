//! The agent's settings: Cilium's `DaemonConfiguration`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cilia_runtime::config::Config;
use serde_json::{Map, Value, json};

use super::query::without_nulls;
use super::{Parts, ipam, options, status};

/// Settings whose values are nobody's business.
const SECRET: [&str; 3] = ["password", "token", "secret-key"];
/// What `cilia build-config` notes beside the settings that it collects: where they are from, and which might be
/// changed there.
const NOTES: [&str; 2] = ["config-sources", "config-sources-overrides"];

/// The value of a setting, unless it is a secret.
pub(super) fn masked(name: &str, value: String) -> String {
    let secret = SECRET.iter().any(|part| name.contains(part)) && !value.is_empty();
    if secret { "[masked]".to_owned() } else { value }
}

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let config = &parts.config;
    let settings = config
        .iter()
        .map(|(name, value)| (name.to_owned(), masked(name, value.to_string()).into()));
    let settings: Map<String, Value> = settings.chain(notes(config)).collect();
    let local = parts.nodes.local();
    let routers = local.iter().flat_map(|node| &node.routers).map(ToString::to_string);
    let mtu = parts.plugin.mtu();
    let (ipv4, ipv6) =
        (config.bool("enable-ipv4-masquerade"), config.bool("enable-ipv6-masquerade"));
    Json(without_nulls(json!({
        "spec": options::of_agent(&parts),
        "status": {
            "addressing": ipam::addressing(&parts),
            "daemonConfigurationMap": settings,
            "daemonVersion": status::version(),
            "datapathMode": "veth",
            "deviceMTU": mtu.map(|mtu| mtu.device),
            "immutable": {},
            "ipam-mode": config.string("ipam"),
            "k8s-configuration": config.string("k8s-kubeconfig-path"),
            "kvstoreConfiguration": {
                "type": config.string("kvstore"),
                "options": config.map("kvstore-opt"),
            },
            "masquerade": ipv4 || ipv6,
            "masqueradeProtocols": {"ipv4": ipv4, "ipv6": ipv6},
            "nodeMonitor": status::monitor(&parts),
            "nodeName": local.as_ref().map(|node| node.name.clone()),
            "realized": options::of_agent(&parts),
            "routeMTU": mtu.map(|mtu| mtu.route),
            "routers": routers.collect::<Vec<String>>(),
        },
    })))
}

/// The notes about settings, where the folder of settings has any.
fn notes(config: &Config) -> Vec<(String, Value)> {
    let folder = config.path("config-dir");
    let read = |name: &str| {
        let text = std::fs::read_to_string(folder.as_ref()?.join(name)).ok()?;
        Some((name.to_owned(), text.trim_end().into()))
    };
    NOTES.iter().filter_map(|name| read(name)).collect()
}

#[cfg(test)]
mod tests {
    use cilia_runtime::config::{Config, Flags};

    use super::{masked, notes};

    #[test]
    fn it_is_told_where_settings_are_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"}]"#;
        std::fs::write(folder.path().join("config-sources"), sources).expect("written");
        let flag = format!("--config-dir={}", folder.path().display());
        let config = Config::load(Flags::agent(), [flag], []).expect("settings");
        assert_eq!(notes(&config), [("config-sources".to_owned(), sources.into())]);
        assert!(notes(&Config::load(Flags::agent(), [], []).expect("settings")).is_empty());
        assert_eq!(masked("etcd-password", "x".into()), "[masked]");
    }
}
