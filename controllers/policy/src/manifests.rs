//! Makes a cluster out of manifests: pods, namespaces, services, nodes, groups and policies, so that
//! verdicts can be explained without one.
//!
//! Objects of other kinds are ignored. Pods that a Deployment and its like would make are there
//! under the name of the object.

mod objects;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use serde_json::Value;

use crate::config::Config;
use crate::directory::CidrGroup;
use crate::explain::{Party, entity};
use crate::names::ClusterPorts;
use crate::nodes::Node;
use crate::parse::{self, read};
use crate::repository::Repository;
use objects::{Addresses, Pod};

/// The first number of pods' identities here.
const FIRST: u32 = 256;

/// What makes a pod's identity.
#[derive(Debug, Clone, Copy)]
pub struct PodMeta<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's service account.
    pub service_account: &'a str,
    /// The pod's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The labels of its namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
}

/// A cluster out of manifests.
#[derive(Debug)]
pub struct Manifests {
    /// Its policies and identities.
    pub repository: Repository,
    /// Policies that can't be used, with the fault.
    pub faults: Vec<(String, String)>,
    /// What authors of policies should know.
    pub notes: Vec<(String, String)>,
    /// Pods by `namespace/name`.
    pods: BTreeMap<String, Party>,
    nodes: BTreeMap<String, Node>,
    /// The node that it is looked at from.
    own: Option<String>,
}

