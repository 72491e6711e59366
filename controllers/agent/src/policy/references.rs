//! Watches what policies refer to: groups of prefixes, services, the API server's addresses, and whether
//! the cluster knows the kind `ClusterNetworkPolicy`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use cilia_crds::CiliumCidrGroup;
use cilia_policy::{CidrGroup, Service, ServiceId};
use cilia_runtime::watch::{Event, Key, Scope, watch, watch_scoped};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::{Api, Client};

use super::feed::News;

/// The kind that comes and goes with its CRD.
const CLUSTER_POLICIES: &str = "clusternetworkpolicies.policy.networking.k8s.io";
/// The version of it that is read.
const VERSION: &str = "v1beta1";
/// Who looks after the endpoints of services that select pods.
const BY_SELECTOR: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The API server's own service.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// A stream of news.
pub(super) type Feed = Pin<Box<dyn Stream<Item = News> + Send>>;

/// A change of what policies refer to.
#[derive(Debug)]
pub(super) enum Reference {
    /// A group says this, or is gone.
    Group(Arc<str>, Option<CidrGroup>),
    /// A service is this, or is gone.
    Service(ServiceId, Option<Service>),
    /// A slice of a service's endpoints that somebody gave it: the slice's name, the service, addresses.
    Addresses(Key, Option<(ServiceId, BTreeSet<IpAddr>)>),
    /// A slice of the API server's addresses.
    ApiServer(Key, BTreeSet<IpAddr>),
    /// The cluster knows `ClusterNetworkPolicy`.
    ClusterPolicies,
}

/// All `CiliumCIDRGroup`s.
pub(super) fn groups(client: &Client) -> Feed {
    let news = |event: Event<CiliumCidrGroup>| match event {
        Event::Synced => News::Synced,
        Event::Deleted(key) => News::Reference(Reference::Group(key.name, None)),
        Event::Applied(group) => {
            let name = Key::of(&group).name;
            let (read, faults) = CidrGroup::read(&group);
            for fault in faults {
                tracing::warn!(group = %name, %fault, "range of a CiliumCIDRGroup left out");
            }
            News::Reference(Reference::Group(name, Some(read)))
        }
    };
    Box::pin(watch(Api::<CiliumCidrGroup>::all(client.clone())).map(news))
}

/// All services; a policy names some.
pub(super) fn services(client: &Client) -> Feed {
    let news = |event: Event<core::Service>| match event {
        Event::Synced => News::Synced,
        Event::Deleted(key) => News::Reference(Reference::Service((key.namespace, key.name), None)),
        Event::Applied(service) => {
            let key = Key::of(&service);
            let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
            let read = Service {
                labels: service.metadata.labels.unwrap_or_default().into_iter().collect(),
                selector: selector.into_iter().collect(),
                addresses: BTreeSet::new(),
            };
            News::Reference(Reference::Service((key.namespace, key.name), Some(read)))
        }
    };
    Box::pin(watch(Api::<core::Service>::all(client.clone())).map(news))
}

/// The endpoints of services without a selector.
pub(super) fn given_endpoints(client: &Client) -> Feed {
    let news = |event: Event<EndpointSlice>| match event {
        Event::Synced => News::Synced,
        Event::Deleted(key) => News::Reference(Reference::Addresses(key, None)),
        Event::Applied(slice) => {
            let key = Key::of(&slice);
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
            let service = service.map(|name| (key.namespace.clone(), name.as_str().into()));
            let given = service.map(|service| (service, addresses(&slice)));
            News::Reference(Reference::Addresses(key, given))
        }
    };
    let scope = Scope { labels: BY_SELECTOR.into(), fields: String::new() };
    Box::pin(watch_scoped(Api::<EndpointSlice>::all(client.clone()), scope).map(news))
}

/// Where the API server is reached, behind its service.
pub(super) fn api_server(client: &Client) -> Feed {
    let news = |event: Event<EndpointSlice>| match event {
        Event::Synced => News::Synced,
        Event::Deleted(key) => News::Reference(Reference::ApiServer(key, BTreeSet::new())),
        Event::Applied(slice) => {
            News::Reference(Reference::ApiServer(Key::of(&slice), addresses(&slice)))
        }
    };
    let (namespace, name) = API_SERVER;
    let scope = Scope { labels: format!("{SERVICE_NAME}={name}"), fields: String::new() };
    let api = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
    Box::pin(watch_scoped(api, scope).map(news))
}

