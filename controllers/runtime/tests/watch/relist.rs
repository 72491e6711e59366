//! What a list costs that has to be read anew: report 59.
//!
//! A server that only plays one says a list of objects, and then that all of that is too old, as often as one likes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cilia_runtime::watch::{Change, reflect, watch};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta};
use kube::{Client, Config, Resource};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const OBJECTS: usize = 1000;

static WHOLE: Count = Count::new();
static SLIM: Count = Count::new();

/// How many of something there are, and how many there were at most.
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Count {
    const fn new() -> Self {
        Self { now: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }
}

/// Counts itself for as long as it lives.
#[derive(Debug, PartialEq)]
struct Counted(&'static Count);

impl std::fmt::Debug for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.now.load(SeqCst), self.most.load(SeqCst))
    }
}

impl PartialEq for Count {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Counted {
    fn new(count: &'static Count) -> Self {
        let now = count.now.fetch_add(1, SeqCst) + 1;
        count.most.fetch_max(now, SeqCst);
        Self(count)
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
    }
}

/// A `ConfigMap` as the server says it.
#[derive(Debug, Clone, Deserialize)]
struct Whole {
    metadata: ObjectMeta,
    #[serde(skip, default = "whole")]
    _counted: Counted,
}

fn whole() -> Counted {
    Counted::new(&WHOLE)
}

impl Resource for Whole {
    type DynamicType = ();
    type Scope = <ConfigMap as Resource>::Scope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::kind(&())
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::group(&())
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::version(&())
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What is kept of one.
#[derive(Debug, PartialEq)]
struct Slim {
    version: Option<String>,
    counted: Counted,
}

/// Says a list in which everything has changed since the last one, and that it is too old.
async fn say(mut connection: TcpStream, list: usize) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await?);
    }
    let event = |kind: &str, object: Value| json!({ "type": kind, "object": object }).to_string();
    let map = |name: String, version: usize| {
        let metadata = json!({ "name": name, "namespace": "default", "uid": name,
            "resourceVersion": version.to_string() });
        json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata })
    };
    let mut lines: Vec<String> = (0..OBJECTS)
        .map(|number| event("ADDED", map(format!("map-{number}"), list * OBJECTS + number)))
        .collect();
    let mut end = map(String::new(), (list + 1) * OBJECTS);
    end["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    lines.push(event("BOOKMARK", end));
    let gone = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
        "message": "too old resource version", "code": 410 });
    lines.push(event("ERROR", gone));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    connection.write_all(head.as_bytes()).await?;
    connection.write_all((lines.join("\n") + "\n").as_bytes()).await?;
    connection.shutdown().await
}

async fn server() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("listen on loopback");
    let address = listener.local_addr().expect("read a listener's address");
    tokio::spawn(async move {
        for list in 0.. {
            let (connection, _) = listener.accept().await.expect("accept a connection");
            tokio::spawn(say(connection, list));
        }
    });
    address
}

/// However often all is listed anew (`CILIA_RELISTS`, twice by default), there is never a second copy of it.
#[tokio::test]
async fn a_list_read_anew_needs_no_room() {
    let relists = std::env::var("CILIA_RELISTS").ok().and_then(|count| count.parse().ok());
    let lists: usize = relists.unwrap_or(2) + 1;
    let url = format!("http://{}", server().await).parse().expect("an address makes a URL");
    let client = Client::try_from(Config::new(url)).expect("make a client");
    let slim = |map: Whole| {
        Some(Slim { version: map.metadata.resource_version, counted: Counted::new(&SLIM) })
    };
    let (store, changes) = reflect(watch(Api::<Whole>::namespaced(client, "default")), slim);
    let changes = changes.filter(|change| std::future::ready(*change != Change::Synced));
    assert_eq!(changes.take(lists * OBJECTS).count().await, lists * OBJECTS);
    assert_eq!((store.len(), SLIM.now.load(SeqCst)), (OBJECTS, OBJECTS));
    assert!(SLIM.most.load(SeqCst) < OBJECTS + 10, "{SLIM:?}");
    assert!(WHOLE.most.load(SeqCst) < 10, "{WHOLE:?}");
}
