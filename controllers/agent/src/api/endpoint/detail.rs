//! What is told of one endpoint besides itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::super::Parts;
use super::super::monitor::time;
use super::{Found, labels};
use crate::endpoint::{EndpointState, LocalEndpoint};
use crate::policy::{EndpointView, Trouble};

/// Its states, the last one first.
pub(in super::super) async fn log(State(parts): State<Arc<Parts>>, found: Found) -> Response {
    let states = parts.endpoints.log(found.id());
    let entry = |(moment, state): &(std::time::SystemTime, EndpointState)| {
        let code = if *state == EndpointState::Invalid { "Failure" } else { "OK" };
        json!({"timestamp": time(*moment), "code": code, "state": state, "message": message(*state)})
    };
    Json(states.iter().rev().map(entry).collect::<Vec<Value>>()).into_response()
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
    let base = match state {
        EndpointState::Ready => "OK",
        EndpointState::Creating | EndpointState::WaitingForIdentity | EndpointState::NotReady => {
            "Bootstrap"
        }
        EndpointState::Invalid => "Failure",
        _ => "Pending",
    };
    let gone = matches!(state, EndpointState::Disconnecting | EndpointState::Disconnected);
    let enforced = match policy {
        Some(EndpointView { error: Some(_), .. }) => "Failure",
        Some(policy) if base == "OK" => policy.trouble().map_or(base, Trouble::health),
        None if base == "OK" => "Pending",
        _ => base,
    };
    let overall = if base == "OK" { enforced } else { base };
    json!({"overallHealth": overall, "bpf": base, "policy": enforced, "connected": !gone})
}

pub(in super::super) async fn get_labels(found: Found) -> Response {
    let status = match &found {
        Found::Pod(endpoint) => labels_of(endpoint),
        Found::Host(host) => shown_labels(&host.labels, &[]),
    };
    Json(json!({"spec": {"user": []}, "status": status})).into_response()
}

/// A pod's labels: those that make its identity, and Kubernetes' others.
pub(super) fn labels_of(endpoint: &LocalEndpoint) -> Value {
    let relevant = labels(&endpoint.labels);
    let all = endpoint.pod_labels.iter().map(|(key, value)| format!("k8s:{key}={value}"));
    let derived: Vec<String> = all.filter(|label| !relevant.contains(label)).collect();
    shown_labels(&relevant, &derived)
}

pub(super) fn shown_labels(relevant: &[String], derived: &[String]) -> Value {
    json!({
        "realized": {"user": []},
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
            (EndpointState::WaitingForIdentity, "Bootstrap", true),
            (EndpointState::Regenerating, "Pending", true),
            (EndpointState::Disconnecting, "Pending", false),
            (EndpointState::Invalid, "Failure", true),
        ];
        for (state, overall, connected) in cases {
            let health = health(state, None);
            assert_eq!(health["overallHealth"], overall, "{state:?}");
            assert_eq!(health["connected"], connected, "{state:?}");
        }
    }
}
