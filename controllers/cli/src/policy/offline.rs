//! A cluster made of manifests: its pods' identities and its policies, without a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cilia_crds::NumericIdentity;
use cilia_identity::{Filter, PodLabels};
use cilia_policy::{CidrGroup, Config, NamedPorts, Party, Repository, Service};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service as KubernetesService};
use serde_json::Value;

use crate::output::text;

/// The first number for pods of manifests.
const FIRST: u32 = 256;

/// Policies beside the pods that they are about.
pub(super) struct Manifests {
    pub(super) rules: Repository,
    pods: BTreeMap<String, Party>,
}

impl Manifests {
    /// Reads objects of all kinds; those that policy has nothing to do with are left out.
    pub(super) fn read(objects: &[Value]) -> anyhow::Result<Self> {
        let config = Config::default();
        let mut namespaces = BTreeMap::new();
        for object in of_kind(objects, "Namespace") {
            let namespace: Namespace = read(object)?;
            let labels = namespace.metadata.labels.unwrap_or_default();
            namespaces.insert(namespace.metadata.name.unwrap_or_default(), labels);
        }
        let mut read_in = Self { rules: Repository::new(config.clone()), pods: BTreeMap::new() };
        let filter = Filter::new::<&str>(&[], None).map_err(|error| anyhow!("{error}"))?;
        for object in of_kind(objects, "Pod") {
            read_in.pod(read(object)?, &namespaces, &filter, &config)?;
        }
        for object in objects {
            if let Some((id, parsed)) = cilia_policy::read(object, &config) {
                let parsed = parsed.map_err(|fault| anyhow!("{id}: {fault}"))?;
                read_in.rules.set_policy(id, parsed.rules);
                continue;
            }
            match text(&object["kind"]).as_str() {
                "CiliumCIDRGroup" => {
                    let (group, _) = CidrGroup::read(&read(object)?);
                    let name: Arc<str> = text(&object["metadata"]["name"]).into();
                    read_in.rules.set_group(&name, Some(group));
                }
                "Service" => read_in.service(read(object)?),
                _ => {}
            }
        }
        Ok(read_in)
    }

    fn pod(
        &mut self,
        pod: Pod,
        namespaces: &BTreeMap<String, BTreeMap<String, String>>,
        filter: &Filter,
        config: &Config,
    ) -> anyhow::Result<()> {
        let namespace = pod.metadata.namespace.unwrap_or_else(|| "default".into());
        let name = format!("{namespace}/{}", pod.metadata.name.unwrap_or_default());
        let own = [("kubernetes.io/metadata.name".to_owned(), namespace.clone())].into();
        let spec = pod.spec.unwrap_or_default();
        let labels = PodLabels {
            namespace: &namespace,
            service_account: spec.service_account_name.as_deref().unwrap_or("default"),
            cluster: &config.cluster,
            pod: &pod.metadata.labels.unwrap_or_default(),
            namespace_labels: namespaces.get(&namespace).unwrap_or(&own),
        };
        let number = FIRST + u32::try_from(self.pods.len()).context("too many pods")?;
        let identity = NumericIdentity(number);
        self.rules.set_identity(identity, Arc::new(labels.identity(filter)));
        let mut ports = NamedPorts::new();
        for port in spec.containers.iter().flat_map(|one| one.ports.iter().flatten()) {
            let proto = protocol(port.protocol.as_deref().unwrap_or("TCP"))?;
            if let (Some(name), Ok(number)) = (&port.name, u16::try_from(port.container_port)) {
                ports.insert((name.to_ascii_lowercase().into(), proto), number);
            }
        }
        let address = pod.status.and_then(|status| status.pod_ip);
        let address = address.and_then(|text| text.parse().ok());
        self.pods.insert(name, Party { identity: Some(identity), address, ports });
        Ok(())
    }

    fn service(&mut self, service: KubernetesService) {
        let namespace = service.metadata.namespace.unwrap_or_else(|| "default".into());
        let name = service.metadata.name.unwrap_or_default();
        let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let labels = service.metadata.labels.unwrap_or_default();
        let read = Service { labels, selector, ..Service::default() };
        self.rules.set_service(&(namespace.into(), name.into()), Some(read));
    }

    /// Whom a text means: a pod of the manifests, an identity's number, an address.
    pub(super) fn party(&self, text: &str) -> anyhow::Result<Party> {
        if let Ok(number) = text.parse() {
            return Ok(Party { identity: Some(NumericIdentity(number)), ..Party::default() });
        }
        if let Ok(address) = text.parse() {
            let of = self.pods.values().find(|pod| pod.address == Some(address));
            let outside = || Party { address: Some(address), ..Party::default() };
            return Ok(of.cloned().unwrap_or_else(outside));
        }
        let Some(pod) = self.pods.get(text) else {
            let known: Vec<&str> = self.pods.keys().map(String::as_str).take(10).collect();
            bail!("the manifests have no pod {text}; there are: {}", known.join(", "));
        };
        Ok(pod.clone())
    }
}

fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

fn read<K: serde::de::DeserializeOwned>(object: &Value) -> anyhow::Result<K> {
    serde_json::from_value(object.clone()).with_context(|| super::name(object))
}

/// A protocol by name or number.
pub(super) fn protocol(text: &str) -> anyhow::Result<u8> {
    use cilia_policy::l4::protocol as known;
    Ok(match text.to_ascii_uppercase().as_str() {
        "TCP" => known::TCP,
        "UDP" => known::UDP,
        "SCTP" => known::SCTP,
        "ICMP" | "ICMPV4" => known::ICMP,
        "ICMPV6" => known::ICMPV6,
        other => other.parse().map_err(|_| {
            anyhow!("{text:?} is no protocol: use TCP, UDP, SCTP, ICMP, ICMPv6 or a number")
        })?,
    })
}

#[cfg(test)]
mod tests {
    use cilia_policy::Flow;
    use serde_json::json;

    use super::Manifests;

    #[test]
    fn pods_of_manifests_are_judged_by_their_policies() {
        let pod = |name: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop",
                "labels": {"app": name}}, "spec": {"containers": [{"name": "c",
                "ports": [{"name": "http", "containerPort": 8080}]}]}})
        };
        let policy = json!({"kind": "NetworkPolicy", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [
                {"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "http"}]}]}});
        let objects =
            [pod("web"), pod("client"), pod("other"), policy, json!({"kind": "ConfigMap"})];
        let mut manifests = Manifests::read(&objects).expect("manifests");
        for (from, port, allowed) in [
            ("shop/client", 8080, true),
            ("shop/client", 80, false),
            ("shop/other", 8080, false),
            ("192.0.2.1", 8080, false),
        ] {
            let (from, to) = (manifests.party(from), manifests.party("shop/web"));
            let flow = Flow { from: from.expect("from"), to: to.expect("to"), proto: 6, port };
            let told = cilia_policy::explain(&mut manifests.rules, &flow);
            assert_eq!(told.allowed, allowed, "{told}");
        }
        assert!(manifests.party("shop/nobody").is_err());
    }
}
