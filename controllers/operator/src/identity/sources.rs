//! Says in the duty's terms what the watches tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Filter, Fixed, PodLabels, Record};
use cilia_runtime::watch::{Change, Event, Key};
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;

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
    /// Nothing of pods that have the node's network, that have ended, or that ask for a fixed number.
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(pod: Pod, filter: &Filter, fixed: &Fixed, cluster: &str) -> Option<Self> {
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
        let labels = filter.apply(&labels.own());
        fixed.asked_for(&labels).is_none().then_some(Self { labels })
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
        labels: identity.labels().shared(),
        created: created.map_or(0, |time| time.0.as_second()),
        // That is for agents, who use identities, and the collector, who marks them.
        marked: false,
    }
}

// What they list is kept by the core alone, which tells news from repetitions.

pub(super) fn endpoint(event: Event<CiliumEndpoint>) -> Heard {
    users(event, |endpoint| {
        let identity = endpoint.status.as_ref().and_then(|status| status.identity.as_ref());
        identity.and_then(|identity| number(identity.id?)).into_iter().collect()
    })
}

pub(super) fn slice(event: Event<CiliumEndpointSlice>) -> Heard {
    users(event, |slice| {
        let numbers = slice.endpoints.iter().filter_map(|entry| number(entry.id?));
        let mut numbers: Vec<NumericIdentity> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    })
}

fn users<K: Resource>(event: Event<K>, of: impl Fn(&K) -> Vec<NumericIdentity>) -> Heard {
    match event {
        Event::Applied(object) => Heard::Users(Key::of(&object), of(&object)),
        Event::Deleted(key) => Heard::Users(key, Vec::new()),
        Event::Synced => Heard::Synced,
    }
}

fn number(id: i64) -> Option<NumericIdentity> {
    u32::try_from(id).ok().map(NumericIdentity)
}
