//! Talks to an agent: over the unix socket of this node, or through a pod of the cluster.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::cluster::AgentPod;

/// Where agents listen, if nothing else is said.
pub(crate) const SOCKET: &str = "/var/run/cilium/cilium.sock";
/// More than the largest map as JSON; what is longer than this comes from something else.
const LONGEST: usize = 1 << 30;

/// An agent.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    place: Place,
    patience: Duration,
    debug: bool,
}

#[derive(Debug, Clone)]
enum Place {
    Socket(PathBuf),
    Pod(Box<AgentPod>),
}

impl Agent {
    /// The agent behind a socket such as `unix:///var/run/cilium/cilium.sock`.
    pub(crate) fn new(host: &str) -> anyhow::Result<Self> {
        Ok(Self::at(Place::Socket(socket(host)?)))
    }

    /// The agent in this pod.
    pub(crate) fn in_pod(pod: AgentPod) -> Self {
        Self::at(Place::Pod(Box::new(pod)))
    }

    fn at(place: Place) -> Self {
        Self { place, patience: Duration::from_secs(30), debug: false }
    }

    /// How long it may take to answer.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether to tell what is asked of it.
    pub(crate) fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// Its node, or the socket.
    pub(crate) fn name(&self) -> String {
        match &self.place {
            Place::Socket(path) => path.display().to_string(),
            Place::Pod(pod) => pod.node.clone(),
        }
    }

    /// The pod that it is in, if it is asked by way of the cluster.
    pub(crate) fn pod(&self) -> Option<&AgentPod> {
        match &self.place {
            Place::Socket(_) => None,
            Place::Pod(pod) => Some(pod),
        }
    }

    /// The answer to `path`, as JSON; nothing where there is no such thing.
    pub(crate) async fn find(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.get_unless(path, StatusCode::NOT_FOUND).await
    }

    /// The answer to `path`; nothing if it has this status.
    pub(crate) async fn get_unless(
        &self,
        path: &str,
        status: StatusCode,
    ) -> anyhow::Result<Option<Value>> {
        let (told, body) = self.send(&Method::GET, path, None).await?;
        if told == status {
            return Ok(None);
        }
        if !told.is_success() {
            bail!("{}", refusal(told, &Method::GET, path, &body));
        }
        let answer = serde_json::from_slice(&body);
        answer.with_context(|| format!("read the answer of {} to {path}", self.name())).map(Some)
    }

    /// The answer to `path`, which is there.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.find(path).await?.with_context(|| format!("the agent has no {path}"))
    }

    /// Has something changed: the answer, empty or JSON.
    pub(crate) async fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let (status, answer) = self.send(&method, path, body).await?;
        if !status.is_success() {
            bail!("{}", refusal(status, &method, path, &answer));
        }
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let whole = async {
            let answer = self.ask(method, path, body).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LONGEST).collect().await;
            let body = body.map_err(|error| {
                anyhow::anyhow!("read the answer of {} to {path}: {error}", self.name())
            })?;
            Ok((status, body.to_bytes()))
        };
        let answer = tokio::time::timeout(self.patience, whole).await;
        answer.unwrap_or_else(|_| {
            bail!(
                "cilium: daemon unreachable: {} did not answer within {:?}",
                self.name(),
                self.patience
            )
        })
    }

    /// An answer that goes on.
    pub(crate) async fn stream(&self, path: &str) -> anyhow::Result<Incoming> {
        let answer = tokio::time::timeout(self.patience, self.ask(&Method::GET, path, None)).await;
        let answer = answer.with_context(|| format!("{} does not answer", self.name()))??;
        let status = answer.status();
        if !status.is_success() {
            let body = Limited::new(answer.into_body(), 1 << 16).collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            bail!("{}", refusal(status, &Method::GET, path, &body));
        }
        Ok(answer.into_body())
    }

    async fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<hyper::Response<Incoming>> {
        if self.debug {
            eprintln!("{}: {method} {path}", self.name());
        }
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(http::header::HOST, "localhost")
            .body(Full::new(Bytes::from(body)))
            .with_context(|| format!("ask for {path}"))?;
        let json = http::HeaderValue::from_static("application/json");
        request.headers_mut().insert(http::header::CONTENT_TYPE, json);
        match &self.place {
            Place::Socket(socket) => {
                let stream = match UnixStream::connect(socket).await {
                    Ok(stream) => stream,
                    Err(error) => bail!("{}", unreachable(socket, &error)),
                };
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                let answer = sender.send_request(request).await;
                answer.with_context(|| format!("ask {} for {path}", self.name()))
            }
            Place::Pod(pod) => {
                let (stream, held) = pod.connect().await?;
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(async move {
                    // A connection that breaks is told where the answer is read.
                    let _ = connection.await;
                    drop(held);
                });
                sender.send_request(request).await.with_context(|| {
                    format!(
                        "ask the agent in pod {}: its `cilia relay` ended; look at \
                         kubectl -n {} exec {} -- cilia status",
                        pod.name, pod.namespace, pod.name
                    )
                })
            }
        }
    }
}

