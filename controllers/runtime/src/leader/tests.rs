use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

use super::{Elector, Failure, Leadership, Settings};

#[test]
fn says_what_will_not_pass() {
    let answer = |code| {
        let status = Status::failure("", "").with_code(code).boxed();
        Failure::Request(kube::Error::Api(status))
    };
    let lease = Duration::from_secs(15);
    for (failure, lasting, want) in [
        (answer(403), 0, true),
        (answer(401), 0, true),
        (answer(500), 0, false),
        (answer(500), 16, true),
        (Failure::Timeout, 15, false),
        (Failure::Timeout, 16, true),
    ] {
        let lasting = Duration::from_secs(lasting);
        assert_eq!(failure.is_grave(lasting, lease), want, "{failure} for {lasting:?}");
    }
}

/// An API server that has one Lease, takes its time, and loses things.
#[derive(Clone)]
struct Server(Arc<Mutex<State>>);

struct State {
    lease: Option<Lease>,
    version: u64,
    /// The moments at which the Lease was written.
    writes: Vec<Instant>,
    weather: Weather,
    random: StdRng,
}

/// How the network and the server are.
#[derive(Debug, Clone, Copy)]
struct Weather {
    /// Until a request arrives, and again until its answer does; at most.
    delay: Duration,
    /// One request in so many never arrives, and as many answers; 0 for none.
    lost: u32,
}

const CALM: Weather = Weather { delay: Duration::from_millis(5), lost: 0 };

