//! The kernel's maps: which there are, what they hold, and what changes in them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use cilia_loader::Datapath;
use cilia_loader::maps::names;
use futures::stream;
use serde_json::{Value, json};

use super::form::on;
use super::monitor::{Listeners, time};
use super::query::{Pairs, bad_request};
use super::{Parts, bpf, failed, mount, not_found, status};

/// Maps that are listed, whether the agent owns their entries, and the members of an entry that
/// are its key. What the programs own may be large and is read only when it is asked for.
const MAPS: &[(&str, bool, &[&str])] = &[
    (names::BLOCK4, true, &["cidr"]),
    (names::BLOCK6, true, &["cidr"]),
    (names::CT_TCP4, false, CONNECTION),
    (names::CT_TCP6, false, CONNECTION),
    (names::CT_ANY4, false, CONNECTION),
    (names::CT_ANY6, false, CONNECTION),
    (names::FRAG4, false, DATAGRAM),
    (names::FRAG6, false, DATAGRAM),
    (names::IPCACHE, true, &["cidr"]),
    (names::LB4_BACKENDS, true, &["id"]),
    (names::LB6_BACKENDS, true, &["id"]),
    (names::LB4_REVERSE_NAT, true, &["id"]),
    (names::LB6_REVERSE_NAT, true, &["id"]),
    (names::LB4_SERVICES, true, SERVICE),
    (names::LB6_SERVICES, true, SERVICE),
    (names::LXC, true, &["ip"]),
    (names::METRICS, false, &["reason", "direction"]),
    (names::NODE_CONFIG, true, &["setting"]),
    (names::POLICY_MAPS, true, &["endpoint"]),
    (names::POLICY_OPTIONS, true, &["endpoint"]),
];
const CONNECTION: &[&str] =
    &["proto", "direction", "source", "source_port", "destination", "destination_port"];
const DATAGRAM: &[&str] = &["source", "destination", "id", "proto"];
const SERVICE: &[&str] = &["ip", "port", "proto", "slot", "scope"];
const POLICY: &[&str] = &["egress", "identity", "proto", "port", "port_prefix"];

/// How often a map is read whose changes somebody follows.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn list(State(parts): State<Arc<Parts>>) -> Response {
    let datapath = Arc::clone(&parts.datapath);
    let listed = tokio::task::spawn_blocking(move || {
        let policies = datapath.policies().unwrap_or_default();
        let policies =
            policies.into_iter().map(|id| (format!("{}{id:05}", names::POLICY_PREFIX), true));
        let fixed = MAPS.iter().map(|(name, owned, _)| ((*name).to_owned(), *owned));
        let show = |(name, owned): (String, bool)| {
            let read = if owned { bpf::read(&datapath, &name) } else { None };
            let (entries, errors) = match read {
                Some(Ok(entries)) => (entries, 0),
                Some(Err(_)) => (Vec::new(), 1),
                None => (Vec::new(), 0),
            };
            let mut shown = json!({"name": name, "path": path(&name), "num-entries": entries.len(),
                "num-errors": errors, "cache-enabled": owned});
            if owned {
                shown["cache"] = cache(&name, &entries);
            }
            shown
        };
        let mut all: Vec<(String, bool)> = fixed.chain(policies).collect();
        all.sort();
        all.into_iter().map(show).collect::<Vec<_>>()
    });
    let filesystem = mount::of(status::bpf_root(&parts));
    match listed.await {
        Ok(maps) => Json(json!({"maps": maps, "filesystem": filesystem})).into_response(),
        Err(_) => not_found("the maps could not be read".into()),
    }
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, Path(name): Path<String>) -> Response {
    match entries(&parts.datapath, &name).await {
        Ok(entries) => {
            let cache = cache(&name, &entries);
            Json(json!({"name": name, "path": path(&name), "entries": entries, "cache": cache}))
                .into_response()
        }
        Err(answer) => answer,
    }
}

/// Entries as Cilium's API has them: keys and values as texts, and whether they are as they should be.
fn cache(name: &str, entries: &[Value]) -> Value {
    let shown = entries.iter().map(|entry| {
        let (key, value) = texts(name, entry);
        json!({"key": key, "value": value, "desired-action": "sync", "last-error": ""})
    });
    shown.collect::<Vec<_>>().into()
}

