//! The cluster's nodes: all of them, or what changed since a client asked last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::Parts;
use super::form::no_type;
use super::query::{Pairs, without_nulls};
use crate::node::NodeInfo;

/// The cluster's name if nobody gave it one: its nodes go by their names alone.
const UNNAMED: &str = "default";
/// How long a client's last view is kept, and of how many clients.
const KEPT: Duration = Duration::from_mins(5);
const MOST: usize = 64;

/// What clients were told last, by the number that each was given.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<HashMap<i64, View>>>);

#[derive(Debug)]
struct View {
    nodes: Vec<Arc<NodeInfo>>,
    asked: Instant,
}

/// Nodes that are new to a client, and those that it should forget.
#[derive(Debug, PartialEq, Eq)]
struct Delta {
    client: i64,
    added: Vec<Arc<NodeInfo>>,
    removed: Vec<Arc<NodeInfo>>,
}

impl Clients {
    /// What is news to a client; all is to one that is not known.
    fn news(&self, client: i64, nodes: &[Arc<NodeInfo>], now: Instant) -> Delta {
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|_, view| now.duration_since(view.asked) < KEPT);
        let known = views.remove(&client);
        let client = match &known {
            Some(_) => client,
            None => loop {
                let number = i64::from(rand::random::<u32>());
                if number != 0 && !views.contains_key(&number) {
                    break number;
                }
            },
        };
        let before = known.map(|view| view.nodes).unwrap_or_default();
        let missing = |from: &[Arc<NodeInfo>], of: &[Arc<NodeInfo>]| {
            of.iter().filter(|node| !from.contains(node)).cloned().collect()
        };
        let delta =
            Delta { client, added: missing(&before, nodes), removed: missing(nodes, &before) };
        if views.len() >= MOST
            && let Some(oldest) = views.iter().min_by_key(|(_, view)| view.asked).map(|(id, _)| *id)
        {
            views.remove(&oldest);
        }
        views.insert(client, View { nodes: nodes.to_vec(), asked: now });
        delta
    }
}

pub(super) async fn list(
    State(parts): State<Arc<Parts>>,
    Extension(clients): Extension<Clients>,
    Query(query): Query<Pairs>,
    headers: HeaderMap,
) -> Response {
    let asked = query.iter().find(|(name, _)| name == "client-id").map(|(_, value)| value.as_str());
    let asked = asked.or_else(|| headers.get("client-id").and_then(|value| value.to_str().ok()));
    let nodes = parts.nodes.list();
    let asked = asked.filter(|value| !value.is_empty());
    let (client, added, removed) = match asked.map(str::parse) {
        None => (0, nodes, Vec::new()),
        Some(Err(_)) => {
            let value = asked.unwrap_or_default();
            return no_type("client-id", "header", "int64", value).into_response();
        }
        Some(Ok(client)) => {
            let delta = clients.news(client, &nodes, Instant::now());
            (delta.client, delta.added, delta.removed)
        }
    };
    let cluster = parts.config.string("cluster-name");
    let local = parts.nodes.local().map(|node| node.name.clone()).unwrap_or_default();
    let show = |nodes: &[Arc<NodeInfo>]| -> Vec<Value> {
        nodes.iter().map(|node| show(node, cluster, node.name == local)).collect()
    };
    Json(json!({
        "client-id": client,
        "nodes-added": show(&added),
        "nodes-removed": show(&removed),
        "self": full_name(&local, cluster),
    }))
    .into_response()
}

/// Numbers of nodes: there are none without encryption.
pub(super) async fn ids() -> Json<Value> {
    Json(json!([]))
}

fn full_name(node: &str, cluster: &str) -> String {
    if cluster.is_empty() || cluster == UNNAMED || node.is_empty() {
        node.to_owned()
    } else {
        format!("{cluster}/{node}")
    }
}

fn show(node: &NodeInfo, cluster: &str, local: bool) -> Value {
    let range = |v4: bool| node.pod_cidrs.iter().find(|range| matches!(range, IpNet::V4(_)) == v4);
    let family = |address: Option<String>, v4: bool| {
        json!({
            "enabled": address.is_some(),
            "ip": address,
            "alloc-range": range(v4).map(ToString::to_string),
        })
    };
    let secondary: Vec<Value> = node
        .addresses
        .iter()
        .filter(|address| {
            Some(**address) != node.internal_ipv4.map(Into::into)
                && Some(**address) != node.internal_ipv6.map(Into::into)
        })
        .map(|address| json!({"ip": address.to_string()}))
        .collect();
    without_nulls(json!({
        "name": full_name(&node.name, cluster),
        "primary-address": {
            "ipv4": family(node.internal_ipv4.map(|a| a.to_string()), true),
            "ipv6": family(node.internal_ipv6.map(|a| a.to_string()), false),
        },
        "secondary-addresses": secondary,
        "source": if local { "local" } else { "custom-resource" },
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::{Clients, KEPT, MOST, full_name};
    use crate::node::NodeInfo;

    fn nodes(names: &[&str]) -> Vec<Arc<NodeInfo>> {
        names
            .iter()
            .map(|name| Arc::new(NodeInfo { name: (*name).to_owned(), ..NodeInfo::default() }))
            .collect()
    }

    #[test]
    fn clients_are_told_what_is_news_to_them() {
        let (clients, now) = (Clients::default(), Instant::now());
        let first = clients.news(0, &nodes(&["a", "b"]), now);
        assert_eq!((first.added.len(), first.removed.len()), (2, 0));
        let second = clients.news(first.client, &nodes(&["b", "c"]), now);
        assert_eq!(second.client, first.client);
        assert_eq!((second.added[0].name.as_str(), second.removed[0].name.as_str()), ("c", "a"));
        let third = clients.news(first.client, &nodes(&["b", "c"]), now);
        assert!(third.added.is_empty() && third.removed.is_empty());

        let late = clients.news(first.client, &nodes(&["b"]), now + KEPT + Duration::from_secs(1));
        assert_ne!(late.client, first.client, "it was forgotten, and is told all");
        assert_eq!(late.added.len(), 1);
        for _ in 0..2 * MOST {
            clients.news(0, &nodes(&["a"]), now);
        }
        assert!(clients.0.lock().expect("views").len() <= MOST);
    }

    #[test]
    fn nodes_of_named_clusters_have_the_cluster_s_name() {
        assert_eq!(full_name("n1", "default"), "n1");
        assert_eq!(full_name("n1", "east"), "east/n1");
    }
}