/// Whether the cluster serves `ClusterNetworkPolicy`: now, or later.
pub(super) fn cluster_policies(client: &Client) -> Feed {
    let news = |event: Event<CustomResourceDefinition>| match event {
        Event::Applied(definition) => {
            serves(&definition).then_some(News::Reference(Reference::ClusterPolicies))
        }
        Event::Synced => Some(News::Synced),
        // Its policies have gone before it.
        Event::Deleted(_) => None,
    };
    let fields = format!("metadata.name={CLUSTER_POLICIES}");
    let scope = Scope { labels: String::new(), fields };
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    Box::pin(watch_scoped(api, scope).filter_map(move |event| std::future::ready(news(event))))
}

/// Whether the policies can be listed: a definition of an earlier version of the API has none that
/// could, and whoever waited for their list would wait for ever.
fn serves(definition: &CustomResourceDefinition) -> bool {
    let served =
        |version: &CustomResourceDefinitionVersion| version.name == VERSION && version.served;
    let conditions = definition.status.iter().filter_map(|status| status.conditions.as_ref());
    let established = conditions
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True");
    established && definition.spec.versions.iter().any(served)
}

fn addresses(slice: &EndpointSlice) -> BTreeSet<IpAddr> {
    let all = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
    all.filter_map(|address| address.parse().ok()).collect()
}

/// Services and the endpoints that somebody gave them, put together.
#[derive(Debug, Default)]
pub(super) struct Services {
    services: BTreeMap<ServiceId, Service>,
    slices: BTreeMap<Key, (ServiceId, BTreeSet<IpAddr>)>,
}

impl Services {
    /// Takes a service in; what it is now.
    pub(super) fn service(&mut self, id: ServiceId, service: Option<Service>) -> Changed {
        match service {
            Some(service) => self.services.insert(id.clone(), service),
            None => self.services.remove(&id),
        };
        self.of(id)
    }

    /// Takes a slice in; what the services that it concerns are now.
    pub(super) fn slice(
        &mut self,
        key: Key,
        given: Option<(ServiceId, BTreeSet<IpAddr>)>,
    ) -> Vec<Changed> {
        let now = given.as_ref().map(|(id, _)| id.clone());
        let before = match given {
            Some(given) => self.slices.insert(key, given),
            None => self.slices.remove(&key),
        };
        let concerned: BTreeSet<ServiceId> =
            now.into_iter().chain(before.map(|(id, _)| id)).collect();
        concerned.into_iter().map(|id| self.of(id)).collect()
    }

    fn of(&self, id: ServiceId) -> Changed {
        let service = self.services.get(&id).map(|service| {
            let slices = self.slices.values().filter(|(of, _)| *of == id);
            let addresses = slices.flat_map(|(_, addresses)| addresses).copied().collect();
            Service { addresses, ..service.clone() }
        });
        (id, service)
    }
}

/// A service and what it is.
pub(super) type Changed = (ServiceId, Option<Service>);

#[cfg(test)]
mod tests {
    use cilia_policy::Service;
    use cilia_runtime::watch::Key;

    use serde_json::json;

    use super::{Services, serves};

    #[test]
    fn definitions_count_once_they_serve_the_version_that_is_read() {
        let definition = |version: &str, served: bool, established: &str| {
            let version = json!({"name": version, "served": served, "storage": true});
            let condition =
                json!({"type": "Established", "status": established, "reason": "r", "message": ""});
            let definition = json!({"metadata": {"name": super::CLUSTER_POLICIES}, "spec": {"group": "g",
                "scope": "Cluster", "names": {"kind": "K", "plural": "ks"}, "versions": [version]},
                "status": {"conditions": [condition]}});
            serde_json::from_value(definition).expect("a definition")
        };
        assert!(serves(&definition("v1beta1", true, "True")));
        assert!(!serves(&definition("v1alpha2", true, "True")), "an earlier version of the API");
        assert!(!serves(&definition("v1beta1", false, "True")));
        assert!(!serves(&definition("v1beta1", true, "False")), "not in force yet");
    }

    #[test]
    fn a_service_has_the_addresses_of_all_its_slices() {
        let (mut services, id) = (Services::default(), ("shop".into(), "db".into()));
        let slice =
            |address: &str| Some((("shop".into(), "db".into()), [address.parse().unwrap()].into()));
        let shown = |(_, service): super::Changed| -> Vec<String> {
            service.into_iter().flat_map(|s| s.addresses).map(|a| a.to_string()).collect()
        };
        assert!(
            shown(services.slice(Key::new("shop", "db-1"), slice("192.0.2.1")).remove(0))
                .is_empty()
        );
        assert_eq!(shown(services.service(id, Some(Service::default()))), ["192.0.2.1"]);
        let both = services.slice(Key::new("shop", "db-2"), slice("192.0.2.2")).remove(0);
        assert_eq!(shown(both), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(shown(services.slice(Key::new("shop", "db-1"), None).remove(0)), ["192.0.2.2"]);
    }
}