/// The path in `unix://PATH`.
pub(crate) fn socket(host: &str) -> anyhow::Result<PathBuf> {
    match host.split_once("://") {
        Some(("unix", "")) => bail!("--host {host:?}: a path is missing: unix://PATH"),
        Some(("unix", path)) => Ok(path.into()),
        Some((scheme, _)) => bail!("--host {host:?}: {scheme} is not possible, only unix://PATH"),
        None => Ok(host.into()),
    }
}

fn refusal(status: StatusCode, method: &Method, path: &str, body: &[u8]) -> String {
    // Reasons are texts in JSON, or objects with a message.
    let reason = match serde_json::from_slice(body) {
        Ok(Value::String(reason)) => Some(reason),
        Ok(Value::Object(fault)) => fault.get("message").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let text = reason.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let path = path.split('?').next().unwrap_or(path);
    match text.trim() {
        "" => format!("the agent answers {status} to {method} {path}"),
        text => format!("the agent answers {status} to {method} {path}: {text}"),
    }
}

/// Why the agent can't be reached, and what to do.
pub(crate) fn unreachable(socket: &std::path::Path, error: &std::io::Error) -> String {
    let socket = socket.display();
    match error.kind() {
        ErrorKind::NotFound => format!(
            "cilium: daemon unreachable: no agent runs here ({socket} does not exist). \
             Run this on a node, in the agent's pod (kubectl -n kube-system exec ds/cilium -- cilia ...), \
             or with --kubeconfig FILE to ask all agents of a cluster"
        ),
        ErrorKind::PermissionDenied => {
            format!("cilium: daemon unreachable: {socket} may be used by root and its group only")
        }
        ErrorKind::ConnectionRefused => format!(
            "cilium: daemon unreachable: nobody listens on {socket}: the agent has stopped, or it is \
             starting. Look at kubectl -n kube-system get pods -l k8s-app=cilium -o wide"
        ),
        _ => format!("cilium: daemon unreachable: {socket}: {error}"),
    }
}

/// A name as a part of a path.
pub(crate) fn segment(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                encoded.push(char::from(byte));
            }
            // Writing to a text can't fail.
            other => _ = write!(encoded, "%{other:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::{Agent, refusal, segment};

    #[test]
    fn reasons_are_read_in_every_form() {
        let cases = [
            ("\"no pools\"\n", ": no pools"),
            (
                r#"{"code": 405, "message": "method PUT is not allowed"}"#,
                ": method PUT is not allowed",
            ),
            ("BGP is disabled\n", ": BGP is disabled"),
            ("", ""),
        ];
        for (body, want) in cases {
            let said = refusal(StatusCode::BAD_REQUEST, &Method::PUT, "/v1/x?y=z", body.as_bytes());
            assert_eq!(said, format!("the agent answers 400 Bad Request to PUT /v1/x{want}"));
        }
    }

    #[tokio::test]
    async fn says_what_to_do_where_no_agent_is() {
        let agent = Agent::new("unix:///nowhere/cilium.sock").expect("a socket");
        let error = agent.get("/v1/healthz").await.expect_err("nobody there").to_string();
        assert!(error.starts_with("cilium: daemon unreachable: no agent runs here"), "{error}");
        assert!(error.contains("kubectl -n kube-system exec"), "{error}");
        for bad in ["tcp://10.0.0.1", "unix://"] {
            assert!(Agent::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_fit_into_paths() {
        assert_eq!(segment("pod-name:shop/web 1"), "pod-name:shop%2Fweb%201");
        assert_eq!(segment("../é?"), "..%2F%C3%A9%3F");
    }
}