/// Forgets what a map of connections holds, or what it holds of an address. Other maps have owners, who would put
/// everything back.
pub(super) async fn flush(
    State(parts): State<Arc<Parts>>,
    Path(name): Path<String>,
    Query(query): Query<Pairs>,
) -> Response {
    let mut of = None;
    for (word, value) in &query {
        match (word.as_str(), value.parse()) {
            ("address", Ok(address)) => of = Some(address),
            _ => return bad_request(format!("{word}={value}: only address=ADDRESS may be said")),
        }
    }
    let (datapath, map) = (Arc::clone(&parts.datapath), name.clone());
    let flushed = tokio::task::spawn_blocking(move || datapath.conntrack().flush(&map, of)).await;
    match flushed {
        Ok(Some(Ok(removed))) => {
            tracing::info!(map = name, address = ?of, removed, "connections forgotten on request");
            Json(json!({"removed": removed})).into_response()
        }
        Ok(Some(Err(error))) => failed(&error),
        Ok(None) => {
            let text = format!("{name} is no map of connections: only those can be emptied\n");
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(_) => not_found(format!("map {name} could not be read")),
    }
}

/// Changes from now on, a JSON object in a line each: the map is read again and again while
/// somebody listens, and costs nothing otherwise.
pub(super) async fn events(
    State(parts): State<Arc<Parts>>,
    Extension(listeners): Extension<Listeners>,
    Path(name): Path<String>,
    Query(query): Query<Pairs>,
) -> Response {
    if query.iter().any(|(word, value)| word == "follow" && !on(value)) {
        // What was before is not kept.
        let known = entries(&parts.datapath, &name).await;
        return known.map_or_else(|answer| answer, |_| StatusCode::OK.into_response());
    }
    let Some(place) = listeners.place() else { return Listeners::full() };
    let known = match entries(&parts.datapath, &name).await {
        Ok(entries) => by_key(&name, &entries),
        Err(answer) => return answer,
    };
    let start = (parts, name, known, place);
    let lines = stream::unfold(start, |(parts, name, known, place)| async move {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = by_key(&name, &entries(&parts.datapath, &name).await.ok()?);
            let changes = changes(&known, &now);
            if changes.is_empty() {
                continue;
            }
            let moment = time(std::time::SystemTime::now());
            let mut text = String::new();
            for (action, key, value) in &changes {
                let event = json!({"timestamp": moment, "action": action, "key": key, "value": value,
                    "desired-action": "sync", "last-error": ""});
                text.push_str(&event.to_string());
                text.push('\n');
            }
            return Some((
                Ok::<_, std::convert::Infallible>(Bytes::from(text)),
                (parts, name, now, place),
            ));
        }
    });
    // Objects one after another; Cilium's client reads no other type.
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

/// What a map holds, or the answer why not.
async fn entries(datapath: &Arc<Datapath>, name: &str) -> Result<Vec<Value>, Response> {
    let (datapath, asked) = (Arc::clone(datapath), name.to_owned());
    // A large map takes a while to read.
    let read = tokio::task::spawn_blocking(move || bpf::read(&datapath, &asked)).await;
    match read {
        Ok(Some(Ok(entries))) => Ok(entries),
        Ok(Some(Err(error))) => Err(failed(&error)),
        Ok(None) => Err(not_found(format!("no map {name}"))),
        Err(_) => Err(not_found(format!("map {name} could not be read"))),
    }
}

fn path(name: &str) -> String {
    format!("/sys/fs/bpf/tc/globals/{name}")
}

type Texts = BTreeMap<String, String>;

fn by_key(name: &str, entries: &[Value]) -> Texts {
    entries.iter().map(|entry| texts(name, entry)).collect()
}

/// What is different, and how; removals last.
fn changes<'a>(before: &'a Texts, now: &'a Texts) -> Vec<(&'static str, &'a String, &'a String)> {
    let set = now.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
    set.map(|(key, value)| ("update", key, value))
        .chain(gone.map(|(key, value)| ("delete", key, value)))
        .collect()
}

/// An entry's key and value as texts: the members of a key by their values, the others by name.
fn texts(map: &str, entry: &Value) -> (String, String) {
    let known = MAPS.iter().find(|(name, ..)| *name == map).map(|(.., key)| *key);
    let key = known.unwrap_or(POLICY);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let members = entry.as_object().into_iter().flatten();
    let shown: Vec<String> = key.iter().map(|name| text(&entry[*name])).collect();
    let rest: Vec<String> = members
        .filter(|(name, value)| !key.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| format!("{name}={}", text(value)))
        .collect();
    (shown.join(" "), rest.join(" "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::{changes, texts};

    #[test]
    fn entries_as_texts() {
        let entry =
            json!({"cidr": "10.0.0.1/32", "identity": 2, "encryptkey": 0, "tunnelendpoint": null});
        let want = ("10.0.0.1/32".to_owned(), "identity=2 encryptkey=0".to_owned());
        assert_eq!(texts("cilium_ipcache_v2", &entry), want);
        let entry = json!({"deny": true, "egress": false, "identity": 7, "proto": 6, "port": 80, "port_prefix": 16});
        assert_eq!(texts("cilium_policy_v2_00007", &entry).0, "false 7 6 80 16");
    }

    #[test]
    fn changes_are_told_once() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let (before, now) = (
            map(&[("a", "1"), ("b", "1"), ("c", "1")]),
            map(&[("b", "2"), ("c", "1"), ("d", "1")]),
        );
        let found: Vec<(&str, &str, &str)> = changes(&before, &now)
            .into_iter()
            .map(|(action, key, value)| (action, key.as_str(), value.as_str()))
            .collect();
        assert_eq!(found, [("update", "b", "2"), ("update", "d", "1"), ("delete", "a", "1")]);
        assert!(changes(&now, &now).is_empty());
    }
}
