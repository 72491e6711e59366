//! Decides when a request may be sent: within the rate, answered in time, and writes only while we lead.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request};
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

use crate::lanes::Bucket;
use crate::leader::Leadership;

/// Why a request was not sent or not answered.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("not sent: this process does not lead any more")]
    NotLeading,
}

/// Wraps a client's transport in [`Paced`].
#[derive(Debug, Clone)]
pub struct PacedLayer {
    bucket: Option<Arc<Mutex<Bucket>>>,
    timeout: Duration,
    leadership: Option<Leadership>,
}

impl PacedLayer {
    /// `limits` are requests per second and at once.
    pub fn new(
        limits: Option<(f64, f64)>,
        timeout: Duration,
        leadership: Option<Leadership>,
    ) -> Self {
        let now = Instant::now().into_std();
        let bucket = limits
            .map(|(per_second, burst)| Arc::new(Mutex::new(Bucket::new(per_second, burst, now))));
        Self { bucket, timeout, leadership }
    }
}

impl<S> Layer<S> for PacedLayer {
    type Service = Paced<S>;

    fn layer(&self, inner: S) -> Paced<S> {
        Paced { inner, rules: self.clone() }
    }
}

/// A transport that keeps the rules of its [`PacedLayer`].
#[derive(Debug, Clone)]
pub struct Paced<S> {
    inner: S,
    rules: PacedLayer,
}

impl<S> Service<Request<Body>> for Paced<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let watches = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        let wait = self.rules.bucket.as_ref().map_or(Duration::ZERO, |bucket| {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now().into_std())
        });
        let leadership = self.rules.leadership.clone().filter(|_| !reads);
        let timeout = self.rules.timeout;
        // Nothing is sent before the future is polled, which is after the wait and the check.
        let answer = self.inner.call(request);
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            if leadership.as_ref().is_some_and(|leadership| !leadership.held()) {
                return Err(Error::NotLeading.into());
            }
            if watches {
                return answer.await;
            }
            let write = leadership.map(|leadership| leadership.open_write());
            let answer = tokio::time::timeout(timeout, answer).await;
            let answer = answer.map_err(|_| Error::Timeout(timeout))??;
            if let Some(write) = write {
                write.answered();
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PacedLayer;
    use crate::leader::Leadership;
    use http::{Request, Response};
    use kube::client::Body;
    use std::time::Duration;
    use tokio::time::Instant;
    use tower::{BoxError, Layer, Service, service_fn};

    fn request(method: &str, uri: &str) -> Request<Body> {
        Request::builder().method(method).uri(uri).body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn spends_the_burst_and_then_keeps_the_rate() {
        let inner = service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(Response::new(())) });
        let mut service =
            PacedLayer::new(Some((10.0, 2.0)), Duration::from_secs(30), None).layer(inner);
        let start = Instant::now();
        for _ in 0..7 {
            service.call(request("GET", "/")).await.unwrap();
        }
        // The timer's resolution is a millisecond.
        let passed = start.elapsed().as_millis();
        assert!((500..=510).contains(&passed), "{passed}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_watches_may_take_long() {
        let inner = service_fn(|_: Request<Body>| async {
            tokio::time::sleep(Duration::from_mins(1)).await;
            Ok::<_, BoxError>(Response::new(()))
        });
        let mut service = PacedLayer::new(None, Duration::from_secs(30), None).layer(inner);
        let error = service.call(request("GET", "/api")).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer within 30s");
        assert!(service.call(request("GET", "/api?limit=1&watch=true")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_may_still_arrive() {
        let inner = service_fn(|request: Request<Body>| async move {
            if request.method() != "PUT" {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            Ok::<_, BoxError>(Response::new(()))
        });
        let leadership = Leadership::until(Instant::now() + Duration::from_mins(10));
        let layer = PacedLayer::new(None, Duration::from_secs(30), Some(leadership.clone()));
        let mut service = layer.layer(inner);
        for (method, open) in [("PUT", false), ("GET", false), ("PATCH", true)] {
            let call = service.call(request(method, "/"));
            // Whoever sent it stops.
            drop(tokio::time::timeout(Duration::from_secs(1), call).await);
            assert_eq!(leadership.may_still_write(), open, "{method}");
        }
        tokio::time::advance(Duration::from_mins(2)).await;
        assert!(!leadership.may_still_write());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_lead_reads_but_does_not_write() {
        let inner = service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(Response::new(())) });
        let leadership = Leadership::until(Instant::now() + Duration::from_secs(10));
        let layer = PacedLayer::new(None, Duration::from_secs(30), Some(leadership));
        let mut service = layer.layer(inner);
        assert!(service.call(request("POST", "/")).await.is_ok());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(service.call(request("GET", "/")).await.is_ok());
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let error = service.call(request(method, "/")).await.unwrap_err();
            assert_eq!(error.to_string(), "not sent: this process does not lead any more");
        }
    }
}
