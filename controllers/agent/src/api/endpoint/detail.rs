//! What is told of one endpoint besides itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::super::Parts;
use super::super::monitor::time;
use super::{Found, labels};
use crate::endpoint::{EndpointState, Endpoints, LocalEndpoint};
use crate::policy::{EndpointView, Trouble};

/// Its states, the last one first.
pub(in super::super) async fn log(State(parts): State<Arc<Parts>>, found: Found) -> Response {
    Json(states(&parts.endpoints, found.id())).into_response()
}

/// The last states of an endpoint, the last one first.
pub(super) fn states(endpoints: &Endpoints, id: u16) -> Vec<Value> {
    let states = endpoints.log(id);
    let entry = |(moment, state): &(std::time::SystemTime, EndpointState)| {
        let code = if *state == EndpointState::Invalid { "Failure" } else { "OK" };
        json!({"timestamp": time(*moment), "code": code, "state": state, "message": message(*state)})
    };
    states.iter().rev().map(entry).collect()
}

fn message(state: EndpointState) -> &'static str {
    match state {
        EndpointState::Creating => "Being set up",
        EndpointState::WaitingForIdentity => "Waiting for the identity of its labels",
        EndpointState::NotReady => "Not ready",
        EndpointState::WaitingToRegenerate => "Waiting for its policy",
        EndpointState::Regenerating => "Its policy is being put in place",
        EndpointState::Restoring => "Taken over from a former agent",
        EndpointState::Ready => "Its policy is in place",
        EndpointState::Disconnecting => "Being taken off the network",
        EndpointState::Disconnected => "Off the network",
        EndpointState::Invalid => "It can't be used",
    }
}

pub(in super::super) async fn healthz(State(parts): State<Arc<Parts>>, found: Found) -> Response {
    let view = parts.enforcer.view().borrow().clone();
    let policy = view.endpoints.iter().find(|policy| policy.id == found.id());
    Json(health(found.state(), policy)).into_response()
}

pub(super) fn health(state: EndpointState, policy: Option<&EndpointView>) -> Value {
    let (base, waiting, connected) = match state {
        EndpointState::Ready => ("OK", "OK", true),
        EndpointState::Creating | EndpointState::WaitingForIdentity => {
            ("Disabled", "Bootstrap", true)
        }
        EndpointState::NotReady => ("Warning", "Warning", true),
        EndpointState::WaitingToRegenerate
        | EndpointState::Regenerating
        | EndpointState::Disconnecting => ("Pending", "Pending", true),
        EndpointState::Restoring | EndpointState::Disconnected | EndpointState::Invalid => {
            ("Disabled", "Disabled", false)
        }
    };
    let enforced = match policy {
        Some(EndpointView { error: Some(_), .. }) => "Failure",
        Some(policy) if base == "OK" => policy.trouble().map_or(base, Trouble::health),
        None if base == "OK" => "Pending",
        _ => waiting,
    };
    let overall = if base == "OK" { enforced } else { base };
    json!({"overallHealth": overall, "bpf": base, "policy": enforced, "connected": connected})
}

pub(in super::super) async fn get_labels(found: Found) -> Response {
    let status = match &found {
        Found::Pod(endpoint) => labels_of(endpoint),
        Found::Host(host) => shown_labels(&[], &host.labels, &[]),
    };
    Json(json!({"spec": status["realized"], "status": status})).into_response()
}

/// An endpoint's labels: those that make its identity, the user's apart, and Kubernetes' others.
pub(super) fn labels_of(endpoint: &LocalEndpoint) -> Value {
    let relevant = labels(&endpoint.own.without(&endpoint.labels));
    shown_labels(&endpoint.own.user(), &relevant, &derived(endpoint))
}

/// The labels of a pod that make no identity.
pub(super) fn derived(endpoint: &LocalEndpoint) -> Vec<String> {
    let label = |(key, value): (&String, &String)| {
        let counts = endpoint.labels.iter().any(|(name, _)| name.key == *key);
        let text =
            if value.is_empty() { format!("k8s:{key}") } else { format!("k8s:{key}={value}") };
        (!counts).then_some(text)
    };
    endpoint.pod_labels.iter().filter_map(label).collect()
}

pub(super) fn shown_labels(user: &[String], relevant: &[String], derived: &[String]) -> Value {
    json!({
        "realized": {"user": user},
        "security-relevant": relevant,
        "derived": derived,
        "disabled": [],
    })
}

#[cfg(test)]
mod tests {
    use super::health;
    use crate::endpoint::EndpointState;

    #[test]
    fn an_endpoint_is_as_well_as_its_state() {
        let cases = [
            (EndpointState::Ready, "Pending", true),
            (EndpointState::WaitingForIdentity, "Disabled", true),
            (EndpointState::NotReady, "Warning", true),
            (EndpointState::Regenerating, "Pending", true),
            (EndpointState::Disconnecting, "Pending", true),
            (EndpointState::Disconnected, "Disabled", false),
            (EndpointState::Invalid, "Disabled", false),
        ];
        for (state, overall, connected) in cases {
            let health = health(state, None);
            assert_eq!(health["overallHealth"], overall, "{state:?}");
            assert_eq!(health["connected"], connected, "{state:?}");
        }
    }
}
