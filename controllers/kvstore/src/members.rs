//! Decides which members of etcd there are, and connects to them: one connection each, made when it is
//! needed, with the TLS files as they are then.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::Error;
use crate::certificate;
use crate::options::{Endpoints, authorities};

const CONNECT: Duration = Duration::from_secs(3);
/// The longest answer: a page of a list, or a fragment of events.
const LONGEST: usize = 64 << 20;

/// The members of one etcd, as its configuration says.
#[derive(Debug)]
pub(crate) struct Members {
    /// What was said of them.
    pub(crate) endpoints: Endpoints,
    /// How often a silent connection is probed, and how long for an answer.
    keep_alive: (Duration, Duration),
    all: Vec<Member>,
    current: AtomicUsize,
}

#[derive(Debug)]
struct Member {
    url: String,
    channel: Mutex<Option<Channel>>,
}

/// One of the members.
#[derive(Debug, Clone)]
pub(crate) struct At {
    pub(crate) members: Arc<Members>,
    index: usize,
}

impl Members {
    /// In random order; nothing is sent yet.
    pub(crate) fn new(endpoints: Endpoints, keep_alive: (Duration, Duration)) -> Self {
        if !endpoints.ignored.is_empty() {
            let keys = endpoints.ignored.join(", ");
            tracing::warn!(keys, "etcd.config has keys that are ignored");
        }
        let member = |url: &String| Member { url: url.clone(), channel: Mutex::default() };
        let mut all: Vec<Member> = endpoints.endpoints.iter().map(member).collect();
        all.shuffle(&mut rand::rng());
        Self { endpoints, keep_alive, all, current: AtomicUsize::new(0) }
    }

    /// How many there are; at least one.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The one that is asked.
    pub(crate) fn current(self: &Arc<Self>) -> At {
        let index = self.current.load(Ordering::Relaxed) % self.all.len();
        At { members: Arc::clone(self), index }
    }

    /// All, in the order in which they are asked.
    pub(crate) fn all(self: &Arc<Self>) -> impl Iterator<Item = At> {
        (0..self.all.len()).map(|index| At { members: Arc::clone(self), index })
    }
}

impl At {
    pub(crate) fn url(&self) -> &str {
        &self.member().url
    }

    fn member(&self) -> &Member {
        &self.members.all[self.index]
    }

    /// It gave no answer: the next one is asked, and this one over a new connection.
    pub(crate) fn failed(&self) {
        *self.member().channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let next = (self.index + 1) % self.members.all.len();
        let current = &self.members.current;
        let _ = current.compare_exchange(self.index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn grpc(&self) -> Result<tonic::client::Grpc<Channel>, Status> {
        let mut channel = self.member().channel.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match &*channel {
            Some(channel) => channel.clone(),
            None => channel.insert(self.connect()?).clone(),
        };
        Ok(tonic::client::Grpc::new(channel).max_decoding_message_size(LONGEST))
    }

    fn connect(&self) -> Result<Channel, Status> {
        let url = self.url();
        let bad = |reason: String| Status::unavailable(format!("{url}: {reason}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| bad(e.to_string()))?;
        let (every, within) = self.members.keep_alive;
        let mut endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(every)
            .keep_alive_timeout(within)
            .keep_alive_while_idle(true);
        if url.starts_with("https://") {
            let tls = tls(&self.members.endpoints).map_err(|error| bad(error.to_string()))?;
            endpoint = endpoint.tls_config(tls).map_err(|e| bad(words(&e, &e.to_string())))?;
        }
        Ok(endpoint.connect_lazy())
    }

    /// Says which member it was, and which file is to blame, where a certificate is.
    pub(crate) fn explain(&self, status: Status) -> Status {
        // Its own words need no explanation.
        let answered =
            status.code() != Code::Unavailable || status.message().starts_with("etcdserver");
        if status.code() == Code::PermissionDenied
            || (answered && std::error::Error::source(&status).is_none())
        {
            return status;
        }
        let text = words(&status, status.message());
        let blame = self.blame(&text).map(|blame| format!(" ({blame})")).unwrap_or_default();
        let url = self.url();
        let place = if text.contains(url) { String::new() } else { format!("{url}: ") };
        Status::new(status.code(), format!("{place}{text}{blame}"))
    }

    /// Which file is to blame for a connection that came to nothing so.
    fn blame(&self, text: &str) -> Option<String> {
        if !self.url().starts_with("https://") {
            let odd = cut_short(text) || text.contains("http2 error");
            return odd.then(|| "is it https:// that it speaks?".to_owned());
        }
        let endpoints = &self.members.endpoints;
        let own = endpoints.cert_file.as_deref();
        let now = k8s_openapi::jiff::Timestamp::now();
        if let Some(fault) = own.and_then(|path| certificate::fault(path, now)) {
            return Some(fault);
        }
        // An alert is what the other side says: of ours. It may come too late to be read.
        let refused = text.contains("received fatal alert");
        match (own, &endpoints.trusted_ca_file) {
            (Some(path), _) if refused => Some(certificate::describe(path)),
            (Some(path), _) if cut_short(text) => {
                Some(format!("does it refuse {}?", certificate::describe(path)))
            }
            (None, _) if refused || cut_short(text) => {
                Some("no cert-file is set: does it ask for one?".to_owned())
            }
            (_, Some(path)) if text.contains("certificate") => {
                Some(format!("trusted-ca-file {}", path.display()))
            }
            _ => None,
        }
    }
}

/// Whether the other side ended a connection that had been made.
fn cut_short(text: &str) -> bool {
    let text = text.to_lowercase();
    ["connection closed", "connection reset", "broken pipe", "canceled", "end of file"]
        .iter()
        .any(|end| text.contains(end))
}

/// What an error says, and what lies behind it, each once.
fn words(error: &dyn std::error::Error, said: &str) -> String {
    let mut text = said.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if more != "transport error" && !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn tls(endpoints: &Endpoints) -> Result<ClientTlsConfig, Error> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read(path)
            .map_err(|error| Error::File { path: path.clone(), reason: error.to_string() })
    };
    let mut tls = ClientTlsConfig::new();
    let authority = match &endpoints.trusted_ca_file {
        Some(path) => path.clone(),
        None => authorities()
            .map_err(|reason| Error::Option { option: "etcd.config".into(), reason })?
            .to_owned(),
    };
    tls = tls.ca_certificate(Certificate::from_pem(read(&authority)?));
    if let (Some(certificate), Some(key)) = (&endpoints.cert_file, &endpoints.key_file) {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}
