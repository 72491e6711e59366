//! Decides what a policy's references stand for: the prefixes of `CiliumCIDRGroup`s and the
//! backends of services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::Labels;
use ipnet::IpNet;

use crate::config::Config;
use crate::error::Error;
use crate::rule::{Groups, Peer, ServiceName, Services};
use crate::selector::{CLUSTER, K8S, Key, NAMESPACE, Requirement, Selector};

/// The source of the labels of groups, and of the label that a group's name makes.
pub const CIDR_GROUP: &str = "cidrgroup";

/// A `CiliumCIDRGroup`, as policies see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CidrGroup {
    /// The object's labels, with source [`CIDR_GROUP`].
    pub labels: Labels,
    /// Its ranges; what can't be read is left out.
    pub prefixes: BTreeSet<IpNet>,
}

impl CidrGroup {
    /// What is wrong with a group that may not be readable, if anything is.
    pub fn fault(object: &serde_json::Value) -> Option<String> {
        match crate::parse::typed(object) {
            Ok(group) => Self::read(&group).1.first().map(ToString::to_string),
            Err(fault) => Some(fault),
        }
    }

    /// What an object says; and what is wrong with ranges in it.
    pub fn read(group: &cilia_crds::CiliumCidrGroup) -> (Self, Vec<Error>) {
        let mut read = Self::default();
        for (key, value) in group.metadata.labels.iter().flatten() {
            read.labels.insert(CIDR_GROUP, key, value);
        }
        let mut faults = Vec::new();
        for (index, text) in group.spec.external_cidrs.iter().enumerate() {
            match crate::cnp::address_range(text, &format!("spec.externalCIDRs[{index}]")) {
                Ok(prefix) => {
                    read.prefixes.insert(prefix);
                }
                Err(fault) => faults.push(fault),
            }
        }
        (read, faults)
    }
}

/// A service, as policies see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// Which pods are behind it; without, and if it is empty, its endpoints were given by somebody.
    pub selector: BTreeMap<String, String>,
    /// The addresses of its endpoints; they count only without a selector.
    pub addresses: BTreeSet<IpAddr>,
}

/// A service's namespace and name.
pub type ServiceId = (Arc<str>, Arc<str>);

/// Groups and services by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    groups: BTreeMap<Arc<str>, CidrGroup>,
    services: BTreeMap<ServiceId, Service>,
}

/// What has changed in the directory: before and after.
pub(crate) enum Change<'a> {
    Group(&'a str, [Option<&'a CidrGroup>; 2]),
    Service(&'a ServiceId, [Option<&'a Service>; 2]),
}

impl Directory {
    /// Sets or removes a group; the group before.
    pub(crate) fn put_group(
        &mut self,
        name: &Arc<str>,
        group: Option<CidrGroup>,
    ) -> Option<CidrGroup> {
        match group {
            Some(group) => self.groups.insert(name.clone(), group),
            None => self.groups.remove(name),
        }
    }

    /// Sets or removes a service; the service before.
    pub(crate) fn put_service(
        &mut self,
        id: &ServiceId,
        service: Option<Service>,
    ) -> Option<Service> {
        match service {
            Some(service) => self.services.insert(id.clone(), service),
            None => self.services.remove(id),
        }
    }

    /// The group of this name.
    pub(crate) fn group(&self, name: &str) -> Option<&CidrGroup> {
        self.groups.get(name)
    }

    /// The service of this name.
    pub(crate) fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    /// The peers that a peer stands for: itself, if it refers to nothing.
    pub(crate) fn resolve(&self, peer: &Peer, config: &Config) -> Vec<Peer> {
        match peer {
            Peer::Groups { groups, except } => {
                let meant = self.groups.iter().filter(|(name, group)| means(groups, name, group));
                let prefixes: BTreeSet<IpNet> =
                    meant.flat_map(|(_, group)| &group.prefixes).copied().collect();
                let cidr = |prefix| Peer::Cidr { prefix, except: except.clone() };
                prefixes.into_iter().map(cidr).collect()
            }
            Peer::Services(services) => {
                let meant =
                    self.services.iter().filter(|(id, service)| serves(services, id, service));
                meant.flat_map(|(id, service)| backends(&id.0, service, config)).collect()
            }
            other => vec![other.clone()],
        }
    }
}

impl Change<'_> {
    /// Whether a reference stands for something else now.
    pub(crate) fn concerns(&self, peer: &Peer) -> bool {
        match (self, peer) {
            (Self::Group(name, both), Peer::Groups { groups, .. }) => {
                both.iter().flatten().any(|group| means(groups, name, group))
            }
            (Self::Service(id, both), Peer::Services(services)) => {
                both.iter().flatten().any(|service| serves(services, id, service))
            }
            _ => false,
        }
    }
}

fn means(groups: &Groups, name: &str, group: &CidrGroup) -> bool {
    match groups {
        Groups::Named(wanted) => **wanted == *name,
        Groups::Labelled(selector) => selector.matches(&group.labels),
    }
}

fn serves(services: &Services, id: &ServiceId, service: &Service) -> bool {
    if services.namespace.as_ref().is_some_and(|namespace| *namespace != id.0) {
        return false;
    }
    match &services.which {
        ServiceName::Named(name) => *name == id.1,
        ServiceName::Labelled(selector) => {
            let mut labels = Labels::new();
            service.labels.iter().for_each(|(key, value)| labels.insert(K8S, key, value));
            selector.matches(&labels)
        }
    }
}

/// The pods that a service selects, or the addresses that somebody gave it.
fn backends(namespace: &str, service: &Service, config: &Config) -> Vec<Peer> {
    if service.selector.is_empty() {
        let cidr = |address: &IpAddr| Peer::Cidr { prefix: (*address).into(), except: Vec::new() };
        return service.addresses.iter().map(cidr).collect();
    }
    let cluster =
        config.local_cluster.then(|| Requirement::equals(Key::new(K8S, CLUSTER), &config.cluster));
    let pods =
        service.selector.iter().map(|(key, value)| Requirement::equals(Key::new(K8S, key), value));
    let own = Requirement::equals(Key::new(K8S, NAMESPACE), namespace);
    vec![Peer::Endpoints(Selector::new(pods.chain([own]).chain(cluster)))]
}
