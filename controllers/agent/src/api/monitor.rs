//! Events as they happen, a JSON object in a line each.
//!
//! A listener that reads slowly holds up nobody: the connection to it fills, and what it can't be
//! told in time is counted and left out.

mod rules;
mod wanted;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use cilia_loader::{Direction, Event as Datapath};
use cilia_policy::Origin;
use futures::{StreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::query::{Pairs, bad_request, hex};
use super::{Parts, status};
use crate::events::{Event, action, device, line, matched};
use rules::Rules;
use wanted::Wanted;

/// Who may listen at the same time: each costs the agent a bit for every event.
const MOST: usize = 16;

/// Those who listen.
#[derive(Debug, Clone)]
pub(super) struct Listeners(Arc<Semaphore>);

impl Default for Listeners {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl Listeners {
    /// A place for as long as it is kept; nothing if all are taken.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }

    /// The answer to one too many.
    pub(super) fn full() -> Response {
        let text = format!("{MOST} listen already: try again when one of them is done\n");
        (StatusCode::TOO_MANY_REQUESTS, text).into_response()
    }
}

pub(super) async fn get(
    State(parts): State<Arc<Parts>>,
    Extension(listeners): Extension<Listeners>,
    Query(query): Query<Pairs>,
) -> Response {
    let wanted = match Wanted::parse(&query) {
        Ok(wanted) => wanted,
        Err(why) => return bad_request(why),
    };
    let Some(place) = listeners.place() else { return Listeners::full() };
    let events = parts.bus.subscribe();
    let start = json!({"type": "start", "line": status::listening()});
    let first = stream::once(std::future::ready(Ok(Bytes::from(format!("{start}\n")))));
    let rules = Rules::new(parts.enforcer.clone());
    let state = (events, wanted, parts, rules, place);
    let lines = stream::unfold(state, |(mut events, wanted, parts, mut rules, place)| async move {
        loop {
            let value = match events.recv().await {
                Ok(event) if wanted.wants(&event, &parts.endpoints) => {
                    let rules = rules.of(&event).await;
                    show(&event, &wanted, &rules)
                }
                Ok(_) => continue,
                Err(RecvError::Lagged(count)) => json!({"type": "lost", "count": count}),
                Err(RecvError::Closed) => return None,
            };
            let line = Bytes::from(format!("{value}\n"));
            return Some((
                Ok::<_, std::convert::Infallible>(line),
                (events, wanted, parts, rules, place),
            ));
        }
    });
    let body = Body::from_stream(first.chain(lines));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// A moment as others write it.
pub(super) fn time(moment: SystemTime) -> String {
    Timestamp::try_from(moment).map(|moment| format!("{moment:.3}")).unwrap_or_default()
}

fn show(event: &Event, wanted: &Wanted, rules: &[Arc<Origin>]) -> Value {
    let seconds = event.time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let (mut shown, packet) = match &event.what {
        Datapath::Drop(drop) => {
            let shown = json!({"type": "drop", "reason": drop.reason, "reasonText": drop.reason_text(),
                "source": drop.packet.endpoint, "destination": drop.destination_endpoint,
                "sourceIdentity": drop.source_identity, "destinationIdentity": drop.destination_identity,
                "ifindex": drop.ifindex, "extError": drop.ext_error});
            (shown, &drop.packet)
        }
        Datapath::Trace(trace) => {
            let shown = json!({"type": "trace", "point": trace.point_text(),
                "source": trace.packet.endpoint, "destination": trace.destination_endpoint,
                "sourceIdentity": trace.source_identity, "destinationIdentity": trace.destination_identity,
                "ifindex": trace.ifindex, "device": device(trace.ifindex),
                "state": format!("{:?}", trace.reason).to_lowercase()});
            (shown, &trace.packet)
        }
        Datapath::Verdict(verdict) => {
            let shown = json!({"type": "policy-verdict", "source": verdict.packet.endpoint,
                "remoteIdentity": verdict.remote_identity,
                "direction": if verdict.direction == Direction::Ingress { "ingress" } else { "egress" },
                "action": action(verdict),
                "reason": verdict.denied, "reasonText": verdict.reason_text(), "audited": verdict.audited,
                "proto": verdict.proto, "port": verdict.port, "cookie": verdict.cookie, "match": matched(verdict.matched),
                "rules": rules::show(rules)});
            (shown, &verdict.packet)
        }
    };
    if wanted.bytes {
        shown["bytes"] = json!(hex(&packet.bytes));
    }
    shown["hash"] = json!(packet.hash);
    shown["length"] = json!(packet.length);
    shown["time"] = json!(seconds);
    shown["summary"] = json!(event.summary.as_ref().map(ToString::to_string));
    shown["packet"] = json!(event.summary);
    shown["line"] = json!(line(event, wanted.numeric, rules));
    shown
}
