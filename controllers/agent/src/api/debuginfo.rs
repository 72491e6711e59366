//! Everything that the agent knows, in one answer: `/v1/debuginfo`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::{Parts, endpoint, mount, policy, service, settings, status};

/// Beginnings of the names of variables that are settings; others are nobody's business.
const VARIABLES: [&str; 3] = ["CILIUM_", "K8S_", "KUBERNETES_"];

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let status = status::whole(&parts, true).await;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Json(json!({
        "cilium-version": status::version(),
        "kernel-version": release.trim(),
        "cilium-status": status,
        "encryption": {},
        "endpoint-list": endpoint::having(&parts, &[]),
        "environment-variables": environment(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        })),
        "policy": policy::shown(&parts),
        "service-list": service::all(&parts),
        "subsystem": subsystems(mount::of(status::bpf_root(&parts)), &memory),
    }))
}

/// Settings by variables, as `NAME:value`; secrets are masked.
fn environment(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let ours = variables.filter(|(name, _)| VARIABLES.iter().any(|start| name.starts_with(start)));
    let mut shown: Vec<String> = ours
        .map(|(name, value)| {
            let value = settings::masked(&name.to_lowercase().replace('_', "-"), value);
            format!("{name}:{value}")
        })
        .collect();
    shown.sort_unstable();
    shown
}

/// A text for each part: where the BPF file system is, and memory and threads out of `/proc/self/status`.
fn subsystems(mount: Option<Value>, status: &str) -> BTreeMap<String, String> {
    let wanted = ["VmPeak", "VmRSS", "VmHWM", "Threads"];
    let pairs = status.lines().filter_map(|line| line.split_once(':'));
    let of = pairs.filter(|(name, _)| wanted.contains(name));
    let process = of.map(|(name, value)| (format!("process-{name}"), value.trim().to_owned()));
    process.chain(mount.map(|mount| ("bpf-fs".to_owned(), mount.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{environment, subsystems};

    #[test]
    fn variables_are_settings_and_no_secrets() {
        let given = [
            ("K8S_NODE_NAME", "n1"),
            ("CILIUM_ETCD_PASSWORD", "hunter1"),
            ("CILIUM_AUTH_TOKEN", "hunter2"),
            ("HOME", "/root"),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let want =
            ["CILIUM_AUTH_TOKEN:[masked]", "CILIUM_ETCD_PASSWORD:[masked]", "K8S_NODE_NAME:n1"];
        assert_eq!(environment(given.into_iter()), want);
    }

    #[test]
    fn memory_is_told() {
        let text = "Name:\tx\nVmRSS:\t  1234 kB\nThreads:\t3\n";
        let told = subsystems(Some(json!({"type": "bpf"})), text);
        let want = [
            ("bpf-fs", r#"{"type":"bpf"}"#),
            ("process-Threads", "3"),
            ("process-VmRSS", "1234 kB"),
        ];
        assert_eq!(told, want.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }
}
