//! Identities, and the addresses that have them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use cilia_crds::{Labels, NumericIdentity};
use ipnet::IpNet;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::endpoint::labels;
use super::query::{Pairs, bad_request, with_source, words};
use super::{Parts, not_found};

pub(super) async fn list(State(parts): State<Arc<Parts>>, Query(query): Query<Pairs>) -> Response {
    let mut wanted = Vec::new();
    for (name, value) in &query {
        match (name.as_str(), words(value)) {
            ("labels", Ok(labels)) => wanted.extend(labels.into_iter().map(with_source)),
            ("labels", Err(why)) => return bad_request(why),
            (other, _) => return bad_request(format!("{other:?} is not asked of identities")),
        }
    }
    let identities = known(&parts);
    let all = identities.iter().map(|(id, set)| show(*id, set));
    let has = |identity: &Value| {
        let of = identity["labels"].as_array().map_or(&[][..], Vec::as_slice);
        wanted.iter().all(|label| of.iter().any(|one| one.as_str() == Some(label)))
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
    let Ok(number) = id.parse() else {
        return bad_request(format!("{id:?} is not the number of an identity"));
    };
    let number = NumericIdentity(number);
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
) -> Response {
    let (mut within, mut wanted) = (None, Vec::new());
    for (name, value) in &query {
        let net = value.parse::<IpNet>().ok();
        let net = net.or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from));
        match (name.as_str(), net) {
            ("cidr", Some(net)) => within = Some(net),
            ("cidr", None) => return bad_request(format!("cidr: {value:?} is no prefix")),
            ("labels", _) => match words(value) {
                Ok(labels) => wanted.extend(labels.into_iter().map(with_source)),
                Err(why) => return bad_request(why),
            },
            (other, _) => return bad_request(format!("{other:?} is not asked of addresses")),
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
        if entries.is_empty() {
            return not_found("no address has an identity with all of these labels".into());
        }
    }
    if let Some(within) = within {
        entries.retain(|((address, length), ..)| {
            *length >= within.prefix_len() && within.contains(address)
        });
        if entries.is_empty() {
            return not_found(format!("no address is known in {within}"));
        }
    }
    let show = |((address, length), value, origin): &(
        crate::ipcache::Prefix,
        cilia_loader::RemoteEndpoint,
        _,
    )| {
        let origin: &crate::ipcache::Origin = origin;
        json!({
            "cidr": format!("{address}/{length}"),
            "identity": value.identity,
            "hostIP": value.tunnel.map(|node| node.to_string()),
            "encryptKey": value.key,
            "metadata": {"source": origin.name()},
        })
    };
    Json(entries.iter().map(show).collect::<Vec<Value>>()).into_response()
}
