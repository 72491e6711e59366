//! Decides which frontends, backends and slots there are, and under which identifiers.
//!
//! A frontend goes to the service's ready endpoints; if none is ready, to those that end but still
//! answer, as kube-proxy does. Endpoints that end stay backends without a slot, so that their
//! connections can finish.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use cilia_loader::{Backend, BackendState, Frontend, ServiceEntry, ServiceKey};
use cilia_runtime::watch::Key;

use super::map::{Desired, Written};
use super::numbers::Numbers;
use super::remote::{Prefer, Remotes};
use super::source::{ServicePort, Slim, SlimEndpoint, SlimSlice};

/// An address, a port and a protocol: what frontends and backends are known by.
pub(super) type Place = (IpAddr, u16, u8);

#[derive(Debug)]
pub(super) struct Table {
    services: BTreeMap<Key, Slim>,
    /// By service, then by slice.
    slices: HashMap<Key, BTreeMap<Key, SlimSlice>>,
    owners: HashMap<Key, Key>,
    pub(super) remotes: Remotes,
    frontends: Numbers<Place>,
    backends: Numbers<Place>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            services: BTreeMap::new(),
            slices: HashMap::new(),
            owners: HashMap::new(),
            remotes: Remotes::default(),
            frontends: Numbers::up_to(u16::MAX.into()),
            backends: Numbers::up_to(u32::MAX),
        }
    }
}

/// A frontend with its backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// The frontend's identifier.
    pub id: u16,
    /// The service.
    pub service: Key,
    /// The frontend.
    pub frontend: Place,
    /// The backends that get connections.
    pub backends: Vec<Place>,
    /// Backends that only finish theirs.
    pub ending: Vec<Place>,
    /// They are the ones that the service prefers by where they are.
    pub preferred: bool,
}

impl Table {
    /// Takes a service over, or forgets it.
    pub(super) fn set_service(&mut self, key: Key, service: Option<Slim>) {
        match service {
            Some(service) => self.services.insert(key, service),
            None => self.services.remove(&key),
        };
    }