impl Server {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            lease: None,
            version: 0,
            writes: Vec::new(),
            weather: CALM,
            random: StdRng::seed_from_u64(seed),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn set(&self, weather: Weather) {
        self.state().weather = weather;
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, BoxError>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// A way through the network; whoever is lost on it never arrives.
    async fn travel(&self) {
        let (delay, lost) = {
            let mut state = self.state();
            let Weather { delay, lost } = state.weather;
            let lost = lost > 0 && state.random.random_range(0..lost) == 0;
            (delay.mul_f64(state.random.random_range(0.5..=1.0)), lost)
        };
        sleep(delay).await;
        if lost {
            std::future::pending::<()>().await;
        }
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        if request.uri().query().is_some_and(|query| query.contains("watch=")) {
            // Nobody hears of anything this way: candidates have to look.
            std::future::pending::<()>().await;
        }
        let server = self.clone();
        // What has been sent arrives, whether or not its sender still waits.
        let handled = tokio::spawn(async move {
            server.travel().await;
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let answer = server.state().handle(&parts.method, &body);
            server.travel().await;
            answer
        });
        let (code, body) = handled.await.unwrap();
        Response::builder().status(code).body(Body::from(body)).unwrap()
    }
}

impl State {
    fn handle(&mut self, method: &Method, body: &[u8]) -> (u16, Vec<u8>) {
        let refuse = |code: u16, reason: &str| {
            let status = Status::failure(reason, reason).with_code(code);
            (code, serde_json::to_vec(&status).unwrap())
        };
        if method == Method::GET {
            return match &self.lease {
                Some(lease) => (200, serde_json::to_vec(lease).unwrap()),
                None => refuse(404, "NotFound"),
            };
        }
        let mut lease: Lease = serde_json::from_slice(body).unwrap();
        let known = self.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        let fits = match method.as_str() {
            "POST" => self.lease.is_none(),
            _ => self.lease.is_some() && lease.metadata.resource_version == known,
        };
        if !fits {
            return refuse(409, "Conflict");
        }
        self.version += 1;
        self.writes.push(Instant::now());
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        (200, serde_json::to_vec(&lease).unwrap())
    }
}

fn settings(identity: &str) -> Settings {
    let [lease_duration, renew_deadline, retry_period] = [15, 10, 2].map(Duration::from_secs);
    let (namespace, name) = ("default".to_owned(), "lock".to_owned());
    let identity = identity.to_owned();
    Settings { namespace, name, identity, lease_duration, renew_deadline, retry_period }
}

/// Leads until the right to is lost; why.
async fn lead(server: &Server, identity: &str) -> (Leadership, JoinHandle<String>) {
    let elector = Elector::new(server.client(), settings(identity));
    let leadership = elector.leadership();
    let ended = tokio::spawn(async move {
        let forever = async |_| std::future::pending::<()>().await;
        let ended = elector.run(&CancellationToken::new(), forever).await;
        ended.expect_err("work does not end by itself").to_string()
    });
    while !leadership.held() && !ended.is_finished() {
        sleep(Duration::from_millis(10)).await;
    }
    (leadership, ended)
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_is_waited_for() {
    let server = Server::new(1);
    let (leadership, ended) = lead(&server, "a").await;
    // Up to 4.8 s for an answer, for an hour.
    server.set(Weather { delay: Duration::from_millis(2400), lost: 0 });
    sleep(Duration::from_hours(1)).await;
    assert!(leadership.held() && !ended.is_finished(), "{:?}", ended.await);
}

#[tokio::test(start_paused = true)]
async fn some_requests_that_hang_do_no_harm() {
    let server = Server::new(2);
    let (leadership, ended) = lead(&server, "a").await;
    // One in fifteen requests is not answered, half of these though it was carried out.
    server.set(Weather { lost: 30, ..CALM });
    sleep(Duration::from_mins(30)).await;
    assert!(leadership.held() && !ended.is_finished(), "{:?}", ended.await);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_answers_ends_in_time() {
    let server = Server::new(3);
    let (leadership, ended) = lead(&server, "a").await;
    sleep(Duration::from_secs(61)).await;
    server.set(Weather { lost: 1, ..CALM });
    let latest = *server.state().writes.last().unwrap();
    let why = ended.await.unwrap();
    assert!(why.ends_with("was not renewed for 10s, last failure: no answer in time"), "{why}");
    assert!(!leadership.held());
    let after = latest.elapsed();
    assert!(after <= Duration::from_secs(10), "it ended {after:?} after its last renewal arrived");
}

#[tokio::test(start_paused = true)]
async fn the_next_leads_when_the_lease_ends() {
    let server = Server::new(4);
    let (_, first) = lead(&server, "first").await;
    let standby = tokio::spawn({
        let server = server.clone();
        async move { lead(&server, "standby").await.0 }
    });
    // In the middle between two renewals.
    sleep(Duration::from_secs(31)).await;
    first.abort();
    let killed = Instant::now();
    let latest = *server.state().writes.last().unwrap();
    let next = standby.await.unwrap();
    assert!(next.held() && next.cut_off());
    let (after_kill, after_renewal) = (killed.elapsed(), latest.elapsed());
    assert!(after_renewal >= Duration::from_secs(15), "{after_renewal:?}: too early");
    // It looks every four seconds, since the watch is silent; with the watch it is the lease exactly.
    assert!(after_kill <= Duration::from_secs(15 + 4), "{after_kill:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_knows_of_writes_that_may_still_arrive() {
    for lost in [false, true] {
        let server = Server::new(5);
        let elector = Elector::new(server.client(), settings("first"));
        let work = async |leadership: Leadership| {
            let write = leadership.open_write();
            if !lost {
                write.answered();
            }
        };
        elector.run(&CancellationToken::new(), work).await.unwrap();
        let stopped = Instant::now();
        let (next, _) = lead(&server, "next").await;
        assert_eq!(next.cut_off(), lost);
        let after = stopped.elapsed();
        assert!(after < Duration::from_secs(3), "{after:?}: nobody has to wait for a whole lease");
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_weather_at_most_one_leads() {
    let seeds = match std::env::var("CILIA_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..6_u64,
    };
    let mut elections = 0;
    for seed in seeds {
        let server = Server::new(seed);
        let leaders: Arc<Mutex<Vec<(String, Leadership)>>> = Arc::default();
        let candidates: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let (server, leaders) = (server.clone(), leaders.clone());
                tokio::spawn(async move {
                    for run in 0.. {
                        let identity = format!("{name}{run}");
                        let elector = Elector::new(server.client(), settings(&identity));
                        leaders.lock().unwrap().push((identity, elector.leadership()));
                        // Now and then it stops cleanly.
                        let stop = CancellationToken::new();
                        let work = async |_| {
                            let time = server.state().random.random_range(5..200);
                            sleep(Duration::from_secs(time)).await;
                        };
                        // What ended it doesn't matter here.
                        drop(elector.run(&stop, work).await);
                    }
                })
            })
            .into();
        let mut latest = String::new();
        for step in 0..12_000_u32 {
            sleep(Duration::from_millis(100)).await;
            if step % 300 == 0 {
                let mut state = server.state();
                let delay = Duration::from_millis(state.random.random_range(1..6_000));
                let lost = [0, 2, 5, 20][state.random.random_range(0..4_usize)];
                state.weather = Weather { delay, lost };
            }
            let leaders = leaders.lock().unwrap();
            let now: Vec<_> = leaders.iter().filter(|(_, leader)| leader.held()).collect();
            assert!(now.len() <= 1, "CILIA_SEED={seed}: {now:?} lead at once");
            if let [(leader, _)] = now[..]
                && *leader != latest
            {
                latest.clone_from(leader);
                elections += 1;
            }
        }
        for candidate in candidates {
            candidate.abort();
        }
    }
    assert!(elections > 10, "only {elections} elections");
}
