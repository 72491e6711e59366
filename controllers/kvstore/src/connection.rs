//! Chooses the member of etcd that is asked, and asks another when it fails.
//!
//! One connection to each member, made when it is needed, with the TLS files as they are then.
//! Every request may be sent twice: all that Cilia writes is the same when it is written again.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use rand::seq::SliceRandom as _;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::Error;
use crate::messages::{AuthenticateRequest, AuthenticateResponse};
use crate::options::{Endpoints, Options};

/// How long one member has for an answer. etcd itself gives up a write after seven seconds.
const ANSWER: Duration = Duration::from_secs(8);
const CONNECT: Duration = Duration::from_secs(3);
/// Pause after a round in which no member answered.
const PAUSE: Duration = Duration::from_millis(50);
/// Rounds over all members before a request fails.
const ROUNDS: usize = 3;
/// The longest answer: a page of a list, or a fragment of events.
const LONGEST: usize = 64 << 20;

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Connections to the members of one etcd.
#[derive(Debug)]
pub(crate) struct Connection {
    endpoints: Endpoints,
    keep_alive: (Duration, Duration),
    members: Vec<Member>,
    current: AtomicUsize,
    /// The id of the etcd cluster that answered last; 0 for none yet.
    cluster: AtomicU64,
    /// The highest revision that any answer told.
    revision: AtomicI64,
    /// How often etcd had less than it had told before: restored from a copy, or emptied.
    rewinds: watch::Sender<u64>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

#[derive(Debug)]
struct Member {
    url: String,
    channel: Mutex<Option<Channel>>,
}

impl Connection {
    /// To the members that the options name, in random order; nothing is sent yet.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let mut endpoints = Endpoints::read(&options.source)?;
        endpoints.endpoints.shuffle(&mut rand::rng());
        let member = |url: &String| Member { url: url.clone(), channel: Mutex::default() };
        Ok(Self {
            members: endpoints.endpoints.iter().map(member).collect(),
            endpoints,
            keep_alive: options.keep_alive,
            current: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            rewinds: watch::Sender::new(0),
            token: Mutex::default(),
        })
    }

    /// The members' URLs, in the order in which they are asked.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.url.as_str())
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
            for _ in 0..self.members.len() {
                let index = self.current.load(Ordering::Relaxed) % self.members.len();
                match self.unary(index, method, request.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(status) if status.code() == Code::Unauthenticated && round == 0 => {
                        last = status;
                        self.forget_token();
                    }
                    Err(status) if elsewhere(&status) => {
                        self.failed(index);
                        last = status;
                    }
                    // Somebody has changed users or roles meanwhile.
                    Err(status) if status.message().contains("revision of auth store is old") => {
                        self.forget_token();
                        last = status;
                    }
                    Err(status) => return Err(Error::rpc(operation, object, &status)),
                }
            }
        }
        Err(Error::rpc(operation, object, &last))
    }

    /// Asks this member and no other.
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
        let asked = async {
            let mut grpc = self.grpc(index)?;
            let request = self.request(index, request).await?;
            grpc.ready().await.map_err(unready)?;
            let path = PathAndQuery::from_static(method);
            let answer = grpc.unary(request, path, ProstCodec::<Q, R>::default()).await?;
            Ok(answer.into_inner())
        };
        if let Ok(answer) = tokio::time::timeout(ANSWER, asked).await {
            return answer.map_err(|status| self.explain(index, status));
        }
        self.failed(index);
        Err(Status::deadline_exceeded(format!("no answer within {} s", ANSWER.as_secs())))
    }

    /// Opens a stream in both directions with the current member, and says which that is.
    pub(crate) async fn stream<Q, R>(
        &self,
        method: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(usize, Streaming<R>), Status>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let index = self.current.load(Ordering::Relaxed) % self.members.len();
        let opened = async {
            let mut grpc = self.grpc(index)?;
            let request = self.request(index, requests).await?;
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
            Ok(stream) => Ok((index, stream)),
            Err(status) => {
                let status = self.explain(index, status);
                if status.code() == Code::Unauthenticated {
                    self.forget_token();
                } else {
                    self.failed(index);
                }
                Err(status)
            }
        }
    }

    /// Says which member it was whose certificate nobody vouches for, and by which file.
    fn explain(&self, index: usize, status: Status) -> Status {
        let mut text = status.message().to_owned();
        let mut cause = std::error::Error::source(&status);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        match &self.endpoints.trusted_ca_file {
            Some(path) if text.contains("certificate") => {
                let url = &self.members[index].url;
                let path = path.display();
                Status::new(status.code(), format!("{url}: {text} (trusted-ca-file {path})"))
            }
            _ => status,
        }
    }

    /// A member gave no answer: the next one is asked, and this one over a new connection.
    pub(crate) fn failed(&self, index: usize) {
        *self.members[index].channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let next = (index + 1) % self.members.len();
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn grpc(&self, index: usize) -> Result<tonic::client::Grpc<Channel>, Status> {
        let member = &self.members[index];
        let mut channel = member.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match &*channel {
            Some(channel) => channel.clone(),
            None => channel.insert(self.connect(&member.url)?).clone(),
        };
        Ok(tonic::client::Grpc::new(channel).max_decoding_message_size(LONGEST))
    }

    fn connect(&self, url: &str) -> Result<Channel, Status> {
        let bad = |reason: String| Status::unavailable(format!("{url}: {reason}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| bad(e.to_string()))?;
        let mut endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keep_alive.0)
            .keep_alive_timeout(self.keep_alive.1)
            .keep_alive_while_idle(true);
        if url.starts_with("https://") {
            let tls = self.tls().map_err(|error| bad(error.to_string()))?;
            endpoint = endpoint.tls_config(tls).map_err(|error| bad(error.to_string()))?;
        }
        Ok(endpoint.connect_lazy())
    }

    fn tls(&self) -> Result<ClientTlsConfig, Error> {
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path)
                .map_err(|error| Error::File { path: path.clone(), reason: error.to_string() })
        };
        let mut tls = ClientTlsConfig::new();
        if let Some(path) = &self.endpoints.trusted_ca_file {
            tls = tls.ca_certificate(Certificate::from_pem(read(path)?));
        }
        if let (Some(certificate), Some(key)) =
            (&self.endpoints.cert_file, &self.endpoints.key_file)
        {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(tls)
    }

    /// With what every request carries: no answers of a member without a leader, and who asks.
    async fn request<T>(&self, index: usize, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token(index).await? {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    async fn token(&self, index: usize) -> Result<Option<MetadataValue<Ascii>>, Status> {
        if self.endpoints.username.is_empty() {
            return Ok(None);
        }
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = AuthenticateRequest {
            name: self.endpoints.username.clone(),
            password: self.endpoints.password.clone(),
        };
        let mut grpc = self.grpc(index)?;
        grpc.ready().await.map_err(unready)?;
        let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
        let path = PathAndQuery::from_static(AUTHENTICATE);
        let answer = grpc.unary(Request::new(request), path, codec).await?.into_inner();
        let token: MetadataValue<Ascii> =
            answer.token.parse().map_err(|_| Status::internal("the token is no header value"))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }

    fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
