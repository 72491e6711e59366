//! Says in the duty's terms what the watches tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Filter, PodLabels, Record};
use cilia_runtime::watch::{Change, Event, Key};
use k8s_openapi::api::core::v1::Pod;

/// Something has changed.
#[derive(Debug)]
pub(super) enum Heard {
    Pod(Key),
    /// Those labels of a namespace that count.
    Namespace(Arc<str>),
    Identity(NumericIdentity, Record),
    IdentityGone(NumericIdentity),
    /// A slice or an endpoint lists these identities now.
    Users(Key, Vec<NumericIdentity>),
    /// Nothing that concerns us.
    Nothing,
    /// One of the sources is complete.
    Synced,
}

/// What is kept of a pod: 24 bytes a label, whose names and values are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodState {
    /// The labels of its identity but those that come from its namespace.
    pub(super) labels: Labels,
}

impl PodState {
    /// Nothing of pods that have the node's network, or that have ended.
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(pod: Pod, filter: &Filter, cluster: &str) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if spec.host_network.unwrap_or_default() || phase == "Succeeded" || phase == "Failed" {
            return None;
        }
        let none = BTreeMap::new();
        let labels = PodLabels {
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
            service_account: spec.service_account_name.as_deref().unwrap_or_default(),
            cluster,
            pod: pod.metadata.labels.as_ref().unwrap_or(&none),
            namespace_labels: &none,
        };
        Some(Self { labels: filter.apply(&labels.own()) })
    }
}

pub(super) fn pod(change: Change<PodState>) -> Heard {
    match change {
        Change::Object { key, .. } => Heard::Pod(key),
        Change::Synced => Heard::Synced,
    }
}

pub(super) fn namespace(change: Change<Labels>) -> Heard {
    match change {
        Change::Object { key, new: Some(_), .. } => Heard::Namespace(key.name),
        // Its pods go by themselves.
        Change::Object { .. } => Heard::Nothing,
        Change::Synced => Heard::Synced,
    }
}

pub(super) fn identity(event: Event<CiliumIdentity>) -> Heard {
    match event {
        Event::Applied(identity) => match identity.number() {
            Some(number) => Heard::Identity(number, record(&identity)),
            None => Heard::Nothing,
        },
        Event::Deleted(key) => match key.name.parse() {
            Ok(number) => Heard::IdentityGone(NumericIdentity(number)),
            Err(_) => Heard::Nothing,
        },
        Event::Synced => Heard::Synced,
    }
}

/// What counts of an identity.
pub(super) fn record(identity: &CiliumIdentity) -> Record {
    let created = identity.metadata.creation_timestamp.as_ref();
    Record {
        labels: Arc::new(identity.labels()),
        created: created.map_or(0, |time| time.0.as_second()),
        // That is for agents, who use identities, and the collector, who marks them.
        marked: false,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
pub(super) fn of_endpoint(endpoint: CiliumEndpoint) -> Option<Vec<NumericIdentity>> {
    let identity = endpoint.status.as_ref().and_then(|status| status.identity.as_ref());
    Some(vec![number(identity?.id?)?])
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
#[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
pub(super) fn of_slice(slice: CiliumEndpointSlice) -> Option<Vec<NumericIdentity>> {
    let numbers = slice.endpoints.iter().filter_map(|entry| number(entry.id?));
    let mut numbers: Vec<NumericIdentity> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

fn number(id: i64) -> Option<NumericIdentity> {
    u32::try_from(id).ok().map(NumericIdentity)
}

pub(super) fn users(change: Change<Vec<NumericIdentity>>) -> Heard {
    match change {
        Change::Object { key, new, .. } => {
            Heard::Users(key, new.map(|numbers| numbers.to_vec()).unwrap_or_default())
        }
        Change::Synced => Heard::Synced,
    }
}
