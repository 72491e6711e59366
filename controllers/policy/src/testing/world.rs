//! A cluster as plain data, and random changes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{Labels, NumericIdentity};
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::draw;
use crate::config::{Config, Mode};
use crate::directory::{CidrGroup, Service, ServiceId};
use crate::names::{ClusterPorts, PortName};
use crate::repository::Repository;
use crate::rule::{Kind, PolicyId, Rule};

/// A cluster as plain data: what the definition of the rules looks at.
#[derive(Debug)]
pub struct World {
    /// The configuration.
    pub config: Config,
    /// The rules.
    pub policies: BTreeMap<PolicyId, Vec<Rule>>,
    /// The pods' identities.
    pub identities: BTreeMap<NumericIdentity, Arc<Labels>>,
    /// How pods name their ports.
    pub names: Vec<(NumericIdentity, PortName, u16)>,
    /// `CiliumCIDRGroup`s.
    pub groups: BTreeMap<Arc<str>, CidrGroup>,
    /// Services.
    pub services: BTreeMap<ServiceId, Service>,
    /// Whether there are policies of tiers.
    tiers: bool,
}

impl World {
    /// A random cluster of up to 24 identities.
    pub fn new(rng: &mut SmallRng) -> Self {
        let config = Config {
            mode: mode(rng),
            allow_localhost: rng.random_bool(0.7),
            dual_stack: rng.random_bool(0.5),
            local_cluster: false,
            ..Config::default()
        };
        let mut world = Self {
            config,
            policies: BTreeMap::new(),
            identities: BTreeMap::new(),
            names: Vec::new(),
            groups: BTreeMap::new(),
            services: BTreeMap::new(),
            tiers: rng.random_bool(0.6),
        };
        for _ in 0..rng.random_range(1..25) {
            world.change(rng, &mut Repository::new(world.config.clone()));
        }
        world
    }

    /// One change, to the data and to the repository.
    pub fn change(&mut self, rng: &mut SmallRng, repository: &mut Repository) {
        match rng.random_range(0..25) / 2 {
            0..4 => {
                let number = NumericIdentity(rng.random_range(256..280));
                let labels = Arc::new(draw::labels(rng));
                self.identities.insert(number, labels.clone());
                repository.set_identity(number, labels);
            }
            4 => {
                if let Some(number) = self.identities.keys().nth(rng.random_range(0..24)).copied() {
                    self.identities.remove(&number);
                    repository.remove_identity(number);
                }
            }
            5..8 => {
                let (id, rules) = self.policy(rng);
                self.policies.insert(id.clone(), rules.clone());
                repository.set_policy(id, rules);
            }
            8 => {
                let (id, _) = self.policy(rng);
                self.policies.remove(&id);
                repository.remove_policy(&id);
            }
            9 => {
                let name: Arc<str> = draw::one(rng, &draw::OBJECTS).into();
                let group = rng.random_bool(0.8).then(|| draw::group(rng));
                repository.set_group(&name, group.clone());
                match group {
                    Some(group) => self.groups.insert(name, group),
                    None => self.groups.remove(&name),
                };
            }
            10 => {
                let namespace = draw::one(rng, &draw::NAMESPACES).into();
                let id: ServiceId = (namespace, draw::one(rng, &draw::OBJECTS).into());
                let service = rng.random_bool(0.8).then(|| draw::service(rng));
                repository.set_service(&id, service.clone());
                match service {
                    Some(service) => self.services.insert(id, service),
                    None => self.services.remove(&id),
                };
            }
            11 => {
                self.names = draw::cluster_names(rng);
                repository.set_named_ports(cluster_ports(&self.names));
            }
            _ => {
                self.config.mode = mode(rng);
                repository.set_mode(self.config.mode);
            }
        }
    }

    /// A policy of a random kind.
    fn policy(&self, rng: &mut SmallRng) -> (PolicyId, Vec<Rule>) {
        let namespace = draw::one(rng, &draw::NAMESPACES);
        let (kind, namespace, rules) = match rng.random_range(0..8) {
            0..2 => (Kind::Kubernetes, namespace, draw::network_policy(rng, namespace)),
            2..4 => (Kind::CiliumClusterwide, "", draw::policy(rng, "")),
            4..7 if self.tiers => (Kind::Cluster, "", draw::cluster_policy(rng)),
            _ => (Kind::Cilium, namespace, draw::policy(rng, namespace)),
        };
        let name = format!("p{}", rng.random_range(0..4));
        (PolicyId { kind, namespace: namespace.into(), name: name.into() }, rules)
    }

    /// A repository that has been told all of it.
    pub fn repository(&self) -> Repository {
        let mut repository = Repository::new(self.config.clone());
        repository.set_named_ports(cluster_ports(&self.names));
        for (name, group) in &self.groups {
            repository.set_group(name, Some(group.clone()));
        }
        for (id, service) in &self.services {
            repository.set_service(id, Some(service.clone()));
        }
        for (number, labels) in &self.identities {
            repository.set_identity(*number, labels.clone());
        }
        for (id, rules) in &self.policies {
            repository.set_policy(id.clone(), rules.clone());
        }
        repository
    }
}

/// Mostly the usual one.
fn mode(rng: &mut SmallRng) -> Mode {
    match rng.random_range(0..12) {
        0 => Mode::Always,
        1 => Mode::Never,
        _ => Mode::Default,
    }
}

fn cluster_ports(named: &[(NumericIdentity, PortName, u16)]) -> Arc<ClusterPorts> {
    let mut ports = ClusterPorts::default();
    for (identity, name, port) in named {
        ports.insert(*identity, name.clone(), *port);
    }
    Arc::new(ports)
}
