//! Chooses the member of etcd that is asked, and asks another when it fails.
//!
//! Which members there are is read again when one has failed: `etcd.config` may name others by then, or
//! may not have been there yet. Every request may be sent twice: all that Cilia writes is the same when
//! it is written again.

mod access;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::watch;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::Error;
use crate::members::{At, Members};
use crate::options::{Endpoints, Options, Source};
use access::Token;

/// How long one member has for an answer. etcd itself gives up a write after seven seconds.
const ANSWER: Duration = Duration::from_secs(8);
/// Pause after a round in which no member answered.
const PAUSE: Duration = Duration::from_millis(50);
/// Rounds over all members before a request fails.
const ROUNDS: usize = 3;

/// Connections to the members of one etcd.
#[derive(Debug)]
pub(crate) struct Connection {
    source: Source,
    keep_alive: (Duration, Duration),
    /// As the source said when it was read last; nothing before it could be.
    members: Mutex<Option<Arc<Members>>>,
    /// The id of the etcd cluster that answered last; 0 for none yet.
    cluster: AtomicU64,
    /// The highest revision that any answer told.
    revision: AtomicI64,
    /// How often etcd had less than it had told before: restored from a copy, or emptied.
    rewinds: watch::Sender<u64>,
    token: Token,
}

impl Connection {
    /// To the members that the options name; nothing is sent yet. A file that is not there may come.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let connection = Self {
            source: options.source.clone(),
            keep_alive: options.keep_alive,
            members: Mutex::default(),
            cluster: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            rewinds: watch::Sender::new(0),
            token: Token::default(),
        };
        match connection.members() {
            Err(error) if !options.source.is_absent() => Err(error),
            _ => Ok(connection),
        }
    }

    /// The members as they are known.
    pub(crate) fn members(&self) -> Result<Arc<Members>, Error> {
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = &*known {
            return Ok(Arc::clone(members));
        }
        let members = Members::new(Endpoints::read(&self.source)?, self.keep_alive);
        Ok(Arc::clone(known.insert(Arc::new(members))))
    }

    /// Reads again which members there are. What cannot be read changes nothing.
    pub(crate) fn refresh(&self) {
        let Ok(endpoints) = Endpoints::read(&self.source) else { return };
        let mut known = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|members| members.endpoints == endpoints) {
            return;
        }
        if known.is_some() {
            tracing::info!(endpoints = ?endpoints.endpoints, "etcd.config names other members");
        }
        *known = Some(Arc::new(Members::new(endpoints, self.keep_alive)));
        drop(known);
        self.token.forget();
    }

    /// A member gave no answer: another is asked.
    pub(crate) fn failed(&self, member: &At) {
        member.failed();
        self.refresh();
    }

    /// The id of the etcd cluster that answered last; 0 for none yet.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster.load(Ordering::Relaxed)
    }

    /// An answer came from this cluster.
    pub(crate) fn answered_by(&self, cluster: u64) {
        self.cluster.store(cluster, Ordering::Relaxed);
    }

    /// The highest revision that any answer has told so far.
    pub(crate) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// An answer told this revision; `at_least` was known when it was asked for. An etcd that has less
    /// than it had told before has lost writes: all that is known of it is worth nothing.
    pub(crate) fn told(&self, revision: i64, at_least: i64) {
        if revision <= 0 {
            return;
        }
        if revision >= at_least {
            self.revision.fetch_max(revision, Ordering::Relaxed);
            return;
        }
        // One of all who notice it tells.
        let known = self.revision.swap(revision, Ordering::Relaxed);
        if known > revision {
            tracing::warn!(revision, known, "etcd has lost writes, everything is compared again");
            self.rewinds.send_modify(|count| *count += 1);
        }
    }

    /// Changes when etcd has lost writes.
    pub(crate) fn rewinds(&self) -> watch::Receiver<u64> {
        self.rewinds.subscribe()
    }

    /// Asks one member after the other until one answers.
    pub(crate) async fn ask<Q, R>(
        &self,
        operation: &'static str,
        object: &str,
        method: &'static str,
        request: &Q,
    ) -> Result<R, Error>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut last = Status::unavailable("no member was asked");
        for round in 0..ROUNDS {
            if round > 0 {
                tokio::time::sleep(PAUSE * u32::try_from(round).unwrap_or(1)).await;
            }
            for _ in 0..self.members()?.count() {
                let member = self.members()?.current();
                match self.ask_member(&member, method, request.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(status) if status.code() == Code::Unauthenticated && round == 0 => {
                        last = status;
                        self.token.forget();
                    }
                    Err(status) if elsewhere(&status) => {
                        self.failed(&member);
                        last = status;
                    }
                    // Somebody has changed users or roles meanwhile.
                    Err(status) if round + 1 < ROUNDS && access::is_old(status.message()) => {
                        self.token.forget();
                        last = status;
                    }
                    Err(status) => {
                        let status = access::explain(status, operation, object);
                        return Err(Error::rpc(operation, object, &status));
                    }
                }
            }
        }
        Err(Error::rpc(operation, object, &last))
    }

    /// Asks the member of this place in the order of [`Members::all`].
    #[cfg(feature = "testing")]
    pub(crate) async fn unary<Q, R>(
        &self,
        index: usize,
        method: &'static str,
        request: Q,
    ) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let members = self.members().map_err(|error| Status::unavailable(error.to_string()))?;
        let member = members.all().nth(index);
        let member = member.ok_or_else(|| Status::unavailable("there is no such member"))?;
        self.ask_member(&member, method, request).await
    }

    /// Asks this member and no other.
    pub(crate) async fn ask_member<Q, R>(
        &self,
        member: &At,
        method: &'static str,
        request: Q,
    ) -> Result<R, Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let asked = async {
            let mut grpc = member.grpc()?;
            let request = self.request(member, request).await?;
            grpc.ready().await.map_err(unready)?;
            let path = PathAndQuery::from_static(method);
            let answer = grpc.unary(request, path, ProstCodec::<Q, R>::default()).await?;
            Ok(answer.into_inner())
        };
        if let Ok(answer) = tokio::time::timeout(ANSWER, asked).await {
            return answer.map_err(|status| member.explain(status));
        }
        self.failed(member);
        let (url, seconds) = (member.url(), ANSWER.as_secs());
        Err(Status::deadline_exceeded(format!("{url}: no answer within {seconds} s")))
    }

    /// Opens a stream in both directions with the current member, and says which that is.
    pub(crate) async fn stream<Q, R>(
        &self,
        method: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(At, Streaming<R>), Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let members = self.members().map_err(|error| Status::unavailable(error.to_string()))?;
        let member = members.current();
        let opened = async {
            let mut grpc = member.grpc()?;
            let request = self.request(&member, requests).await?;
            grpc.ready().await.map_err(unready)?;
            let path = PathAndQuery::from_static(method);
            let answer = grpc.streaming(request, path, ProstCodec::<Q, R>::default()).await?;
            Ok(answer.into_inner())
        };
        let opened = match tokio::time::timeout(ANSWER, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(Status::deadline_exceeded("the stream was not opened in time")),
        };
        match opened {
            Ok(stream) => Ok((member, stream)),
            Err(status) => {
                let status = member.explain(status);
                if status.code() == Code::Unauthenticated {
                    self.token.forget();
                } else {
                    self.failed(&member);
                }
                Err(status)
            }
        }
    }

    /// With what every request carries: no answers of a member without a leader, and who asks.
    async fn request<T>(&self, member: &At, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token.of(member).await? {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    /// Why a member has ended what it had begun: who asks may have to say again who he is.
    pub(crate) fn ended(&self, member: &At, reason: &str) {
        if access::is_old(reason) {
            self.token.forget();
        } else {
            self.failed(member);
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err asks for")]
fn unready(error: tonic::transport::Error) -> Status {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Status::unavailable(text)
}

/// Whether another member may do better.
fn elsewhere(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
    )
}
