//! Watches of a server that answers nothing but errors, on a clock that is turned forward.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use tower::{BoxError, service_fn};

use super::watch;

/// A server that answers watches and lists with these codes, and how often it was asked.
fn failing(watches: u16, lists: u16) -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let service = service_fn(move |request: Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let code = if watch { watches } else { lists };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "no", "reason": "No", "code": code,
        });
        let body = Body::from(status.to_string().into_bytes());
        let answer = Response::builder().status(code).body(body);
        async move { answer.map_err(BoxError::from) }
    });
    (Client::new(service, "default"), asked)
}

#[tokio::test(start_paused = true)]
async fn who_only_fails_is_asked_less_and_less_often() {
    // An API server that is away, one that doesn't stream lists, a kind that isn't there.
    for (watches, lists) in [(503, 503), (400, 503), (404, 404)] {
        let (client, asked) = failing(watches, lists);
        let mut events = pin!(watch(Api::<ConfigMap>::namespaced(client, "default")));
        let told = tokio::time::timeout(Duration::from_mins(10), events.next()).await;
        assert!(told.is_err(), "{told:?}");
        let asked = asked.load(Ordering::Relaxed);
        assert!((20..120).contains(&asked), "{watches}/{lists}: {asked} requests in 10 minutes");
    }
}
