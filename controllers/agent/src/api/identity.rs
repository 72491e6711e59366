//! Identities, and the addresses that have them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::endpoint::{asked_labels, labels};
use super::query::{Pairs, bad_request, number, without_nulls};
use super::{Parts, not_found};

pub(super) async fn list(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    body: Bytes,
) -> Response {
    // Cilium's clients ask in a body for the one that has just these labels.
    let of_query = asked_labels(&query, &Bytes::new());
    let (wanted, exactly) = match (of_query, asked_labels(&Pairs::new(), &body)) {
        (Ok(wanted), Ok(exactly)) => (wanted.unwrap_or_default(), exactly),
        (Err(fault), _) | (_, Err(fault)) => return fault.into_response(),
    };
    let identities = known(&parts);
    let all = identities.iter().map(|(id, set)| show(*id, set));
    let has = |identity: &Value| {
        let of = identity["labels"].as_array().map_or(&[][..], Vec::as_slice);
        let has = |label: &String| of.iter().any(|one| one.as_str() == Some(label));
        let exact = |exactly: &Vec<String>| exactly.len() == of.len() && exactly.iter().all(has);
        wanted.iter().all(has) && exactly.as_ref().is_none_or(exact)
    };
    let found: Vec<Value> = all.filter(has).collect();
    if found.is_empty() {
        return not_found("no identity has all of these labels".into());
    }
    Json(found).into_response()
}

/// Every identity: the cluster's, and those that only this node knows.
fn known(parts: &Parts) -> BTreeMap<NumericIdentity, Arc<Labels>> {
    let mut all = BTreeMap::clone(&parts.identities.snapshot());
    let local = Arc::clone(&parts.enforcer.view().borrow().local);
    all.extend(local.iter().map(|(number, set)| (*number, Arc::clone(set))));
    all
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, Path(id): Path<String>) -> Response {
    let number = number(&id, "ParseUint").ok().and_then(|number| number.try_into().ok());
    let Some(number) = number.map(NumericIdentity) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let here = parts.enforcer.view().borrow().local.get(&number).cloned();
    let set = here.or_else(|| parts.identities.labels(number).map(Arc::new));
    match set {
        Some(set) => Json(show(number, &set)).into_response(),
        None => not_found(format!("no identity {number}")),
    }
}

/// Identities of this node's endpoints, with how many have each.
pub(super) async fn of_endpoints(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    let mut counts: BTreeMap<NumericIdentity, (u32, Labels)> = BTreeMap::new();
    for endpoint in parts.endpoints.list() {
        if let Some(identity) = endpoint.identity {
            counts.entry(identity).or_insert_with(|| (0, endpoint.labels.clone())).0 += 1;
        }
    }
    let counted = counts
        .iter()
        .map(|(id, (count, set))| json!({"identity": show(*id, set), "refCount": count}));
    Json(counted.collect())
}

/// An identity; its sum is over the sorted labels, each with a semicolon behind it.
pub(super) fn show(id: NumericIdentity, set: &Labels) -> Value {
    let labels = labels(set);
    let text = labels.iter().fold(String::new(), |text, label| text + label + ";");
    let sum = super::query::hex(&Sha256::digest(text));
    json!({"id": id.0, "labels": labels, "labelsSHA256": sum})
}

/// Addresses with their identities; all, or those in a prefix, or of identities with all of these labels.
pub(super) async fn addresses(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    body: Bytes,
) -> Response {
    let wanted = match asked_labels(&query, &body) {
        Ok(wanted) => wanted.unwrap_or_default(),
        Err(fault) => return fault.into_response(),
    };
    let mut within = None;
    for (_, value) in query.iter().filter(|(name, _)| name == "cidr") {
        let net = value.parse::<IpNet>().ok();
        match net.or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from)) {
            Some(net) => within = Some(net),
            None => return bad_request(format!("invalid CIDR address: {value}")),
        }
    }
    let mut entries = parts.ipcache.entries();
    if !wanted.is_empty() {
        let has = |set: &Labels| {
            let of = labels(set);
            wanted.iter().all(|label| of.contains(label))
        };
        let mut known = known(&parts);
        known.retain(|_, set| has(set));
        entries.retain(|(_, value, _)| known.contains_key(&NumericIdentity(value.identity)));
    }
    if let Some(within) = within {
        entries.retain(|((address, length), ..)| {
            *length >= within.prefix_len() && within.contains(address)
        });
    }
    if entries.is_empty() {
        return not_found("no such address is known".into());
    }
    let local = parts.endpoints.list().into_iter();
    let pods: BTreeMap<u16, (String, String)> = local
        .map(|endpoint| (endpoint.id, (endpoint.namespace.clone(), endpoint.pod.clone())))
        .collect();
    let show = |((address, length), value, origin): &(
        crate::ipcache::Prefix,
        cilia_loader::RemoteEndpoint,
        _,
    )| {
        let origin: &crate::ipcache::Origin = origin;
        // Of others' pods the addresses are known, and not their names.
        let pod = match origin {
            crate::ipcache::Origin::Local(id) => pods.get(id),
            _ => None,
        };
        without_nulls(json!({
            "cidr": format!("{address}/{length}"),
            "identity": value.identity,
            "hostIP": value.tunnel.map(|node| node.to_string()),
            "encryptKey": value.key,
            "metadata": {
                "source": origin.name(),
                "namespace": pod.map(|(namespace, _)| namespace),
                "name": pod.map(|(_, name)| name),
            },
        }))
    };
    Json(entries.iter().map(show).collect::<Vec<Value>>()).into_response()
}