impl Manifests {
    /// Reads objects; `labels` decides which labels make a pod's identity.
    pub fn read(
        objects: &[Value],
        config: &Config,
        labels: &dyn Fn(PodMeta<'_>) -> Labels,
    ) -> Self {
        let mut cluster = Self {
            repository: Repository::new(config.clone()),
            faults: Vec::new(),
            notes: Vec::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            own: None,
        };
        let objects: Vec<&Value> = objects.iter().flat_map(objects::flat).collect();
        let of = |kinds: &[&str]| -> Vec<&Value> {
            let is =
                |object: &&&Value| kinds.contains(&object["kind"].as_str().unwrap_or_default());
            objects.iter().filter(is).copied().collect()
        };
        let namespaces = of(&["Namespace"]);
        let namespaces: BTreeMap<&str, BTreeMap<String, String>> = namespaces
            .into_iter()
            .map(|one| (objects::name(one), objects::namespace(one)))
            .collect();
        cluster.take_pods(objects.iter().filter_map(|one| Pod::read(one)), &namespaces, labels);
        let mut addresses = Addresses::default();
        for object in of(&["Endpoints", "EndpointSlice"]) {
            addresses.add(object);
        }
        for object in of(&["Service"]) {
            let id = (objects::namespace_of(object).into(), objects::name(object).into());
            let service = objects::service(object, addresses.of(&id));
            cluster.repository.set_service(&id, Some(service));
        }
        for object in of(&["CiliumCIDRGroup"]) {
            cluster.take_group(object);
        }
        for object in of(&["Node"]) {
            let node = objects::node(object);
            let name = objects::name(object);
            cluster.repository.set_node(name, Some(node.clone()));
            cluster.nodes.insert(name.to_owned(), node);
        }
        for object in &objects {
            cluster.take_policy(object, config);
        }
        cluster
    }

    fn take_pods(
        &mut self,
        pods: impl Iterator<Item = Pod>,
        namespaces: &BTreeMap<&str, BTreeMap<String, String>>,
        labels: &dyn Fn(PodMeta<'_>) -> Labels,
    ) {
        let mut numbers: BTreeMap<Labels, NumericIdentity> = BTreeMap::new();
        let mut names = ClusterPorts::default();
        for pod in pods {
            let implied = objects::implied(&pod.namespace);
            let identity = if pod.host_network {
                NumericIdentity::REMOTE_NODE
            } else {
                let labels = labels(PodMeta {
                    namespace: &pod.namespace,
                    service_account: &pod.service_account,
                    labels: &pod.labels,
                    namespace_labels: namespaces.get(&*pod.namespace).unwrap_or(&implied),
                });
                let next = FIRST + u32::try_from(numbers.len()).unwrap_or_default();
                let number = *numbers.entry(labels.clone()).or_insert(NumericIdentity(next));
                self.repository.set_identity(number, Arc::new(labels));
                number
            };
            for (name, port) in &pod.ports {
                names.insert(identity, name.clone(), *port);
            }
            let party = Party { identity: Some(identity), address: pod.address, ports: pod.ports };
            self.pods.insert(format!("{}/{}", pod.namespace, pod.name), party);
        }
        self.repository.set_named_ports(Arc::new(names));
    }

    fn take_group(&mut self, object: &Value) {
        let name = objects::name(object);
        let mut fault = |fault: String| {
            self.faults.push((format!("CiliumCIDRGroup {name}"), fault));
        };
        match parse::typed(object) {
            Ok(group) => {
                let (group, faults) = CidrGroup::read(&group);
                for one in &faults {
                    fault(one.to_string());
                }
                self.repository.set_group(&name.into(), Some(group));
            }
            Err(one) => fault(one),
        }
    }

    fn take_policy(&mut self, object: &Value, config: &Config) {
        let Some((id, parsed)) = read(object, config) else { return };
        match parsed {
            Ok(parsed) => {
                let notes = parsed.notes.iter().map(|note| (id.to_string(), note.to_string()));
                self.notes.extend(notes);
                self.repository.set_policy(id, parsed.rules);
            }
            Err(fault) => self.faults.push((id.to_string(), fault)),
        }
    }

    /// Looks at the cluster from this node, whose own policies (`nodeSelector`) count then; other nodes'
    /// policies are not known there. False if there is no such node.
    pub fn stand_on(&mut self, name: &str) -> bool {
        if !self.nodes.contains_key(name) {
            return false;
        }
        let before = self.own.replace(name.to_owned());
        for (one, node) in &mut self.nodes {
            let own = one == name;
            if own || before.as_ref() == Some(one) {
                node.own = own;
                self.repository.set_node(one, Some(node.clone()));
            }
        }
        true
    }

    /// The names of the pods that there are: `namespace/name`.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// A side of a flow: a pod as `namespace/name`, or `name` of namespace `default`; an address; the
    /// number of an identity; a node as `node/name`; or an entity such as `host` or `world`.
    pub fn party(&self, text: &str) -> Result<Party, String> {
        let pod = if text.contains('/') { text.to_owned() } else { format!("default/{text}") };
        if let Some(pod) = self.pods.get(&pod) {
            return Ok(pod.clone());
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(self.owner(address));
        }
        let identity = |identity| Party { identity: Some(identity), ..Party::default() };
        if let Ok(number) = text.parse() {
            let number = NumericIdentity(number);
            return match self.repository.labels(number) {
                Some(_) => Ok(identity(number)),
                None => Err(format!("there is no identity {number}")),
            };
        }
        if let Some(name) = text.strip_prefix("node/") {
            let node = self.nodes.get(name).ok_or_else(|| format!("there is no node {name}"))?;
            let owner = node.addresses.first().map(|address| self.owner(*address));
            let host = if node.own { NumericIdentity::HOST } else { NumericIdentity::REMOTE_NODE };
            return Ok(owner.unwrap_or_else(|| identity(host)));
        }
        entity(text).map(identity).ok_or_else(|| {
            format!(
                "{text:?} is not a pod (namespace/name), an address, an identity's number, node/name or an entity that is known"
            )
        })
    }

    /// Whoever has an address.
    fn owner(&self, address: IpAddr) -> Party {
        if let Some(pod) = self.pods.values().find(|pod| pod.address == Some(address)) {
            return pod.clone();
        }
        let of_node =
            self.repository.node_identities().into_iter().find(|(one, _)| *one == address);
        let node = self.nodes.values().find(|node| node.addresses.contains(&address));
        let of_other =
            node.map(
                |node| {
                    if node.own { NumericIdentity::HOST } else { NumericIdentity::REMOTE_NODE }
                },
            );
        let identity = of_node.map(|(_, identity)| identity).or(of_other);
        Party { identity, address: Some(address), ..Party::default() }
    }
}
