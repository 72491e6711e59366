//! Asks the operator's API over HTTP.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The JSON at `path` of the operator that listens on `server`.
pub(super) async fn get(server: &str, path: &str) -> anyhow::Result<Value> {
    // Written as URL or as address.
    let address = server.trim_start_matches("http://").trim_end_matches('/');
    let asked = tokio::time::timeout(PATIENCE, ask(address, path)).await;
    let answer = asked.unwrap_or_else(|_| bail!("no answer within {PATIENCE:?}"));
    let answer = answer.with_context(|| format!("ask the operator at {address}"))?;
    serde_json::from_slice(&answer).context("read the operator's answer")
}

async fn ask(address: &str, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request =
        Request::get(path).header(http::header::HOST, address).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        bail!("{path}: {status}: {}", String::from_utf8_lossy(&body).trim());
    }
    Ok(body)
}
