//! Writes of slices to a server that is slow, busy or silent, on a clock that is turned forward.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilia_crds::CiliumEndpoint;
use cilia_runtime::client::PacedLayer;
use cilia_runtime::config::Config;
use cilia_runtime::lanes::{Job, Workqueues};
use cilia_runtime::metrics::Metrics as Registry;
use cilia_slices::{Event, Text};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Layer, service_fn};

use super::budget::Budget;
use super::metrics::Metrics;
use super::rate_limits::RateLimits;
use super::reconciler::Reconciler;

/// How the server answers its n-th write: after how long, with which code.
type Weather = fn(usize) -> (Duration, u16);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// When the writes came in.
type Writes = Arc<Mutex<Vec<Instant>>>;

/// A server that knows no slice, and makes what it is told to.
fn server(weather: Weather) -> (Client, Writes) {
    let writes = Writes::default();
    let log = Arc::clone(&writes);
    let service = service_fn(move |request: Request<Body>| {
        let log = Arc::clone(&log);
        async move {
            let writes = request.method() == Method::POST;
            let (took, code) = if writes { came_in(&log, weather) } else { (ms(5), 404) };
            let object: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)
                .unwrap_or_default();
            sleep(took).await;
            let answer = if code == 201 {
                made(object)
            } else {
                let reason = if code == 404 { "NotFound" } else { "No" };
                json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code })
            };
            let body = Body::from(answer.to_string().into_bytes());
            Response::builder().status(code).body(body).map_err(BoxError::from)
        }
    });
    let paced = PacedLayer::new(None, Duration::from_secs(30), None).layer(service);
    (Client::new(paced, "default"), writes)
}

fn came_in(log: &Writes, weather: Weather) -> (Duration, u16) {
    let mut log = log.lock().expect("no panic while it was held");
    log.push(Instant::now());
    weather(log.len())
}

fn made(mut object: Value) -> Value {
    object["metadata"]["uid"] = object["metadata"]["name"].clone();
    object["metadata"]["resourceVersion"] = "1".into();
    object
}

/// How many writes come in during each second of `length`, if each of so many namespaces needs one.
async fn writes_of(namespaces: usize, length: u64, flags: &[&str], weather: Weather) -> Vec<usize> {
    let (client, writes) = server(weather);
    let config = Config::load(crate::config::flags(), flags.iter().map(ToString::to_string), []);
    let config = config.expect("valid settings");
    let registry = Registry::new("cilium_operator");
    let limits = RateLimits::parse(config.string("ces-rate-limits")).expect("valid limits");
    let budget = Arc::new(Budget::new(limits, &config, &registry));
    let lanes = super::lanes(&budget, &Workqueues::register(&registry));
    let metrics = Metrics::register(&registry);
    let reconciler = Arc::new(Reconciler::new(client, 100, lanes.clone(), metrics, budget));
    let endpoint = json!({
        "metadata": {},
        "status": { "identity": { "id": 1 }, "networking": { "addressing": [], "node": "192.0.2.1" } },
    });
    let endpoint: CiliumEndpoint = serde_json::from_value(endpoint).expect("an endpoint");
    reconciler.start();
    reconciler.tell(|slices, now| {
        slices.confirm();
        for number in 0..namespaces {
            let (namespace, status) = (&format!("ns-{number}"), endpoint.status.as_ref());
            slices.apply(Event::Endpoint { namespace, name: "pod", status }, now);
        }
    });
    let (start, stop) = (Instant::now(), CancellationToken::new());
    let turn = |slice: &Text| reconciler.turn(slice);
    let handle = async |job: Job<Text>| reconciler.reconcile(&job).await;
    tokio::join!(lanes.run_by(super::WORKERS, &stop, turn, handle), async {
        sleep(Duration::from_secs(length)).await;
        stop.cancel();
    });
    let mut seconds = vec![0; usize::try_from(length).expect("a short time")];
    for write in writes.lock().expect("no panic while it was held").iter() {
        let second = usize::try_from(write.duration_since(start).as_secs()).expect("a short time");
        if let Some(count) = seconds.get_mut(second) {
            *count += 1;
        }
    }
    seconds
}

const TWENTY: &str = r#"--ces-rate-limits=[{"nodes":0,"limit":20,"burst":20}]"#;

/// The writes of some seconds.
fn during(seconds: &[usize], from: usize, to: usize) -> usize {
    seconds[from..to].iter().sum()
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_holds_up_no_other() {
    // The 101st, when answers are known to be quick.
    let seconds = writes_of(3_000, 30, &[], |number| {
        if number == 101 { (Duration::from_hours(1), 201) } else { (ms(15), 201) }
    })
    .await;
    assert!(seconds.iter().skip(1).all(|count| *count >= 9), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn writes_without_answers_hold_up_no_others() {
    let seconds = writes_of(3_000, 90, &[], |number| {
        if number % 100 == 0 { (Duration::from_hours(1), 201) } else { (ms(15), 201) }
    })
    .await;
    assert!(seconds.iter().skip(1).all(|count| *count >= 9), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_answers_among_quick_ones_leave_the_configured_limit() {
    for flag in ["--ces-adaptive-rate=false", "--ces-adaptive-rate=true"] {
        let seconds = writes_of(3_000, 40, &[TWENTY, flag], |number| {
            (ms(if number > 100 && number % 6 == 0 { 700 } else { 20 }), 201)
        })
        .await;
        let count = during(&seconds, 10, 40);
        assert!(count >= 590, "{flag}: {count} in 30 s, 600 are configured: {seconds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_into_trouble_gets_the_configured_limit() {
    for flag in ["--ces-adaptive-rate=false", "--ces-adaptive-rate=true"] {
        // Quick at first, then slow, and every other is turned away.
        let seconds = writes_of(3_000, 60, &[flag], |number| match number {
            ..100 => (ms(15), 201),
            _ => (ms(700), if number % 2 == 0 { 503 } else { 201 }),
        })
        .await;
        let count = during(&seconds, 30, 60);
        assert!(
            (290..=310).contains(&count),
            "{flag}: {count} in 30 s, 300 are configured: {seconds:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_as_slow_as_can_be_gets_exactly_the_configured_limit() {
    for took in [50, 200, 1_000] {
        let weather: Weather = match took {
            50 => |_| (ms(50), 201),
            200 => |_| (ms(200), 201),
            _ => |_| (ms(1_000), 201),
        };
        for flag in ["--ces-adaptive-rate=false", "--ces-adaptive-rate=true"] {
            let seconds = writes_of(3_000, 60, &[TWENTY, flag], weather).await;
            let count = during(&seconds, 30, 60);
            assert!(
                (590..=601).contains(&count),
                "{took} ms, {flag}: {count} in 30 s: {seconds:?}"
            );
        }
    }
}
