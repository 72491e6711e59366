//! The services that are balanced here.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Parts;

pub(super) async fn list(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    Json(all(&parts))
}

/// Every frontend with its backends, by identifier.
pub(super) fn all(parts: &Parts) -> Vec<Value> {
    let name = |proto: u8| cilia_policy::l4::protocol::name(proto).unwrap_or("NONE");
    let show = |service: &crate::service::ServiceView| {
        let (address, port, proto) = service.frontend;
        let backend = |(address, port, proto): &(std::net::IpAddr, u16, u8), state: &str| json!({"ip": address, "port": port, "protocol": name(*proto), "state": state, "preferred": service.preferred && state == "active"});
        let active = service.backends.iter().map(|one| backend(one, "active"));
        let backends: Vec<Value> =
            active.chain(service.ending.iter().map(|one| backend(one, "terminating"))).collect();
        let spec = json!({
            "id": service.id,
            "frontend-address": {"ip": address, "port": port, "protocol": name(proto), "scope": "external"},
            "backend-addresses": backends,
            "flags": {"type": "ClusterIP", "name": service.service.name, "namespace": service.service.namespace},
        });
        json!({"spec": spec, "status": {"realized": spec}})
    };
    parts.services.list().iter().map(show).collect()
}
