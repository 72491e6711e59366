//! Lends addresses of the node on request: `/v1/ipam`.
//!
//! Pods have theirs by way of the CNI plugin, not from here. What is lent stays so until it is given back or, if
//! that was asked for, for ten minutes. The next agent knows nothing of it.

mod loans;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use cilia_ipam::{AddressError, Family};
use cilia_runtime::config::Config;
use ipnet::IpNet;
use serde_json::{Value, json};

pub use loans::Loans;

use super::form::{Fault, no_choice, on};
use super::query::{LONGEST_NAME, Pairs, bad_request, without_nulls};
use super::{Parts, not_found};

/// Who has an address that was lent to nobody in particular.
const NOBODY: &str = "not-specified";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    family: Option<Family>,
    owner: String,
    pool: String,
    expires: bool,
}

impl Asked {
    fn read(query: &Pairs, headers: &HeaderMap) -> Result<Self, Fault> {
        let mut asked =
            Self { family: None, owner: NOBODY.to_owned(), pool: String::new(), expires: false };
        for (name, value) in query {
            if value.len() > LONGEST_NAME {
                return Err(Fault::Text(format!("{name} has at most {LONGEST_NAME} bytes")));
            }
            match (name.as_str(), value.as_str()) {
                (_, "") => {}
                ("family", "ipv4") => asked.family = Some(Family::V4),
                ("family", "ipv6") => asked.family = Some(Family::V6),
                ("family", _) => return Err(no_choice("family", "query", &["ipv4", "ipv6"])),
                ("owner", owner) => owner.clone_into(&mut asked.owner),
                ("pool", pool) => pool.clone_into(&mut asked.pool),
                _ => {}
            }
        }
        let expiration = headers.get("expiration").and_then(|value| value.to_str().ok());
        asked.expires = expiration.is_some_and(on);
        Ok(asked)
    }
}

pub(super) async fn lend(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    headers: HeaderMap,
) -> Response {
    let asked = match Asked::read(&query, &headers) {
        Ok(asked) => asked,
        Err(fault) => return fault.into_response(),
    };
    let failed = |why: String| (StatusCode::BAD_GATEWAY, why).into_response();
    let on = |family: &Family| enabled(&parts.config, *family);
    let families: Vec<Family> = match asked.family {
        Some(family) if !on(&family) => return failed(disabled(family)),
        Some(family) => vec![family],
        None => Family::BOTH.into_iter().filter(on).collect(),
    };
    let default = parts.config.string("ipam-default-ip-pool");
    let pool = match asked.pool.as_str() {
        "" => default,
        other if parts.loans.has_pools() || other == default => other,
        other => {
            return failed(format!("pool {other}: ipam is not multi-pool, so there are no pools"));
        }
    };
    match parts.loans.lend(&families, pool, &asked.owner, asked.expires).await {
        Ok((given, uuid)) => {
            (StatusCode::CREATED, Json(answer(&parts, &given, pool, uuid.as_deref())))
                .into_response()
        }
        Err(error) => failed(error.to_string()),
    }
}

/// The node's own part in each family that is on: Cilium's `NodeAddressing`.
pub(super) fn addressing(parts: &Parts) -> Value {
    let local = parts.nodes.local();
    let of = |family: Family| {
        let v4 = family == Family::V4;
        let router = local.iter().flat_map(|node| &node.routers).find(|one| one.is_ipv4() == v4);
        let ranges = local.iter().flat_map(|node| &node.pod_cidrs);
        let range = ranges.into_iter().find(|range| matches!(range, IpNet::V4(_)) == v4);
        enabled(&parts.config, family).then(|| {
            json!({"enabled": true, "ip": router.map(ToString::to_string),
                "alloc-range": range.map(ToString::to_string)})
        })
    };
    without_nulls(json!({"ipv4": of(Family::V4), "ipv6": of(Family::V6)}))
}

