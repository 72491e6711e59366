//! Events as they happen, a JSON object in a line each.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use cilia_loader::{Direction, Event as Datapath};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::Parts;
use crate::events::{Event, line};

/// Which events are wanted. Empty lists want all.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    types: Vec<String>,
    from: Vec<u32>,
    to: Vec<u32>,
    related: Vec<u32>,
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, RawQuery(query): RawQuery) -> Response {
    let wanted = Wanted::parse(query.as_deref().unwrap_or_default());
    let events = parts.bus.subscribe();
    let lines = stream::unfold((events, wanted), |(mut events, wanted)| async move {
        loop {
            let value = match events.recv().await {
                Ok(event) if wanted.wants(&event) => show(&event),
                Ok(_) => continue,
                Err(RecvError::Lagged(count)) => json!({"type": "lost", "count": count}),
                Err(RecvError::Closed) => return None,
            };
            let line = Bytes::from(format!("{value}\n"));
            return Some((Ok::<_, std::convert::Infallible>(line), (events, wanted)));
        }
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

impl Wanted {
    fn parse(query: &str) -> Self {
        let mut wanted = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let numbers = || value.split(',').filter_map(|number| number.parse::<u32>().ok());
            match name {
                "type" => wanted.types.extend(value.split(',').map(str::to_owned)),
                "from" => wanted.from.extend(numbers()),
                "to" => wanted.to.extend(numbers()),
                "related-to" => wanted.related.extend(numbers()),
                _ => {}
            }
        }
        wanted
    }

    fn wants(&self, event: &Event) -> bool {
        let (kind, from, to) = match &event.what {
            Datapath::Drop(drop) => {
                ("drop", u32::from(drop.packet.endpoint), drop.destination_endpoint)
            }
            Datapath::Trace(trace) => {
                ("trace", u32::from(trace.packet.endpoint), u32::from(trace.destination_endpoint))
            }
            Datapath::Verdict(verdict) => {
                let endpoint = u32::from(verdict.packet.endpoint);
                (
                    "policy-verdict",
                    endpoint,
                    if verdict.direction == Direction::Ingress { endpoint } else { 0 },
                )
            }
        };
        let named = |list: &[u32], endpoint: u32| list.is_empty() || list.contains(&endpoint);
        (self.types.is_empty() || self.types.iter().any(|name| name == kind))
            && named(&self.from, from)
            && named(&self.to, to)
            && (self.related.is_empty()
                || self.related.contains(&from)
                || self.related.contains(&to))
    }
}

fn show(event: &Event) -> Value {
    let seconds = event.time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let mut shown = match &event.what {
        Datapath::Drop(drop) => {
            json!({"type": "drop", "reason": drop.reason, "reasonText": drop.reason_text(),
            "source": drop.packet.endpoint, "destination": drop.destination_endpoint,
            "sourceIdentity": drop.source_identity, "destinationIdentity": drop.destination_identity,
            "ifindex": drop.ifindex})
        }
        Datapath::Trace(trace) => json!({"type": "trace", "point": trace.point_text(),
            "source": trace.packet.endpoint, "destination": trace.destination_endpoint,
            "sourceIdentity": trace.source_identity, "destinationIdentity": trace.destination_identity,
            "ifindex": trace.ifindex, "state": format!("{:?}", trace.reason).to_lowercase()}),
        Datapath::Verdict(verdict) => {
            json!({"type": "policy-verdict", "source": verdict.packet.endpoint,
            "remoteIdentity": verdict.remote_identity,
            "direction": if verdict.direction == Direction::Ingress { "ingress" } else { "egress" },
            "action": if verdict.denied.is_some() { "deny" } else { "allow" },
            "reason": verdict.denied, "reasonText": verdict.reason_text(), "audited": verdict.audited,
            "proto": verdict.proto, "port": verdict.port, "cookie": verdict.cookie})
        }
    };
    shown["time"] = json!(seconds);
    shown["summary"] = json!(event.summary.as_ref().map(ToString::to_string));
    shown["packet"] = json!(event.summary);
    shown["line"] = json!(line(event));
    shown
}

#[cfg(test)]
mod tests {
    use super::Wanted;

    #[test]
    fn queries_name_what_is_wanted() {
        let wanted = Wanted::parse("type=drop&type=trace&from=12,13&related-to=7");
        assert_eq!(wanted.types, ["drop", "trace"]);
        assert_eq!((wanted.from, wanted.related), (vec![12, 13], vec![7]));
        assert_eq!(Wanted::parse(""), Wanted::default());
    }
}