    /// Takes a slice over, or forgets it.
    pub(super) fn set_slice(&mut self, key: Key, slice: Option<SlimSlice>) {
        if let Some(owner) = self.owners.remove(&key)
            && let Some(slices) = self.slices.get_mut(&owner)
        {
            slices.remove(&key);
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        if let Some(slice) = slice {
            self.owners.insert(key.clone(), slice.service.clone());
            self.slices.entry(slice.service.clone()).or_default().insert(key, slice);
        }
    }

    /// Takes identifiers over from the maps of a former agent.
    pub(super) fn restore(&mut self, written: &Written) {
        for (key, entry) in written.services.iter().filter(|(key, _)| key.slot == 0) {
            self.frontends.restore((key.address, key.port, key.proto), entry.rev_nat.into());
        }
        for (id, backend) in &written.backends {
            self.backends.restore((backend.address, backend.port, backend.proto), *id);
        }
        // Connections remember the identifiers of what is gone: new ones begin somewhere else.
        self.frontends.rest_from(rand::random());
        self.backends.rest_from(rand::random());
    }

    /// What the maps should say.
    pub(super) fn desired(&mut self) -> Desired {
        let mut desired = Desired::default();
        let (mut frontends, mut backends) = (BTreeSet::new(), BTreeSet::new());
        for (place, service, active, ending) in self.resolve() {
            let affinity = self.services.get(&service).and_then(|service| service.affinity);
            // Without a free identifier the frontend has to wait for one.
            let Some(rev_nat) =
                self.frontends.get(place).and_then(|number| u16::try_from(number).ok())
            else {
                tracing::error!(address = %place.0, port = place.1, "no identifier is left for this frontend");
                continue;
            };
            frontends.insert(place);
            let (address, port, proto) = place;
            desired.rev_nat.insert(rev_nat, Frontend { address, port });
            let mut slots = BTreeSet::new();
            for (backend, state) in active
                .iter()
                .map(|place| (*place, BackendState::Active))
                .chain(ending.iter().map(|place| (*place, BackendState::Terminating)))
            {
                let Some(id) = self.backends.get(backend) else { continue };
                backends.insert(backend);
                if state == BackendState::Active {
                    slots.insert(id);
                }
                let (address, port, proto) = backend;
                let known = desired.backends.entry(id).or_insert(Backend {
                    address,
                    port,
                    proto,
                    state,
                    zone: 0,
                });
                if state == BackendState::Active {
                    known.state = state;
                }
            }
            let key = |slot| ServiceKey { address, port, proto, slot, scope: 0 };
            let mut count = 0;
            for id in slots.into_iter().take(u16::MAX.into()) {
                count += 1;
                desired
                    .services
                    .insert(key(count), ServiceEntry { backend: id, count: 0, rev_nat, flags: 0 });
            }
            let flags = affinity.map_or(0, |_| ServiceEntry::AFFINITY);
            let backend = affinity.unwrap_or(0);
            desired.services.insert(key(0), ServiceEntry { backend, count, rev_nat, flags });
        }
        self.frontends.retain(&frontends);
        self.backends.retain(&backends);
        desired
    }

    /// Every frontend with its backends, by identifier.
    pub(super) fn list(&self) -> Vec<ServiceView> {
        let view = |(frontend, service, backends, ending): (Place, Key, Vec<Place>, Vec<Place>)| {
            let id =
                self.frontends.known(frontend).and_then(|number| u16::try_from(number).ok())?;
            let prefer = self.services.get(&service).and_then(|service| service.global);
            let remote = backends.first().is_some_and(|one| self.remotes.has(&service, *one));
            let preferred = match prefer {
                Some(Prefer::Local) => !remote && !backends.is_empty(),
                Some(Prefer::Remote) => remote,
                Some(Prefer::Any) | None => false,
            };
            Some(ServiceView { id, service, frontend, backends, ending, preferred })
        };
        let mut views: Vec<ServiceView> = self.resolve().into_iter().filter_map(view).collect();
        views.sort_by_key(|view| view.id);
        views
    }

    /// Frontends, whose they are, who gets connections and who only finishes some.
    fn resolve(&self) -> Vec<(Place, Key, Vec<Place>, Vec<Place>)> {
        let mut all = Vec::new();
        for (key, service) in &self.services {
            for port in &service.ports {
                for address in &service.addresses {
                    let (active, ending) = self.backends_of(key, service, port, address.is_ipv4());
                    all.push(((*address, port.port, port.proto), key.clone(), active, ending));
                }
            }
        }
        all
    }

    fn backends_of(
        &self,
        key: &Key,
        service: &Slim,
        port: &ServicePort,
        ipv4: bool,
    ) -> (Vec<Place>, Vec<Place>) {
        let mut found: Vec<(SlimEndpoint, Place)> = Vec::new();
        for slice in self.slices.get(key).into_iter().flat_map(BTreeMap::values) {
            let target = slice
                .ports
                .iter()
                .find(|target| target.name == port.name && target.proto == port.proto);
            let Some(target) = target else { continue };
            let fits = |one: &&SlimEndpoint| {
                one.address.is_ipv4() == ipv4 && (one.local || !service.local_only)
            };
            found.extend(
                slice
                    .endpoints
                    .iter()
                    .filter(fits)
                    .map(|one| (*one, (one.address, target.port, port.proto))),
            );
        }
        let places = |pick: fn(&SlimEndpoint) -> bool| -> Vec<Place> {
            let set: BTreeSet<Place> =
                found.iter().filter(|(one, _)| pick(one)).map(|(_, place)| *place).collect();
            set.into_iter().collect()
        };
        let (mut ready, draining) =
            (places(|one| one.ready), places(|one| one.draining && !one.ready));
        if let Some(prefer) = service.global.filter(|_| !service.local_only) {
            let remote: Vec<Place> = self.remotes.behind(key, port, ipv4).collect();
            match prefer {
                Prefer::Local if !ready.is_empty() => {}
                Prefer::Remote if !remote.is_empty() => ready = remote,
                _ => ready.extend(remote),
            }
        }
        if ready.is_empty() { (draining, Vec::new()) } else { (ready, draining) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cilia_loader::{BackendState, ServiceEntry, ServiceKey};
    use cilia_runtime::watch::Key;
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::{Value, json};

    use super::super::map::Written;
    use super::super::source;
    use super::Table;

    fn from<T: serde::de::DeserializeOwned>(value: impl Into<Value>) -> T {
        serde_json::from_value(value.into()).expect("an object of its kind")
    }

    fn service(table: &mut Table, spec: impl Into<Value>) {
        let spec: Value = spec.into();
        let service: Service =
            from(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}));
        table.set_service(Key::of(&service), source::service(&service));
    }

    /// Endpoints as address, ready, terminating.
    fn slice(table: &mut Table, name: &str, endpoints: &[(&str, bool, bool)]) {
        let endpoint = |(address, ready, terminating): &(&str, bool, bool)| {
            json!({"addresses": [address], "nodeName": "n1",
                "conditions": {"ready": ready, "serving": true, "terminating": terminating}})
        };
        let slice: EndpointSlice = from(json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        }));
        table.set_slice(Key::of(&slice), source::slice(&slice, "n1"));
    }

    fn web() -> Value {
        json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]})
    }

    /// The addresses behind a frontend, by slot.
    fn behind(table: &mut Table, address: &str, port: u16, proto: u8) -> Vec<String> {
        let desired = table.desired();
        let key = |slot| ServiceKey {
            address: address.parse().expect("an address"),
            port,
            proto,
            slot,
            scope: 0,
        };
        let count = desired.services[&key(0)].count;
        let backend =
            |slot| desired.backends[&desired.services[&key(slot)].backend].address.to_string();
        (1..=count).map(backend).collect()
    }

    #[test]
    fn frontends_lead_to_ready_endpoints() {
        let mut table = Table::default();
        slice(
            &mut table,
            "a",
            &[("10.0.0.1", true, false), ("10.0.0.2", false, true), ("10.0.0.3", false, false)],
        );
        slice(&mut table, "b", &[("10.0.1.1", true, false), ("10.0.0.1", true, false)]);
        service(&mut table, web());
        assert_eq!(behind(&mut table, "10.96.0.1", 80, 6), ["10.0.0.1", "10.0.1.1"]);
        assert_eq!(behind(&mut table, "10.96.0.1", 53, 17), [""; 0], "no slice has this port");
        assert_eq!(behind(&mut table, "fd00::1", 80, 6), [""; 0], "no backend of this family");
        let ending: Vec<_> = table
            .desired()
            .backends
            .into_values()
            .filter(|b| b.state == BackendState::Terminating)
            .collect();
        assert_eq!(ending.len(), 1, "what ends may finish");

        slice(&mut table, "a", &[("10.0.0.2", false, true)]);
        slice(&mut table, "b", &[]);
        assert_eq!(
            behind(&mut table, "10.96.0.1", 80, 6),
            ["10.0.0.2"],
            "nobody is ready: what still answers"
        );
        service(
            &mut table,
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}),
        );
        assert!(table.desired().services.is_empty());
    }

    #[test]
    fn clients_keep_their_backend_where_the_service_says_so() {
        let cases: &[(&str, Value, (u16, u32))] = &[
            ("none", json!({"sessionAffinity": "None"}), (0, 0)),
            (
                "by default",
                json!({"sessionAffinity": "ClientIP"}),
                (ServiceEntry::AFFINITY, 10_800),
            ),
            (
                "for as long as it says",
                json!({"sessionAffinity": "ClientIP",
                    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}),
                (ServiceEntry::AFFINITY, 60),
            ),
        ];
        for (name, affinity, want) in cases {
            let (mut table, mut spec) = (Table::default(), web());
            spec.as_object_mut().expect("an object").extend(affinity.as_object().cloned().unwrap());
            service(&mut table, spec);
            slice(&mut table, "a", &[("10.0.0.1", true, false)]);
            let entries = table.desired().services;
            let of_slot = |wanted: u16| {
                let found = entries.iter().find(|(key, _)| (key.port, key.slot) == (80, wanted));
                found.map(|(_, entry)| (entry.flags, entry.backend))
            };
            assert_eq!(of_slot(0), Some(*want), "{name}");
            assert_eq!(of_slot(1), Some((0, 1)), "{name}: a slot names its backend");
        }
    }

    #[test]
    fn identifiers_outlive_the_agent() {
        let mut table = Table::default();
        service(&mut table, web());
        slice(&mut table, "a", &[("10.0.0.9", true, false), ("10.0.0.1", true, false)]);
        let first = table.desired();
        slice(&mut table, "a", &[("10.0.0.1", true, false), ("10.0.0.2", true, false)]);
        let second = table.desired();
        let written = Written::from_desired(&second);

        let mut restarted = Table::default();
        restarted.restore(&written);
        slice(&mut restarted, "a", &[("10.0.0.1", true, false), ("10.0.0.2", true, false)]);
        service(&mut restarted, web());
        assert_eq!(restarted.desired(), second);
        let ids = |desired: &super::Desired| -> BTreeMap<_, _> {
            desired.backends.iter().map(|(id, backend)| (backend.address, *id)).collect()
        };
        let kept = "10.0.0.1".parse().expect("an address");
        assert_eq!(ids(&first)[&kept], ids(&second)[&kept]);
    }
}
