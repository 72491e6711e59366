//! Explains verdicts, and what a change of policies would cut, by the rules and identities of this agent.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_crds::{CiliumEndpoint, NumericIdentity};
use cilia_loader::Direction;
use cilia_policy::{Flow, Party};
use kube::Api;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Parts;
use super::super::query::bad_request;

/// The most policies in a change, and the longest name of a side.
const MOST: usize = 10_000;
const LONGEST: usize = 512;

/// Which flow is asked about.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Asked {
    from: String,
    to: String,
    proto: u8,
    /// By number, or by the name that the receiver gives it.
    port: String,
}

pub(in super::super) async fn explain(
    State(parts): State<Arc<Parts>>,
    Query(asked): Query<Asked>,
) -> Response {
    if asked.port.len() > LONGEST {
        return bad_request(format!("a port's name has at most {LONGEST} bytes"));
    }
    let mut sides = Vec::new();
    for text in [&asked.from, &asked.to] {
        match party(&parts, text).await {
            Ok(side) => sides.push(side),
            Err(answer) => return answer,
        }
    }
    let [Some(to), Some(from)] = [sides.pop(), sides.pop()] else {
        return bad_request("two sides are needed");
    };
    let told = parts.enforcer.ask(move |rules| {
        let port = cilia_policy::port(rules, &to, asked.proto, &asked.port)?;
        Ok::<_, String>(cilia_policy::explain(rules, &Flow { from, to, proto: asked.proto, port }))
    });
    match told.await {
        Some(Ok(told)) => {
            Json(json!({"explanation": told, "text": told.to_string()})).into_response()
        }
        Some(Err(fault)) => bad_request(fault),
        None => stopping(),
    }
}

/// Which of the flows of late these policies, put in the place of their namesakes, would cut.
pub(in super::super) async fn diff(
    State(parts): State<Arc<Parts>>,
    Json(objects): Json<Vec<Value>>,
) -> Response {
    if objects.is_empty() || objects.len() > MOST {
        return bad_request(format!("a change has 1 to {MOST} policies"));
    }
    let config = parts.enforcer.config();
    let mut changes = Vec::new();
    for object in &objects {
        match cilia_policy::read(object, config) {
            Some((id, Ok(parsed))) => changes.push((id, parsed.rules)),
            Some((id, Err(fault))) => return bad_request(format!("{id}: {fault}")),
            None => return bad_request("the change holds something that is no policy"),
        }
    }
    let (flows, shown) = allowed_flows(&parts);
    let asked = parts.enforcer.ask(move |before| {
        let mut after = before.clone();
        for (id, rules) in changes {
            after.set_policy(id, rules);
        }
        cilia_policy::cuts(before, &mut after, &flows)
    });
    let Some(cuts) = asked.await else { return stopping() };
    let cut = cuts.iter().map(
        |cut| json!({"flow": shown[cut.flow], "after": cut.after, "text": cut.after.to_string()}),
    );
    Json(json!({"flows": shown.len(), "cut": cut.collect::<Vec<_>>()})).into_response()
}

/// The flows that passed lately, and how they are shown.
fn allowed_flows(parts: &Parts) -> (Vec<Flow>, Vec<Value>) {
    let mut flows = Vec::new();
    for (flow, seen) in parts.bus.flows() {
        let Some(local) = parts.endpoints.get(flow.endpoint) else { continue };
        if flow.denied.is_some() && !flow.audited {
            continue;
        }
        let own = Party {
            identity: local.identity,
            address: local.addresses().next(),
            ports: crate::policy::named_ports(&local),
        };
        let identity = NumericIdentity(flow.peer);
        let peer = Party {
            identity: (!identity.is_local()).then_some(identity),
            address: flow.address,
            ..Party::default()
        };
        let (from, to, way) = match flow.direction {
            Direction::Egress => (own, peer, "egress"),
            Direction::Ingress => (peer, own, "ingress"),
        };
        let shown = json!({"pod": local.key().to_string(), "direction": way,
            "peer": {"identity": flow.peer, "address": flow.address},
            "proto": flow.proto, "port": flow.port, "count": seen.count});
        flows.push((Flow { from, to, proto: flow.proto, port: flow.port }, shown));
    }
    flows.into_iter().unzip()
}

/// Whom a text means: an identity's number, an address, an entity, or a pod.
async fn party(parts: &Parts, text: &str) -> Result<Party, Response> {
    if text.len() > LONGEST {
        return Err(bad_request(format!("a name has at most {LONGEST} bytes")));
    }
    if let Ok(number) = text.parse::<u32>() {
        let identity = NumericIdentity(number);
        let known = parts.enforcer.ask(move |rules| rules.labels(identity).is_some()).await;
        return match known {
            Some(true) => Ok(Party { identity: Some(identity), ..Party::default() }),
            Some(false) => Err(bad_request(format!("there is no identity {number}"))),
            None => Err(stopping()),
        };
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(of_address(parts, address));
    }
    if let Some(identity) = cilia_policy::entity(text) {
        return Ok(Party { identity: Some(identity), ..Party::default() });
    }
    let Some((namespace, name)) = text.split_once('/') else {
        return Err(bad_request(format!(
            "{text:?} is no pod (NAMESPACE/NAME), no address, no identity's number and no entity such as host"
        )));
    };
    let local = parts.endpoints.list();
    let local = local.iter().find(|one| one.namespace == namespace && one.pod == name);
    if let Some(local) = local {
        return Ok(Party {
            identity: local.identity,
            address: local.addresses().next(),
            ports: crate::policy::named_ports(local),
        });
    }
    let api = Api::<CiliumEndpoint>::namespaced(parts.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(|error| {
        (StatusCode::BAD_GATEWAY, format!("get CiliumEndpoint {text}: {error}")).into_response()
    })?;
    let status = found.and_then(|found| found.status);
    let Some(status) = status else {
        return Err(bad_request(format!("there is no endpoint {text}")));
    };
    let identity = status.identity.and_then(|identity| identity.id);
    let pairs = status.networking.map(|networking| networking.addressing).unwrap_or_default();
    let mut addresses = pairs.into_iter().flat_map(|pair| [pair.ipv4, pair.ipv6]).flatten();
    let port = |port: &cilia_crds::ciliumendpoint::networking::NamedPort| {
        let proto = crate::ipcache::protocol(port.protocol.as_deref()?)?;
        Some(((port.name.as_deref()?.to_ascii_lowercase().into(), proto), port.port?))
    };
    Ok(Party {
        identity: identity.and_then(|id| u32::try_from(id).ok()).map(NumericIdentity),
        address: addresses.find_map(|text| text.parse().ok()),
        ports: status.named_ports.iter().filter_map(port).collect(),
    })
}

/// Who has an address here: an endpoint, or whom the ipcache names for it.
fn of_address(parts: &Parts, address: IpAddr) -> Party {
    let local = parts.endpoints.list();
    if let Some(local) = local.iter().find(|one| one.addresses().any(|own| own == address)) {
        return Party {
            identity: local.identity,
            address: Some(address),
            ports: crate::policy::named_ports(local),
        };
    }
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let entries = parts.ipcache.entries();
    let entry = entries.iter().find(|(prefix, ..)| *prefix == (address, whole));
    let identity = entry.map(|(_, value, _)| NumericIdentity(value.identity));
    let identity = identity.filter(|identity| identity.0 >> 24 != cilia_policy::CIDR_SCOPE >> 24);
    Party { identity, address: Some(address), ..Party::default() }
}

fn stopping() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping").into_response()
}
