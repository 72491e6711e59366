//! The pods of the scenarios, and the policies in force among them.

use std::sync::Arc;

use cilia_crds::{CiliumClusterwideNetworkPolicy, Labels, NumericIdentity};
use cilia_policy::l4::protocol::TCP;
use cilia_policy::{
    Config, Direction, EndpointPolicy, Kind, NamedPorts, PolicyId, Repository, Verdict,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

pub(crate) const CLIENT: u32 = 1001;
pub(crate) const CLIENT2: u32 = 1002;
pub(crate) const ECHO: u32 = 1003;
/// Pods of another namespace, of another cluster, and one whose labels aren't known yet.
pub(crate) const ELSEWHERE: u32 = 1004;
pub(crate) const ABROAD: u32 = 1005;
pub(crate) const INIT: u32 = 5;
pub(crate) const HOST: u32 = 1;
pub(crate) const WORLD: u32 = 2;
pub(crate) const NODE: u32 = 6;
/// Addresses by the name that the scenarios give them.
pub(crate) const E1: &str = "192.0.2.1";
pub(crate) const E2: &str = "192.0.2.2";

use Direction::{Egress, Ingress};

pub(crate) struct Cluster {
    pub(crate) repository: Repository,
    pub(crate) config: Config,
}

pub(crate) fn cluster_with(config: Config) -> Cluster {
    let mut repository = Repository::new(config.clone());
    let pods = [
        (CLIENT, "test", "default", "kind=client,name=client"),
        (CLIENT2, "test", "default", "kind=client,other=client"),
        (ECHO, "test", "default", "kind=echo"),
        (ELSEWHERE, "other", "default", "kind=client,name=client"),
        (ABROAD, "test", "away", "kind=client,name=client"),
    ];
    for (number, namespace, cluster, labels) in pods {
        let mut set = Labels::new();
        set.insert("k8s", "io.kubernetes.pod.namespace", namespace);
        set.insert("k8s", "io.cilium.k8s.policy.cluster", cluster);
        set.insert("k8s", "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name", namespace);
        set.insert(
            "k8s",
            "io.cilium.k8s.policy.serviceaccount",
            if number == CLIENT { "sa" } else { "default" },
        );
        for label in labels.split(',') {
            let (key, value) = label.split_once('=').expect("a value");
            set.insert("k8s", key, value);
        }
        repository.set_identity(NumericIdentity(number), Arc::new(set));
    }
    Cluster { repository, config }
}

pub(crate) fn cluster() -> Cluster {
    cluster_with(Config::default())
}

impl Cluster {
    pub(crate) fn with(mut self, kind: &str, name: &str, mut object: Value) -> Self {
        object["metadata"] = json!({"name": name, "namespace": "test"});
        let (kind, parsed) = match kind {
            "cnp" => (Kind::Cilium, cilia_policy::cilium(&from(object), &self.config)),
            "ccnp" => (
                Kind::CiliumClusterwide,
                cilia_policy::clusterwide(
                    &from::<CiliumClusterwideNetworkPolicy>(object),
                    &self.config,
                ),
            ),
            _ => (
                Kind::Kubernetes,
                cilia_policy::kubernetes(&from::<NetworkPolicy>(object), &self.config),
            ),
        };
        let namespace = if kind == Kind::CiliumClusterwide { "" } else { "test" };
        let id = PolicyId { kind, namespace: namespace.into(), name: name.into() };
        self.repository.set_policy(id, parsed.expect("a valid policy").rules);
        self
    }

    pub(crate) fn cnp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("p{}", self.repository.policies().len());
        self.with("cnp", &name, json!({"spec": spec}))
    }

    pub(crate) fn knp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("k{}", self.repository.policies().len());
        self.with("knp", &name, json!({"spec": spec}))
    }

    pub(crate) fn ccnp(self, spec: impl Into<Value>) -> Self {
        let spec = spec.into();
        let name = format!("c{}", self.repository.policies().len());
        self.with("ccnp", &name, json!({"spec": spec}))
    }

    pub(crate) fn map(&mut self, subject: u32) -> Arc<EndpointPolicy> {
        let mut names = NamedPorts::new();
        if subject == ECHO {
            names.insert(("http-8080".into(), TCP), 8080);
        }
        self.repository.policy(NumericIdentity(subject), &names).expect("a known identity")
    }

    pub(crate) fn verdict(
        &mut self,
        subject: u32,
        direction: Direction,
        peer: u32,
        proto: u8,
        port: u16,
    ) -> Verdict {
        self.map(subject).verdict(direction, peer, proto, port)
    }

    /// The verdict for a peer outside, by its address.
    pub(crate) fn outside(
        &mut self,
        subject: u32,
        direction: Direction,
        address: &str,
        proto: u8,
        port: u16,
    ) -> Verdict {
        let map = self.map(subject);
        let address: std::net::IpAddr = address.parse().expect("an address");
        let held =
            self.repository.prefixes().into_iter().filter(|(prefix, _)| prefix.contains(&address));
        let identity = held
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map_or(WORLD, |(_, identity)| identity.0);
        map.verdict(direction, identity, proto, port)
    }

    /// What a TCP connection between two pods meets: the sender's egress, then the receiver's ingress.
    pub(crate) fn tcp(&mut self, from: u32, to: u32, port: u16) -> (Verdict, Verdict) {
        (self.verdict(from, Egress, to, TCP, port), self.verdict(to, Ingress, from, TCP, port))
    }
}

pub(crate) fn from<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its kind")
}

pub(crate) fn all() -> Value {
    json!({"endpointSelector": {}, "ingress": [{"fromEntities": ["all"]}], "egress": [{"toEntities": ["all"]}]})
}

pub(crate) fn of(kind: &str) -> Value {
    json!({"matchLabels": {"kind": kind}})
}