/// `IPAMResponse`.
fn answer(parts: &Parts, given: &[IpAddr], pool: &str, uuid: Option<&str>) -> Value {
    let ranges = parts.nodes.local().map(|local| local.pod_cidrs.clone()).unwrap_or_default();
    let host = addressing(parts);
    let mut shown = json!({"address": {}, "host-addressing": host});
    for address in given {
        let v4 = address.is_ipv4();
        let family = if v4 { "ipv4" } else { "ipv6" };
        shown["address"][family] = json!(address);
        shown["address"][format!("{family}-pool-name")] = json!(pool);
        let all = ranges.iter().filter(|range| matches!(range, IpNet::V4(_)) == v4);
        shown[family] = json!({"ip": address, "gateway": host[family]["ip"],
            "cidrs": all.map(ToString::to_string).collect::<Vec<_>>()});
        if let Some(uuid) = uuid {
            shown["address"][format!("{family}-expiration-uuid")] = json!(uuid);
            shown[family]["expiration-uuid"] = json!(uuid);
        }
    }
    without_nulls(shown)
}

pub(super) async fn lend_this(
    State(parts): State<Arc<Parts>>,
    Path(address): Path<String>,
    Query(query): Query<Pairs>,
) -> Response {
    let (address, asked) = match (parse(&address), Asked::read(&query, &HeaderMap::new())) {
        (Ok(address), Ok(asked)) => (address, asked),
        (Err(why), _) => return bad_request(why),
        (_, Err(fault)) => return fault.into_response(),
    };
    if !enabled(&parts.config, Family::of(address)) {
        return (StatusCode::NOT_IMPLEMENTED, disabled(Family::of(address))).into_response();
    }
    match parts.loans.lend_this(address, &asked.owner) {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error @ AddressError::Taken { .. }) => {
            (StatusCode::CONFLICT, error.to_string()).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

pub(super) async fn give_back(
    State(parts): State<Arc<Parts>>,
    Path(address): Path<String>,
) -> Response {
    let address = match parse(&address) {
        Ok(address) => address,
        Err(why) => return bad_request(why),
    };
    if !enabled(&parts.config, Family::of(address)) {
        return (StatusCode::NOT_IMPLEMENTED, disabled(Family::of(address))).into_response();
    }
    if parts.loans.give_back(address) {
        return StatusCode::OK.into_response();
    }
    match parts.loans.owner(address) {
        None => not_found(format!("{address} is given to nobody\n")),
        Some(owner) => {
            let text = format!("{address} is in use by {owner}: it is free once that is gone\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

fn parse(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("Invalid IP address: {text}"))
}

fn enabled(config: &Config, family: Family) -> bool {
    config.bool(match family {
        Family::V4 => "enable-ipv4",
        Family::V6 => "enable-ipv6",
    })
}

fn disabled(family: Family) -> String {
    let (name, flag) = match family {
        Family::V4 => ("IPv4", "enable-ipv4"),
        Family::V6 => ("IPv6", "enable-ipv6"),
    };
    format!("{name} is not enabled ({flag})\n")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use cilia_ipam::Family;

    use super::{Asked, NOBODY};

    #[test]
    fn queries_and_headers_say_what_is_wanted() {
        let mut headers = HeaderMap::new();
        let read = |query: &[(&str, &str)], headers: &HeaderMap| {
            let query = query.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            Asked::read(&query, headers)
        };
        let plain = read(&[("family", "")], &headers).expect("nothing is wanted");
        assert_eq!((plain.family, plain.owner.as_str(), plain.expires), (None, NOBODY, false));
        headers.insert("expiration", "true".parse().expect("a value"));
        let query = [("family", "ipv6"), ("owner", "shop/web"), ("pool", "red")];
        let asked = read(&query, &headers).expect("all of it");
        let want = Asked {
            family: Some(Family::V6),
            owner: "shop/web".into(),
            pool: "red".into(),
            expires: true,
        };
        assert_eq!(asked, want);
        assert!(read(&[("family", "ipx")], &headers).is_err());
        assert!(read(&[("owner", &"o".repeat(600))], &headers).is_err());
    }
}
