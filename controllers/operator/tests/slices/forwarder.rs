//! An HTTP proxy before the API server that remembers writes of slices, and may be a bad network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use cilia_runtime::testing::ApiServer;
use futures::StreamExt;
use kube::Client;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::task::JoinHandle;

/// Ends when dropped.
pub struct Forwarder {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    client: Client,
    faults: Option<Mutex<Faults>>,
    slice_writes: Mutex<Vec<Instant>>,
}

/// What goes wrong, at random.
pub struct Faults {
    rng: StdRng,
    /// How often what went wrong.
    counts: BTreeMap<&'static str, usize>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Delay(Duration),
    /// Answered without asking the server.
    Refuse(StatusCode),
    /// Not even that.
    Lose,
    /// Done, but the answer is lost.
    LoseAnswer,
    /// What is streamed breaks off after a time.
    BreakOff(Duration),
}

impl Faults {
    pub fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), counts: BTreeMap::new() }
    }

    fn draw(&mut self, method: &Method, watches: bool) -> Option<Fault> {
        let millis = Duration::from_millis(self.rng.random_range(1..600));
        let (name, fault) = match self.rng.random_range(0..100) {
            0..10 => ("delayed", Fault::Delay(millis)),
            10..15 => ("429", Fault::Refuse(StatusCode::TOO_MANY_REQUESTS)),
            15..20 if method != Method::GET => ("409", Fault::Refuse(StatusCode::CONFLICT)),
            20..25 => ("500", Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR)),
            25..30 => ("lost", Fault::Lose),
            30..35 => ("answer lost", Fault::LoseAnswer),
            // What a watch has missed is not there any more: all has to be listed again.
            35..45 if watches => ("410", Fault::Refuse(StatusCode::GONE)),
            35..60 if method == Method::GET => ("broken off", Fault::BreakOff(millis * 4)),
            _ => return None,
        };
        *self.counts.entry(name).or_default() += 1;
        Some(fault)
    }
}

impl Forwarder {
    pub async fn to(server: &ApiServer, faults: Option<Faults>) -> Self {
        let shared = Arc::new(Shared {
            client: server.client_as("forwarded"),
            faults: faults.map(Mutex::new),
            slice_writes: Mutex::default(),
        });
        let router = Router::new().fallback(forward).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("listen");
        let address = listener.local_addr().expect("read a listener's address");
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("serve");
        });
        Self { address, shared, serving }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// When slices were written, or would have been.
    pub fn slice_writes(&self) -> Vec<Instant> {
        lock(&self.shared.slice_writes).clone()
    }

    /// How often what went wrong.
    pub fn faults(&self) -> BTreeMap<&'static str, usize> {
        self.shared.faults.as_ref().map(|faults| lock(faults).counts.clone()).unwrap_or_default()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let about_slices = parts.uri.path().contains("/ciliumendpointslices");
    if about_slices && parts.method != Method::GET {
        lock(&shared.slice_writes).push(Instant::now());
    }
    // Who leads is another test's matter.
    let about_leader = parts.uri.path().contains("/leases");
    let faults = shared.faults.as_ref().filter(|_| !about_leader);
    let watches = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
    let fault = faults.and_then(|faults| lock(faults).draw(&parts.method, watches));
    match fault {
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::Refuse(status)) => return refused(status),
        Some(Fault::Lose) => return lost(),
        _ => {}
    }
    for name in [header::HOST, header::USER_AGENT, header::AUTHORIZATION, header::CONNECTION] {
        parts.headers.remove(name);
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.expect("read a request");
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let Ok(answer) = shared.client.send(request).await else { return lost() };
    let (mut parts, body) = answer.into_parts();
    parts.version = axum::http::Version::HTTP_11;
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let body = match fault {
        Some(Fault::LoseAnswer) => return lost(),
        Some(Fault::BreakOff(time)) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            let end = Box::pin(tokio::time::sleep(time));
            let broken = futures::stream::once(async { Err(axum::Error::new(Broken)) });
            let whole = Body::new(body).into_data_stream();
            Body::from_stream(whole.take_until(end).chain(broken))
        }
        _ => Body::new(body),
    };
    Response::from_parts(parts, body)
}

#[derive(Debug, thiserror::Error)]
#[error("broken off")]
struct Broken;

fn refused(status: StatusCode) -> Response<Body> {
    let status_object = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the test says so", "reason": "Test", "code": status.as_u16(),
    });
    let response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(status_object.to_string())).expect("a response")
}

/// A response that never arrives whole: the connection breaks.
fn lost() -> Response<Body> {
    let broken = futures::stream::once(async { Err::<Vec<u8>, _>(Broken) });
    Response::new(Body::from_stream(broken))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while it is held")
}
