//! Talks to the agent over its unix socket.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// The agent of this node.
#[derive(Debug)]
pub(crate) struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// The agent behind a socket such as `unix:///var/run/cilium/cilium.sock`.
    pub(crate) fn new(host: &str) -> anyhow::Result<Self> {
        let path = match host.split_once("://") {
            Some(("unix", path)) => path,
            Some((scheme, _)) => {
                bail!("--host {host:?}: {scheme} is not possible, only unix://PATH")
            }
            None => host,
        };
        Ok(Self { socket: path.into() })
    }

    /// The answer to `path`, as JSON; nothing where there is no such thing.
    pub(crate) async fn find(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let answer = self.ask(path).await?;
        let status = answer.status();
        let body =
            answer.into_body().collect().await.context("read the agent's answer")?.to_bytes();
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !status.is_success() {
            bail!("the agent answers {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        serde_json::from_slice(&body).context("read the agent's answer").map(Some)
    }

    /// The answer to `path`, which is there.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.find(path).await?.with_context(|| format!("the agent has no {path}"))
    }

    /// An answer that goes on.
    pub(crate) async fn stream(&self, path: &str) -> anyhow::Result<Incoming> {
        let answer = self.ask(path).await?;
        if !answer.status().is_success() {
            bail!("the agent answers {}", answer.status());
        }
        Ok(answer.into_body())
    }

    async fn ask(&self, path: &str) -> anyhow::Result<hyper::Response<Incoming>> {
        let connect =
            tokio::time::timeout(Duration::from_secs(30), UnixStream::connect(&self.socket));
        let stream = match connect.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => bail!("{}", self.unreachable(&error)),
            Err(_) => {
                bail!("cilium: daemon unreachable: {} does not answer", self.socket.display())
            }
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(http::header::HOST, "localhost")
            .body(Empty::<Bytes>::new())?;
        sender.send_request(request).await.context("ask the agent")
    }

    /// Why the agent can't be reached, and what to do.
    fn unreachable(&self, error: &std::io::Error) -> String {
        let socket = self.socket.display();
        match error.kind() {
            ErrorKind::NotFound => format!(
                "cilium: daemon unreachable: no agent runs here ({socket} does not exist). \
                 Run this on a node or in the agent's pod: \
                 kubectl -n kube-system exec ds/cilium -- cilia ..."
            ),
            ErrorKind::PermissionDenied => {
                format!(
                    "cilium: daemon unreachable: {socket} may be used by root and its group only"
                )
            }
            _ => format!("cilium: daemon unreachable: {socket}: {error}"),
        }
    }
}
