//! Policies as the API server hands them over, and what maps they make.
#![no_main]

use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use cilia_policy::{Config, NamedPorts, Repository};

const SUBJECT: NumericIdentity = NumericIdentity(300);

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(mut object) = serde_json::from_slice::<serde_json::Value>(input) else { return };
    if !object.is_object() {
        return;
    }
    let config = Config { host_firewall: true, node_selectors: true, ..Config::default() };
    for kind in [
        "CiliumNetworkPolicy",
        "CiliumClusterwideNetworkPolicy",
        "NetworkPolicy",
        "ClusterNetworkPolicy",
    ] {
        object["kind"] = kind.into();
        let Some((id, Ok(parsed))) = cilia_policy::read(&object, &config) else { continue };
        let mut repository = Repository::new(config.clone());
        let mut labels = Labels::new();
        labels.insert("k8s", "app", "web");
        labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
        repository.set_identity(SUBJECT, Arc::new(labels));
        repository.set_policy(id, parsed.rules);
        for subject in [SUBJECT, NumericIdentity::HOST] {
            if let Some(map) = repository.policy(subject, &NamedPorts::new()) {
                let _ = map.fit(256);
            }
        }
    }
});
